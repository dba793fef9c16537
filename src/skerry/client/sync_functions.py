"""Functions in the synchronous face; see `skerry.functions.calls`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skerry.client.client import Client
    from skerry.client.sync import _Loop
    from skerry.functions.messages import DeployAnswer, FunctionInfo, ReplayAnswer
    from skerry.model.functions import Function


class SyncFunctionCalls:
    """Functions, as a synchronous client sees them."""

    _client: Client
    _loop: _Loop

    def deploy_function(
        self,
        file: str | Path,
        name: str | None = None,
        *,
        handler: str = "",
        env: dict[str, str] | None = None,
        **settings: Any,
    ) -> DeployAnswer:
        """Deploy a file of code as a function, or as a new version of one; needs the
        administrator's credentials."""
        return self._loop.run(
            self._client.deploy_function(file, name, handler=handler, env=env, **settings)
        )

    def functions(self) -> list[FunctionInfo]:
        """All functions of the site, in a fabric of all sites, by name; and how they are."""
        return self._loop.run(self._client.functions())

    def function(self, name: str) -> FunctionInfo:
        """A function, where it runs, and how it is."""
        return self._loop.run(self._client.function(name))

    def pause_function(self, name: str) -> Function:
        """Have a function rest; events wait for it."""
        return self._loop.run(self._client.pause_function(name))

    def resume_function(self, name: str) -> Function:
        """Have a function go on where it was."""
        return self._loop.run(self._client.resume_function(name))

    def rollback_function(self, name: str, to: int | None = None) -> DeployAnswer:
        """Have an earlier version again, as a new one."""
        return self._loop.run(self._client.rollback_function(name, to))

    def remove_function(self, name: str) -> None:
        """Remove a function with its state and all its versions. What it published stays."""
        self._loop.run(self._client.remove_function(name))

    def replay_function(
        self,
        name: str,
        *,
        dead: bool = False,
        topic: str | None = None,
        from_index: int | None = None,
        to_index: int | None = None,
    ) -> ReplayAnswer:
        """Have a function handle events once more: dead letters, or those of a topic."""
        return self._loop.run(
            self._client.replay_function(
                name, dead=dead, topic=topic, from_index=from_index, to_index=to_index
            )
        )
