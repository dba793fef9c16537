"""Calls to JetStream's API, with its errors turned into ours.

Every call here may be repeated without harm, so that one which loses its connection, or meets an
engine that is still recovering its logs, is tried again until the deadline.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from skerry.engine.link import Down
from skerry.engine.wire import NO_RESPONDERS, Connection, Reply
from skerry.errors import EngineError, EventTooLarge, SkerryError, StorageFull

ATTEMPT = 0.5
ATTEMPT_MOST = 5.0
"""Seconds that the first attempt may take, and any; creating the 10 000th stream takes 10 ms
(measured). An engine that is about to open its logs gives no answer, so the first is short."""

NOT_ENABLED = 10039
"""The engine of a site in a fabric has just started, and its agent has not opened it yet."""
STREAM_NOT_FOUND = 10059
STREAM_EXISTS = 10058
SUBJECTS_OVERLAP = 10065
CONSUMER_NOT_FOUND = 10014
CONSUMER_EXISTS = 10148
MESSAGE_TOO_LARGE = 10054
NO_STORAGE = (10002, 10023, 10028, 10047, 10077)
"""The account's, the server's, memory or disk is used up, or a stream could not store."""


class ApiError(EngineError):
    """The engine refused a call. `code` is its number for the reason."""

    def __init__(self, code: int, description: str, call: str = "") -> None:
        super().__init__(f"the engine refused{' ' + call if call else ''}: {description} ({code})")
        self.code = code
        self.description = description


def error_of(body: dict[str, Any], call: str = "") -> SkerryError | None:
    """The error in an answer of the engine, as one of ours."""
    error = body.get("error")
    if not error:
        return None
    code, description = int(error.get("err_code", 0)), str(error.get("description", ""))
    if code == MESSAGE_TOO_LARGE:
        return EventTooLarge(
            "the event is larger than its topic takes",
            "Raise it with `skerry topic set … --max-event-bytes`, or split the payload.",
        )
    if code in NO_STORAGE:
        return StorageFull(
            f"the site has no room left ({description})",
            "Limit topics with `skerry topic set`, delete some, or raise --max-store.",
        )
    return ApiError(code, description, call)


class JetStream:
    """JetStream's API over one connection: of its own site, or of another that is linked.

    An engine that says that JetStream is not enabled is waited for, as it may be asleep; with
    `wakes` False nobody is there to wake it, and that is an error at once.
    """

    def __init__(
        self, connection: Connection, site: str | None = None, *, wakes: bool = True
    ) -> None:
        self.connection = connection
        self._wakes = wakes
        self.prefix = "$JS.API." if site is None else f"$JS.{site}.API."

    async def call(
        self, name: str, body: object = None, *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Ask for `name`; return the answer. Raises `ApiError` and its kin."""
        data = b"" if body is None else msgspec.json.encode(body)
        deadline = self.connection.now() + (timeout or self.connection.settings.timeout)
        while True:
            reply = await self.ask(self.prefix + name, data, timeout=timeout)
            answer: dict[str, Any] = msgspec.json.decode(reply.data)
            error = error_of(answer, name)
            if error is None:
                return answer
            is_asleep = isinstance(error, ApiError) and error.code == NOT_ENABLED
            if not (is_asleep and self._wakes) or self.connection.now() > deadline:
                raise error
            await asyncio.sleep(0.05)

    async def ask(
        self,
        subject: str,
        data: bytes = b"",
        head: bytes = b"",
        *,
        timeout: float | None = None,
        recovering: bool = True,
    ) -> Reply:
        """Request until answered. With `recovering`, nobody at `subject` means: not yet."""
        connection = self.connection
        deadline = connection.now() + (timeout or connection.settings.timeout)
        wait = 0.02
        attempt = ATTEMPT
        if timeout and timeout > connection.settings.timeout:
            attempt = timeout  # it is meant to take long
        while True:
            await connection.wait_up(deadline)
            left = deadline - connection.now()
            try:
                if left <= 0:
                    raise connection.unavailable()
                reply = await connection.request(subject, data, head, timeout=min(attempt, left))
            except Down:
                continue
            except TimeoutError:
                attempt = min(attempt * 2, ATTEMPT_MOST)
                continue
            if reply.status != NO_RESPONDERS or not recovering:
                return reply
            if connection.now() + wait >= deadline:
                raise connection.unavailable()
            await asyncio.sleep(wait)
            wait = min(wait * 2, 1.0)

    async def stream(self, name: str) -> dict[str, Any] | None:
        """A stream's configuration and state, or None if there is none."""
        try:
            return await self.call(f"STREAM.INFO.{name}")
        except ApiError as error:
            if error.code == STREAM_NOT_FOUND:
                return None
            raise

    async def streams(self) -> list[dict[str, Any]]:
        """Configuration and state of every stream."""
        return await self._pages("STREAM.LIST", {}, "streams")

    async def stream_names(self, subject: str | None = None) -> list[str]:
        """The names of every stream, or of those that take `subject`."""
        return await self._pages("STREAM.NAMES", {"subject": subject} if subject else {}, "streams")

    async def consumer(self, stream: str, name: str) -> dict[str, Any] | None:
        """A consumer's configuration and state, or None if there is none."""
        try:
            return await self.call(f"CONSUMER.INFO.{stream}.{name}")
        except ApiError as error:
            if error.code in (CONSUMER_NOT_FOUND, STREAM_NOT_FOUND):
                return None
            raise

    async def consumers(self, stream: str) -> list[dict[str, Any]]:
        """Configuration and state of every consumer of a stream; none if there is no such."""
        try:
            return await self._pages(f"CONSUMER.LIST.{stream}", {}, "consumers")
        except ApiError as error:
            if error.code == STREAM_NOT_FOUND:
                return []
            raise

    async def _pages(self, name: str, body: dict[str, Any], field: str) -> list[Any]:
        found: list[Any] = []
        while True:
            answer = await self.call(name, {**body, "offset": len(found)})
            page = answer.get(field) or []
            found += page
            if not page or len(found) >= answer.get("total", 0):
                return found
