"""The nouns: topic names and settings, events, quantities. Pure; no I/O."""
