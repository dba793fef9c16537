"""Archives: topics kept in tables, each event once, and read back together with what is newer.

`folder` knows an archive's folder; `table`, `delta` and `manifest` its table; `files` and `run`
fill it; `history` reads it with the topics; `replay` publishes from it; `status` tells about it.
"""
