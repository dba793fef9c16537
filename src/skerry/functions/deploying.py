"""Deploying a function: looked over, tried in a real worker, and only then written down."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from pathlib import Path
from typing import Any

import msgspec

from skerry.errors import BadSetting, FunctionBroken, SkerryError
from skerry.functions.code import Code, keep, look_over
from skerry.functions.frames import Setup
from skerry.functions.messages import DeployRequest
from skerry.functions.places import Places
from skerry.functions.preparing import Preparing
from skerry.functions.registry import UNKNOWN, Known, Registry
from skerry.functions.variables import check_variables
from skerry.model.functions import (
    AGAIN,
    DEAD,
    LOGS,
    REGISTRY,
    VERSIONS,
    Function,
    FunctionSettings,
    Version,
    check_function,
)

REPLICAS = 2
"""Copies of what belongs to all functions, if there are so many other sites."""
_OWN: dict[str, dict[str, Any]] = {
    REGISTRY: {"keep_last": 1},
    LOGS: {"max_bytes": 64 * 1024 * 1024},
    DEAD: {"max_bytes": 1024 * 1024 * 1024},
    AGAIN: {"max_events": 100_000},
}


async def make_topics(places: Places) -> None:
    """Have the topics of Skerry's own that functions need; with more replicas, if sites joined."""
    fitting = min(REPLICAS, len(places.peers()))
    for name, settings in _OWN.items():
        known = places.log(name)
        if known is None:
            await _make(places, name, settings, fitting)
        elif known.settings.replicas < fitting:
            with contextlib.suppress(SkerryError):  # a site is away: the next time, then
                await places.change(name, _copies(name, fitting))


async def _make(places: Places, name: str, settings: dict[str, Any], fitting: int) -> None:
    """Make a topic at the hub with as many replicas as fit."""
    for replicas in reversed(range(fitting + 1)):
        try:
            await places.make(name, {**settings, **_copies(name, replicas)}, places.hub)
            return
        except BadSetting:  # not so many sites are up
            if not replicas:
                raise


def _copies(name: str, replicas: int) -> dict[str, Any]:
    """With two replicas one of three sites may be lost, and writing goes on."""
    safe = name == REGISTRY and replicas >= REPLICAS
    return {"replicas": replicas, "ack": "quorum" if safe else "home"}


class Deployer:
    """Makes new versions of functions."""

    def __init__(
        self, registry: Registry, places: Places, preparing: Preparing, limit: int
    ) -> None:
        self._registry = registry
        self._places = places
        self._preparing = preparing
        self._limit = limit
        """Bytes of an event, at the most."""
        self._locks: dict[str, asyncio.Lock] = {}

    def lock(self, name: str) -> asyncio.Lock:
        """Held by whoever changes a function here, so that a request that is sent again finds what
        the first one did."""
        return self._locks.setdefault(check_function(name), asyncio.Lock())

    async def deploy(self, request: DeployRequest) -> tuple[Function, bool]:
        """A new version, and whether it is one: the same deployed twice is deployed once. Raises
        `FunctionBroken` if the code cannot be loaded, and `Conflict`; the version before goes on
        then."""
        async with self.lock(request.name):
            code = look_over(Path(request.file).name, request.code)
            is_first = self._places.log(REGISTRY) is None
            before = UNKNOWN if is_first else await self._registry.newest(request.name)
            current = before.function.current if before.function else None
            settings = self._settings(request, current)
            env, variables = await self._environment(request, current)
            path = keep(self._preparing.folder, code.digest, code.kind, code.data)
            python = await self._preparing.environments.python(code.requires)
            handler = await try_code(
                request.name, code, path, python, settings, request.handler, variables, self._limit
            )
            version = Version(
                number=before.last + 1,
                code=code.digest,
                kind=code.kind,
                handler=handler,
                settings=settings,
                requires=code.requires,
                env=env,
                site=self._places.site,
                deployed=time.time_ns(),
            )
            if before.function is not None and is_same(before.function.current, version):
                return before.function, False
            if env is None and variables:
                version = msgspec.structs.replace(
                    version, env=self._preparing.variables.add(variables)
                )
            await make_topics(self._places)
            if version.env is not None and (current is None or version.env != current.env):
                await self._preparing.give(version.env)
            await self._registry.put_code(code.digest, code.data)
            return await self.append(request.name, version, before), True

    async def rollback(self, name: str, to: int) -> tuple[Function, bool]:
        """An earlier version once more, as a new one."""
        async with self.lock(name):
            before, function = await self._registry.found(name)
            wanted = next((each for each in function.versions if each.number == to), None)
            if wanted is None:
                kept = ", ".join(str(each.number) for each in function.versions)
                raise BadSetting(
                    f"the function {name} has no version {to}", f"Kept are the versions {kept}."
                )
            if is_same(function.current, wanted):
                return function, False
            version = msgspec.structs.replace(
                wanted,
                number=before.last + 1,
                site=self._places.site,
                deployed=time.time_ns(),
            )
            return await self.append(name, version, before), True

    async def append(self, name: str, version: Version, before: Known = UNKNOWN) -> Function:
        """Write a version down behind the others."""
        old = before.function
        function = Function(
            name=name,
            versions=((*old.versions, version) if old else (version,))[-VERSIONS:],
            since=old.since if old else version.deployed,
            paused=old.paused if old else False,
        )
        await self._registry.put(function, before)
        return function

    async def pause(self, name: str, paused: bool) -> Function:
        """Have a function rest, or go on."""
        async with self.lock(name):
            before, function = await self._registry.found(name)
            if function.paused != paused:
                function = msgspec.structs.replace(function, paused=paused)
                await self._registry.put(function, before)
            return function

    def _settings(self, request: DeployRequest, current: Version | None) -> FunctionSettings:
        whole = msgspec.to_builtins(current.settings) if current else {}
        whole |= request.settings
        if "topic" not in whole:
            raise BadSetting(
                f"{request.name} is a new function, and nothing says which topic it is for",
                "Give --topic, such as --topic sensors/+.",
            )
        if unknown := request.settings.keys() - set(FunctionSettings.__struct_fields__):
            raise BadSetting(f"functions have no setting {', '.join(sorted(unknown))}")
        try:
            settings = msgspec.convert(whole, FunctionSettings).check()
        except msgspec.ValidationError as error:
            raise BadSetting(f"the settings of {request.name} are wrong: {error}") from None
        if settings.site is not None:
            self._places.check_site(settings.site)
        return settings

    async def _environment(
        self, request: DeployRequest, current: Version | None
    ) -> tuple[str | None, dict[str, str]]:
        """The name of variables that are kept, if they stay the same; and the variables."""
        env = current.env if current else None
        if request.env is None and env is not None and current is not None:
            await self._preparing.fetch(env, current.site)
        kept = None if env is None else self._preparing.variables.get(env)
        if request.env is None:
            return env, kept or {}
        variables = check_variables(request.env)
        return (env if variables == kept else None), variables


def is_same(one: Version, other: Version) -> bool:
    """Whether two versions do the same."""
    names = ("code", "kind", "handler", "settings", "requires", "env")
    return all(getattr(one, name) == getattr(other, name) for name in names)


def setup_of(
    name: str, code: Code, path: Path, settings: FunctionSettings, handler: str, limit: int
) -> Setup:
    """What a worker is told."""
    return Setup(
        function=name,
        kind=code.kind,
        path=str(path),
        handler=handler,
        order=settings.order,
        cpu=settings.cpu,
        max_event_bytes=limit,
    )


async def try_code(
    name: str,
    code: Code,
    path: Path,
    python: str,
    settings: FunctionSettings,
    handler: str,
    variables: dict[str, str],
    limit: int,
) -> str:
    """Load code in a worker of its own; return the handler's name. Raises `FunctionBroken`."""
    from skerry.functions.lane import Lane, Launch

    lane = Lane(
        Launch(
            setup=setup_of(name, code, path, settings, handler, limit),
            python=python,
            env=variables,
            memory=settings.memory,
            timeout=settings.timeout,
            network=settings.network,
        ),
        on_results=lambda results: None,
        on_end=lambda end: None,
        answer=_no_answer,
        on_text=lambda text: None,
    )
    try:
        return (await lane.start()).handler
    except FunctionBroken as error:
        raise broken(name, code, error) from None
    finally:
        await lane.close()


def broken(name: str, code: Code, error: FunctionBroken) -> FunctionBroken:
    """What is wrong with the code of a function, with the line of its file. Workers do not know
    how that is called."""
    lines = re.findall(rf'File "{re.escape(name)}\.py", line (\d+)', error.trace)
    place = f"{code.file}, line {lines[-1]}" if lines else code.file
    advice = error.advice or "Correct it and deploy again."
    if "No module named" in error.what and not error.advice:
        advice = (
            "What it depends on is declared at the top of the file: `# /// script`, "
            '`# dependencies = ["numpy"]`, `# ///`.'
        )
    return FunctionBroken(f"{place}: {error.what}", advice, error.trace)


async def _no_answer(ask: Any) -> Any:
    """Nothing is handled here, so nobody asks."""
    raise BadSetting("code asks nothing while it is loaded")
