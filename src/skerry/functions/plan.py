"""Which function runs on which log, and where. Pure, no I/O.

A function runs on every log that its topic means, in whole or in part: at the log's home, or at the
site that it is pinned to. What changes is told one by one, so that a fabric with many topics costs
no more than what changes.
"""

from __future__ import annotations

from skerry.functions.places import Log, is_for_functions
from skerry.model.functions import Function
from skerry.model.pattern import Pattern


def means(topic: str, log: str) -> bool:
    """Whether a function with that topic runs on a log."""
    return is_for_functions(log, topic) and Pattern.parse(topic).subjects(log) is not None


class Plan:
    """What runs where, as one site sees it."""

    def __init__(self, site: str) -> None:
        self.site = site
        self._functions: dict[str, Function] = {}
        self._logs: dict[str, Log] = {}
        self._matches: dict[str, set[str]] = {}
        """Of each function, the logs that it runs on."""

    def set_function(self, name: str, function: Function | None) -> None:
        """A function is new, changed, or gone (None)."""
        before = self._functions.get(name)
        if function is None:
            self._functions.pop(name, None)
            self._matches.pop(name, None)
            return
        self._functions[name] = function
        topic = function.current.settings.topic
        if before is None or before.current.settings.topic != topic:
            self._matches[name] = {log for log in self._logs if means(topic, log)}

    def set_log(self, name: str, log: Log | None) -> bool:
        """A topic is new, changed, or gone (None). Whether any function runs on it."""
        if log is None:
            self._logs.pop(name, None)
            concerned = [logs for logs in self._matches.values() if name in logs]
            for logs in concerned:
                logs.discard(name)
            return bool(concerned)
        is_new = name not in self._logs
        self._logs[name] = log
        if is_new:
            for function in self._functions.values():
                if means(function.current.settings.topic, name):
                    self._matches[function.name].add(name)
        return any(name in logs for logs in self._matches.values())

    def where(self, function: Function) -> dict[str, str]:
        """The logs that a function runs on, and the site where it does."""
        pinned = function.current.settings.site
        return {
            log: pinned or self._logs[log].home
            for log in sorted(self._matches.get(function.name, ()))
        }

    def here(self) -> list[tuple[Function, Log]]:
        """What is to run at this site."""
        return [
            (function, self._logs[log])
            for function in self._functions.values()
            if not function.paused
            for log, site in self.where(function).items()
            if site == self.site
        ]

    def near(self) -> list[Function]:
        """What may have to run at this site all of a sudden: functions on logs that it has replicas
        of."""
        return [
            function
            for function in self._functions.values()
            if not function.paused
            and function.current.settings.site in (None, self.site)
            and any(self.site in self._logs[log].members for log in self._matches[function.name])
        ]
