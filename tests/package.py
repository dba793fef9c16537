"""A package that pip can install without any network."""

from __future__ import annotations

from pathlib import Path

_PROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "tiny-thing"
version = "1.0"
"""
# A backend of its own: pip would fetch any other.
_BACKEND = """\
import zipfile
from pathlib import Path

METADATA = ["Metadata-Version: 2.1", "Name: tiny-thing", "Version: 1.0"]
WHEEL = ["Wheel-Version: 1.0", "Root-Is-Purelib: true", "Tag: py3-none-any"]

def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "tiny_thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(Path(folder) / name, "w") as wheel:
        wheel.write("tiny_thing/__init__.py")
        for file, lines in {"METADATA": METADATA, "WHEEL": WHEEL, "RECORD": []}.items():
            wheel.writestr(f"tiny_thing-1.0.dist-info/{file}", "\\n".join([*lines, ""]))
    return name
"""


def make_package(folder: Path) -> Path:
    """Make a folder with the package `tiny-thing`, whose module `tiny_thing` has an ANSWER."""
    place = folder / "tiny"
    (place / "tiny_thing").mkdir(parents=True)
    (place / "tiny_thing" / "__init__.py").write_text("ANSWER = 42\n")
    (place / "pyproject.toml").write_text(_PROJECT)
    (place / "backend.py").write_text(_BACKEND)
    return place
