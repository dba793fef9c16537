"""`python -m tests.scenarios`: play scenario scripts and print them, with what they give now."""

from __future__ import annotations

import argparse
import contextlib
import sys

from skerry.sim.controls import CONTROLS, without
from tests.scenarios.script import FOLDER, Scenario


def main() -> int:
    """Exit code 0: all give what they say; 1: some give something else."""
    parser = argparse.ArgumentParser(prog="python -m tests.scenarios", description=__doc__)
    parser.add_argument("names", nargs="*", help="which (default: all)")
    parser.add_argument("--rewrite", action="store_true", help="have the files say what they give")
    parser.add_argument("--trace", action="store_true", help="print what the sites log, too")
    parser.add_argument("--seed", type=int, default=1, help="what delays are drawn from")
    parser.add_argument("--without", choices=CONTROLS, help="leave out a rule of what ships")
    options = parser.parse_args()
    different = 0
    for path in sorted(FOLDER.glob("*.txt")):
        if options.names and path.stem not in options.names:
            continue
        text = path.read_text()
        scenario = Scenario(text, options.seed)
        with without(options.without) if options.without else contextlib.nullcontext():
            played = scenario.play()
        is_other = played != text
        different += is_other
        if options.rewrite:
            path.write_text(played)
        elif options.names:
            print(played)
        print(f"{path.stem}: {'something else' if is_other else 'as it says'}", file=sys.stderr)
        if options.trace:
            print(*scenario.trace, sep="\n", file=sys.stderr)
    return int(bool(different) and not options.rewrite)


if __name__ == "__main__":
    sys.exit(main())
