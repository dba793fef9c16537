"""Something that runs, and may be killed or stopped at any moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec

from skerry.sim.rules.clock import Clock

P = ParamSpec("P")


class Process:
    """A crash loses what is not durable, and every timer; a pause loses nothing, but the world
    goes on meanwhile, and whatever came in is handled late and all at once."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self.clock = clock
        self.up = True
        self.paused = False
        self._life = 0
        self._backlog: list[tuple[Callable[..., None], tuple[object, ...]]] = []

    def __repr__(self) -> str:
        return self.name

    def after(self, delay: int, call: Callable[P, None], *args: P.args, **none: P.kwargs) -> None:
        """Set a timer, which a crash forgets."""
        self.clock.after(delay, self._ring, self._life, call, args)

    def _ring(self, life: int, call: Callable[..., None], args: tuple[object, ...]) -> None:
        if life == self._life:
            self.receive(call, args)

    def receive(self, call: Callable[..., None], args: tuple[object, ...]) -> None:
        """Handle a message or timer, now or when the pause is over."""
        if self.paused:
            self._backlog.append((call, args))
        elif self.up:
            call(*args)

    def crash(self) -> None:
        """Be killed: only what is durable remains."""
        self.up = self.paused = False
        self._life += 1
        self._backlog.clear()
        self.forget()

    def restart(self) -> None:
        """Run again after a crash."""
        if not self.up:
            self.up = True
            self.start()

    def pause(self) -> None:
        """Stand still."""
        self.paused = self.up

    def resume(self) -> None:
        """Go on, with what came in meanwhile first."""
        self.paused = False
        backlog, self._backlog = self._backlog, []
        for call, args in backlog:
            self.receive(call, args)

    def start(self) -> None:
        """What the process does when it begins to run."""

    def forget(self) -> None:
        """Lose what is not durable."""
