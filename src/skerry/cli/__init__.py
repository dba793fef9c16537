"""The command line, one file per command."""


def main() -> None:
    """Run `skerry`."""
    raise SystemExit("not yet")
