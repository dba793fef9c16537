"""Functions: code that runs where the events are.

    agent ──assignments──▶ host ──events──▶ worker (the user's code, confined)
      ▲                     │ ◀──results───
      └──── status ─────────┘
                            ├──▶ journal of the function and the log: effects, in order, once
                            └──▶ the topics that it publishes to, behind the journal

The *agent* of a topic's home (or of the site that a function is pinned to) decides what runs here
and keeps one *host* process alive. The host reads events, has *workers* handle them, and commits
what came out: one record in the function's *journal* holds what many events published, changed in
the state, and where the function is. Only then the outputs go to their topics. See
docs/adr/0007-functions.md.
"""
