"""The agent's services: what a client asks the site to decide (see `skerry.model.control`)."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, overload

import msgspec

from skerry import errors
from skerry.engine.link import Down
from skerry.engine.wire import Connection
from skerry.errors import SkerryError
from skerry.fabric.tasks import Tasks
from skerry.model.control import Answer, Fault
from skerry.model.names import INBOX

log = logging.getLogger("skerry.site")

T = TypeVar("T")
_INBOX = f"{INBOX}.".encode()


class Service(NamedTuple):
    """What answers a request: `function`, called with the body decoded as `kind`."""

    kind: Any
    function: Callable[..., object]


class Control:
    """Serves requests on one connection."""

    def __init__(self, connection: Connection, site: str) -> None:
        self.is_alone = True
        """Whether this site is in no fabric; then what is missing needs one."""
        self._connection = connection
        self._prefix = f"_sk.{site}."
        self._services: dict[str, Service] = {}
        self._tasks = Tasks("a service")

    @overload
    def serve(self, name: str, kind: None, function: Callable[[], object]) -> None: ...

    @overload
    def serve(self, name: str, kind: type[T], function: Callable[[T], object]) -> None: ...

    def serve(self, name: str, kind: Any, function: Callable[..., object]) -> None:
        """Answer requests to `name` (`open.status`) with what `function` returns, at once or
        awaited. It is given the request, of type `kind`; None: the request has no body."""
        self._services[name] = Service(kind, function)

    def open(self) -> None:
        """Begin to answer. Whoever asks earlier finds nobody and asks again; a service that is
        missing for a moment would be an error."""
        self._connection.subscribe(self._prefix + ">", self._on_request)

    async def close(self) -> None:
        """Stop serving; requests under way are dropped, and their clients ask again."""
        await self._tasks.close()

    def _on_request(self, subject: bytes, reply: bytes, head: bytes, data: bytes) -> None:
        name = subject.decode()[len(self._prefix) :]
        if reply.startswith(_INBOX):  # nobody is answered into a log or the directory
            self._tasks.spawn(self._answer(name, reply.decode(), data))

    async def call(self, name: str, data: bytes) -> bytes:
        """What `name` answers, as JSON, without a detour through the engine."""
        kind, function = self._service(name)
        answer = function() if kind is None else function(msgspec.json.decode(data, type=kind))
        if inspect.isawaitable(answer):
            answer = await answer
        return msgspec.json.encode(answer)

    def _service(self, name: str) -> Service:
        service = self._services.get(name)
        if service is None and self.is_alone:
            raise errors.NotInFabric(
                "this site stands alone, and that needs a fabric",
                "Begin one with `skerry fabric init`, or join one with `skerry up --join`.",
            )
        if service is None:
            raise errors.BadSetting(
                f"this site has no service {name}", "Is it of an older version, or in no fabric?"
            )
        return service

    async def _answer(self, name: str, reply: str, data: bytes) -> None:
        try:
            answer = Answer(ok=msgspec.Raw(await self.call(name, data)))
        except SkerryError as error:
            answer = Answer(error=Fault(type(error).__name__, error.what, error.advice))
        except msgspec.DecodeError as error:
            answer = Answer(error=Fault("BadSetting", f"the request cannot be read: {error}"))
        except Exception:
            log.exception("the service %s failed", name)
            answer = Answer(
                error=Fault("SkerryError", f"the service {name} failed; see the site's log")
            )
        try:
            self._connection.publish(reply, msgspec.json.encode(answer))
        except Down:
            log.warning("the connection was lost before %s was answered", name)
