"""The command line: `skerry`, one file per command.

A command reads its options, calls the client or the site, and prints. What is more than that
lives in the modules that the commands share: `app` (the entry point, and how errors end),
`common` (the options of every command), `output` (what is printed and how).
"""

from skerry.cli.app import main

__all__ = ["main"]
