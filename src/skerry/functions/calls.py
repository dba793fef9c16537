"""What a client does with functions: the methods that `Client` has of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from skerry.errors import BadSetting
from skerry.functions.code import read_file
from skerry.functions.messages import (
    DeployAnswer,
    DeployRequest,
    FunctionInfo,
    FunctionName,
    ReplayAnswer,
    ReplayRequest,
    RollbackRequest,
)
from skerry.log.frames import new_id
from skerry.model.functions import Function, check_function

DEPLOY_TIME = 400.0
"""Seconds that a deployment may take: it installs what the code depends on."""
CHANGE_TIME = 60.0


class FunctionCalls:
    """Functions, as a client sees them."""

    async def _ask(self, service: str, body: object = None, timeout: float | None = None) -> bytes:
        raise NotImplementedError

    async def deploy_function(
        self,
        file: str | Path,
        name: str | None = None,
        *,
        handler: str = "",
        env: dict[str, str] | None = None,
        **settings: Any,
    ) -> DeployAnswer:
        """Deploy a file of code as a function, or as a new version of one; needs the
        administrator's credentials.

        `settings` are those of `FunctionSettings`, by name; the first version needs a `topic`. What
        is not given stays as it was, `env` too, which holds the variables of its environment. The
        code is loaded in a worker first: if that fails, `FunctionBroken` is raised and the version
        before goes on. `Conflict`: somebody else deployed at the same time.
        """
        path = Path(file)
        code = read_file(path)
        request = DeployRequest(
            name=check_function(path.stem if name is None else name),
            file=path.name,
            code=code.data,
            settings=settings,
            handler=handler,
            env=env,
        )
        data = await self._ask("admin.function.deploy", request, timeout=DEPLOY_TIME)
        return msgspec.json.decode(data, type=DeployAnswer)

    async def functions(self) -> list[FunctionInfo]:
        """All functions of the site, in a fabric of all sites, by name; and how they are."""
        data = await self._ask("open.function.list")
        return msgspec.json.decode(data, type=list[FunctionInfo])

    async def function(self, name: str) -> FunctionInfo:
        """A function, where it runs, and how it is. Raises `UnknownFunction`."""
        data = await self._ask("open.function.show", FunctionName(check_function(name)))
        return msgspec.json.decode(data, type=FunctionInfo)

    async def pause_function(self, name: str) -> Function:
        """Have a function rest; needs the administrator's credentials. Events wait for it."""
        return await self._change("pause", name)

    async def resume_function(self, name: str) -> Function:
        """Have a function go on where it was; needs the administrator's credentials."""
        return await self._change("resume", name)

    async def _change(self, what: str, name: str) -> Function:
        request = FunctionName(check_function(name))
        data = await self._ask(f"admin.function.{what}", request, timeout=CHANGE_TIME)
        return msgspec.json.decode(data, type=Function)

    async def rollback_function(self, name: str, to: int | None = None) -> DeployAnswer:
        """Have an earlier version again, by default the one before, as a new one; needs the
        administrator's credentials."""
        if to is None:
            versions = (await self.function(name)).function.versions
            if len(versions) < 2:
                raise BadSetting(f"the function {name} has no earlier version")
            to = versions[-2].number
        request = RollbackRequest(check_function(name), to)
        data = await self._ask("admin.function.rollback", request, timeout=CHANGE_TIME)
        return msgspec.json.decode(data, type=DeployAnswer)

    async def remove_function(self, name: str) -> None:
        """Remove a function with its state and all its versions; needs the administrator's
        credentials. What it published stays."""
        request = FunctionName(check_function(name))
        await self._ask("admin.function.remove", request, timeout=CHANGE_TIME)

    async def replay_function(
        self,
        name: str,
        *,
        dead: bool = False,
        topic: str | None = None,
        from_index: int | None = None,
        to_index: int | None = None,
    ) -> ReplayAnswer:
        """Have a function handle events once more; needs the administrator's credentials.

        With `dead`, its dead letters that were not replayed yet, of `topic` or of all; else the
        events of `topic` from `from_index` to `to_index`, by default up to the latest.
        """
        request = ReplayRequest(
            name=check_function(name), dead=dead, log=topic, first=from_index, last=to_index,
            id=new_id(),
        )  # fmt: skip
        data = await self._ask("admin.function.replay", request, timeout=CHANGE_TIME)
        return msgspec.json.decode(data, type=ReplayAnswer)
