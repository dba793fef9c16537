"""`python -m skerry.cli`, where the script `skerry` is not on PATH."""

from skerry.cli.app import main

main()
