"""What the README and the examples show is what happens."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

from skerry.testing import LocalSite

ROOT = Path(__file__).parents[2]


async def run(*command: str, **environment: str) -> tuple[int, str]:
    """Run a command; return its exit code and output."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_the_program_of_the_readme_prints_what_the_readme_says(
    site: LocalSite, tmp_path: Path
) -> None:
    readme = (ROOT / "README.md").read_text()
    match = re.search(r"```python\n(.*?)```\n\n((?: {4}[^\n]*\n)+)", readme, re.DOTALL)
    assert match
    program, expected = match.groups()
    assert readme[: match.start()].count("\n") < 30
    file = tmp_path / "readme.py"
    file.write_text(program)
    code, output = await run(sys.executable, str(file), SKERRY_DATA=str(site.data))
    assert output == re.sub(r"^ {4}", "", expected, flags=re.MULTILINE)
    assert code == 0


async def test_the_demo_loses_nothing() -> None:
    code, output = await run(sys.executable, "-m", "examples.demo", COLUMNS="100")
    assert code == 0, output
    assert "nothing lost, nothing doubled" in output
    assert "restarts 1" in output
    assert "WRONG" not in output
