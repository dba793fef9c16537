"""A network that delays, loses, doubles, reorders, and is cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import ParamSpec

from skerry.sim.rules.clock import Clock
from skerry.sim.rules.process import Process

P = ParamSpec("P")


@dataclass
class Weather:
    """How bad the network is."""

    usual: int = 8
    """Milliseconds that most messages take at most."""
    slow: float = 0.0
    """The share of messages that take much longer, …"""
    slowest: int = 300
    """… up to so many milliseconds."""
    lost: float = 0.0
    """The share of messages that never arrive."""
    doubled: float = 0.0
    """The share of messages that arrive twice."""


class Channel:
    """Messages that arrive in order. Once one is lost, so are all after it."""

    def __init__(self) -> None:
        self.broken = False
        self.due = 0


class Network:
    """Carries calls from process to process. Without a channel any two may change places."""

    def __init__(
        self, clock: Clock, random: Random, weather: Weather, trace: list[str] | None = None
    ) -> None:
        self.clock = clock
        self.random = random
        self.weather = weather
        self.trace = trace
        self._cuts: dict[tuple[str, str], int] = {}

    def note(self, text: str) -> None:
        """Write a line into the trace, if one is kept."""
        if self.trace is not None:
            self.trace.append(f"{self.clock.now:6} {text}")

    def cut(self, some: Iterable[Process], others: Iterable[Process], both: bool = True) -> None:
        """Let nothing through from some processes to others, nor back. Cuts add up."""
        there = list(others)
        for one in some:
            for other in there:
                for pair in ((one.name, other.name), (other.name, one.name))[: 1 + both]:
                    self._cuts[pair] = self._cuts.get(pair, 0) + 1

    def mend(self, some: Iterable[Process], others: Iterable[Process], both: bool = True) -> None:
        """Take one cut back."""
        there = list(others)
        for one in some:
            for other in there:
                for pair in ((one.name, other.name), (other.name, one.name))[: 1 + both]:
                    left = self._cuts.get(pair, 0) - 1
                    if left > 0:
                        self._cuts[pair] = left
                    else:
                        self._cuts.pop(pair, None)

    def heal(self) -> None:
        """Take back every cut, and lose nothing from now on."""
        self._cuts.clear()
        self.weather = Weather(usual=self.weather.usual)

    def _delay(self) -> int:
        weather, random = self.weather, self.random.random
        most = weather.slowest if weather.slow and random() < weather.slow else weather.usual
        return 1 + int(random() * most)

    def _passes(self, source: Process, target: Process) -> bool:
        if (source.name, target.name) in self._cuts:
            return False
        lost = self.weather.lost
        return not lost or self.random.random() >= lost

    def send(
        self,
        source: Process,
        target: Process,
        call: Callable[P, None],
        *args: P.args,
        **none: P.kwargs,
    ) -> None:
        """Make a call at another process, some time, or never, or twice."""
        if not self._passes(source, target):
            if self.trace is not None:
                self.note(f"{source} → {target} LOST {call.__name__}{args}")
            return
        self.clock.after(self._delay(), self._arrive, source, target, call, args)
        doubled = self.weather.doubled
        if doubled and self.random.random() < doubled:
            self.clock.after(self._delay(), self._arrive, source, target, call, args)

    def stream(
        self,
        channel: Channel,
        source: Process,
        target: Process,
        call: Callable[P, None],
        *args: P.args,
        **none: P.kwargs,
    ) -> None:
        """Make a call at another process, after all those of the same channel before it."""
        if channel.broken or not self._passes(source, target):
            channel.broken = True
            if self.trace is not None:
                self.note(f"{source} → {target} BROKEN {call.__name__}{args}")
            return
        channel.due = max(channel.due, self.clock.now + self._delay())
        delay = channel.due - self.clock.now
        self.clock.after(delay, self._arrive, source, target, call, args)

    def _arrive(
        self,
        source: Process,
        target: Process,
        call: Callable[..., None],
        args: tuple[object, ...],
    ) -> None:
        if self.trace is not None:
            how = "" if target.up and not target.paused else " LATE" if target.up else " DEAD"
            self.note(f"{source} → {target}{how} {call.__name__}{args}")
        target.receive(call, args)
