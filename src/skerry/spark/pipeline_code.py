"""A user's file with pipelines: copied into the state folder, and imported from there only.

What runs is the copy, so that an edit in the meantime changes nothing before it is deployed. Only
the file itself is copied: what it imports must be installed.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import sys
import traceback
from pathlib import Path

from skerry.errors import BadSetting, FolderUnwritable, SkerryError
from skerry.spark import pipeline as declarations
from skerry.spark.pipeline import Pipeline

MODULE = "skerry_pipeline_code"
"""The module that the user's file is, wherever it came from."""


def split_target(target: str) -> tuple[Path, str | None]:
    """`FILE.py` or `FILE.py:name` → the file and the name."""
    file, colon, name = target.rpartition(":")
    if not colon or name.endswith(".py"):
        file, name = target, ""
    path = Path(file).expanduser()
    if not path.is_file():
        raise BadSetting(
            f"there is no file {path}",
            "Name a Python file with a pipeline: FILE.py or FILE.py:name.",
        )
    return path.resolve(), name or None


def stage(file: Path, root: Path) -> Path:
    """Copy `file` into a new folder of the state folder `root`; return the copy."""
    folder = root / f".new-{secrets.token_hex(4)}"
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.mkdir(mode=0o700)
        copy = folder / file.name
        with os.fdopen(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as to:
            to.write(file.read_bytes())
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise FolderUnwritable(
            f"{file.name} cannot be copied to {root}: {error.strerror}",
            "Name a folder of your own with --state.",
        ) from None
    return copy


def load(file: Path) -> list[Pipeline]:
    """Import `file`, a copy in the state folder; return the pipelines that it declares.

    Raises `BadSetting` with the line at fault if it cannot be imported.
    """
    spec = importlib.util.spec_from_file_location(MODULE, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = len(declarations.declared)
    sys.modules[MODULE] = module
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    except SkerryError as error:
        raise type(error)(f"{_line(error, file)}: {error.what}", error.advice) from None
    except Exception as error:
        advice = "Mend it; `python FILE.py` shows more."
        if isinstance(error, ImportError):
            advice = "Only the file itself is copied: install what it imports."
        raise BadSetting(f"{_line(error, file)}: {type(error).__name__}: {error}", advice) from None
    finally:
        sys.dont_write_bytecode = writes
    return declarations.declared[before:]


def pick(pipelines: list[Pipeline], name: str | None, file: Path) -> Pipeline:
    """The pipeline that is meant."""
    names = [pipeline.name for pipeline in pipelines]
    if twice := sorted({each for each in names if names.count(each) > 1}):
        raise BadSetting(
            f"{file.name} declares the pipeline {twice[0]} twice",
            'Tell them apart with @skerry.pipeline(…, name="…").',
        )
    if not names:
        raise BadSetting(
            f"{file.name} declares no pipeline", "Write @skerry.pipeline(…) above a function."
        )
    if name is None and len(names) > 1:
        raise BadSetting(
            f"{file.name} declares {len(names)} pipelines",
            f"Name one: {file.name}:{names[0]}. There are {', '.join(names)}.",
        )
    if name is not None and name not in names:
        raise BadSetting(f"{file.name} declares no pipeline {name}", f"It has {', '.join(names)}.")
    return pipelines[names.index(name) if name is not None else 0]


def ship() -> None:
    """Have what workers need of the user's file sent to them, who do not have it."""
    from pyspark import cloudpickle

    if MODULE in sys.modules:
        cloudpickle.register_pickle_by_value(sys.modules[MODULE])  # type: ignore[no-untyped-call]


def _line(error: Exception, file: Path) -> str:
    if isinstance(error, SyntaxError):
        return f"{file.name}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(file)]
    return f"{file.name}, line {lines[-1]}" if lines else file.name
