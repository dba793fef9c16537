"""What a function needs before it can run at a site: its code, its environment, its journal."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from skerry.errors import FunctionBroken, SkerryError, Unavailable
from skerry.functions.assignment import Assignment
from skerry.functions.code import is_kept, keep, kept_at, look_over
from skerry.functions.environments import Environments
from skerry.functions.messages import EnvAnswer, EnvRequest
from skerry.functions.places import Log, Places, make_journal
from skerry.functions.registry import Registry
from skerry.functions.variables import Variables
from skerry.model.functions import Function, Version

log = logging.getLogger("skerry.functions")

ASK_TIME = 3.0
"""Seconds that another site may take to answer."""


class Preparing:
    """Brings what functions need to one site."""

    def __init__(self, folder: Path, places: Places) -> None:
        self.folder = folder
        self.environments = Environments(folder)
        self.variables = Variables(folder)
        self._places = places

    async def assignment(self, registry: Registry, function: Function, log: Log) -> Assignment:
        """All that the host needs to run a function on a log. Raises what is in the way."""
        version = function.current
        code, python, env = await self.version(registry, version)
        return Assignment(
            function=function.name,
            version=version,
            log=log.name,
            journal=await make_journal(self._places, function.name, log),
            since=function.since,
            code=str(code),
            python=python,
            env=None if env is None else str(env),
        )

    async def version(self, registry: Registry, version: Version) -> tuple[Path, str, Path | None]:
        """A version's code, interpreter and variables, as files of this site."""
        if not is_kept(self.folder, version.code, version.kind):
            data = await registry.code(version.code)
            keep(self.folder, version.code, version.kind, data)
        path = kept_at(self.folder, version.code, version.kind)
        declared = look_over(path.name, path.read_bytes()).requires
        if declared != version.requires:
            raise FunctionBroken(
                f"its code declares other dependencies ({', '.join(declared) or 'none'}) than "
                f"the registry says ({', '.join(version.requires) or 'none'})",
                "Nothing is installed. Deploy it again.",
            )
        python = await self.environments.python(declared)
        env = None
        if version.env is not None:
            await self.fetch(version.env, version.site)
            env = self.variables.path(version.env)
        return path, python, env

    # Variables, which are in no topic

    async def fetch(self, env: str, deployed_at: str) -> None:
        """Have variables here, from whichever site has them."""
        if self.variables.get(env) is not None:
            return
        peers = self._places.peers()
        likely = [site for site in (self._places.hub, deployed_at) if site in peers]
        for site in dict.fromkeys([*likely, *peers]):
            try:
                data = await self._places.ask(
                    site, "peer.function.env.get", EnvRequest(env), ASK_TIME
                )
            except SkerryError:
                continue
            found = msgspec.json.decode(data, type=EnvAnswer).variables
            if found is not None:
                self.variables.put(env, found)
                return
        raise Unavailable(
            "no site that can be reached has the variables of its environment",
            "They were given with --env-file; deploy it again, or start the site that has them.",
        )

    async def give(self, env: str) -> None:
        """Have other sites keep variables as well; those that are away ask for them later."""
        request = EnvRequest(env, self.variables.get(env))
        for site in self._places.peers():
            try:
                await self._places.ask(site, "peer.function.env.put", request, ASK_TIME)
            except SkerryError as error:
                log.info("site %s has not got a function's variables: %s", site, error.what)

    def take(self, request: EnvRequest) -> None:
        """Another site's agent gives us variables."""
        if request.variables is not None:
            self.variables.put(request.env, request.variables)

    def tell(self, request: EnvRequest) -> EnvAnswer:
        """Another site's agent asks for variables."""
        return EnvAnswer(self.variables.get(request.env))
