"""A topic's log: create and change it, append to it, read it, follow it."""
