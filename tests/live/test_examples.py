"""What the README and the examples show is what happens."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from skerry.testing import LocalSite, Wan

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


@pytest.mark.parametrize("page", ["README.md", "docs/feeds.md"])
async def test_the_first_program_of_a_page_prints_what_the_page_says(
    page: str, site: LocalSite, tmp_path: Path
) -> None:
    text = (ROOT / page).read_text()
    match = re.search(r"```python\n(.*?)```\n\n((?: {4}[^\n]*\n)+)", text, re.DOTALL)
    assert match
    program, expected = match.groups()
    assert text[: match.start()].count("\n") < 30
    file = tmp_path / "program.py"
    file.write_text(program)
    code, output = await run(sys.executable, str(file), SKERRY_DATA=str(site.data))
    assert output == re.sub(r"^ {4}", "", expected, flags=re.MULTILINE)
    assert code == 0


@pytest.mark.timeout(300)
async def test_the_demo_loses_nothing() -> None:
    code, output = await run(sys.executable, "-m", "examples.demo", COLUMNS="100")
    assert code == 0, output
    assert [act for act in ("act 1", "act 2", "act 3", "act 4") if act not in output] == []
    assert "nothing lost, nothing doubled, all in order" in output
    assert "totals by Spark" in output
    assert "WRONG" not in output


def programs() -> list[str]:
    """The complete programs of the guide to fabrics."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/fabric.md").read_text(), re.DOTALL)
    return [block for block in blocks if block.startswith("import ")]


@pytest.mark.parametrize("program", programs(), ids=range(len(programs())))
async def test_the_programs_of_the_guide_run(program: str, tmp_path: Path) -> None:
    if "WanFabric" in program and (reason := Wan.unavailable()) is not None:
        pytest.skip(reason)
    file = tmp_path / "guide.py"
    file.write_text(program)
    code, output = await run(sys.executable, str(file))
    assert code == 0, output
