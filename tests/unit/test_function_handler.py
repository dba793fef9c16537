"""Which function of a file is the handler, and how it is called."""

from __future__ import annotations

import functools
from typing import Any

import msgspec
import pytest

import skerry
from skerry.errors import BadSetting, FunctionBroken
from skerry.functions.context import AsyncContext, Context
from skerry.functions.frames import Task
from skerry.functions.handler import Unfit, find, made

TASK = Task(1, "a/b", 5, 10**18, None, {}, b'{"x": 1}')


def test_a_decorated_handler_stays_a_function() -> None:
    @skerry.function
    def plainly(ctx: Any, event: Any) -> None:
        ctx.append(event)

    @skerry.function(decode="json")
    def with_options(ctx: Any, event: Any) -> None:
        ctx.append(event)

    seen: list[int] = []
    plainly(seen, 1)
    with_options(seen, 2)
    assert seen == [1, 2]


def test_the_only_decorated_one_is_taken() -> None:
    @skerry.function
    def one(ctx: Any, event: Any) -> None: ...

    def helper(ctx: Any, event: Any) -> None: ...

    assert find({"helper": helper, "handler": helper, "one": one}, "").name == "one"
    assert find({"one": one, "other_name": one}, "").name in ("one", "other_name")
    assert find({"handler": helper}, "").name == "handler"
    assert find({"helper": helper}, "helper").name == "helper"


@pytest.mark.parametrize(
    ("names", "wanted"), [({}, ""), ({"handler": 7}, ""), ({}, "h"), ({"h": 7}, "h")]
)
def test_no_handler(names: dict[str, Any], wanted: str) -> None:
    with pytest.raises(FunctionBroken, match="no handler"):
        find(names, wanted)


def test_forms() -> None:
    def two(ctx: Any, event: Any) -> None: ...
    def three(topic: Any, index: Any, data: Any) -> None: ...
    def optional(ctx: Any, event: Any, limit: int = 3) -> None: ...
    async def later(ctx: Any, event: Any) -> None: ...

    @functools.wraps(three)
    def wrapped(*args: Any, **named: Any) -> None: ...

    class Object:
        def __call__(self, ctx: Any, event: Any) -> None: ...
        def method(self, ctx: Any, event: Any) -> None: ...

    for handler in (two, optional, Object(), Object().method):
        assert made("h", handler).context is Context
        made("h", handler).call(None, TASK)
    for plain in (three, wrapped):
        made("h", plain).call(None, TASK)
    assert made("h", later).context is AsyncContext
    made("h", later).call(None, TASK).close()


@pytest.mark.parametrize("count", [0, 1, 4])
def test_handlers_that_take_something_else(count: int) -> None:
    names = ", ".join("abcd"[:count])
    with pytest.raises(FunctionBroken, match=f"takes {count} arguments"):
        made("h", eval(f"lambda {names}: None"))


def test_what_the_forms_are_given() -> None:
    def three(topic: Any, index: Any, data: Any) -> None:
        seen.append((topic, index, data))

    def two(ctx: Any, event: Any) -> None:
        seen.append((ctx, event.topic, event.index, event.data, event.time.year))

    seen: list[Any] = []
    made("h", three).call("context", TASK)
    made("h", skerry.function(decode="json")(three)).call("context", TASK)
    made("h", two).call("context", TASK)
    assert seen == [
        ("a/b", 5, b'{"x": 1}'),
        ("a/b", 5, {"x": 1}),
        ("context", "a/b", 5, b'{"x": 1}', 2001),
    ]


def test_a_type_is_read_from_json() -> None:
    class Reading(msgspec.Struct):
        x: int

    seen: list[Any] = []

    @skerry.function(decode=Reading)
    def handler(ctx: Any, event: Any) -> None:
        seen.append(event.data)

    call = made("h", handler).call
    call(None, TASK)
    assert seen == [Reading(1)]
    with pytest.raises(Unfit, match="cannot be decoded as Reading: Object missing"):
        call(None, Task(1, "a", 1, 0, None, {}, b"{}"))


def test_an_unknown_way_to_decode() -> None:
    with pytest.raises(BadSetting, match="decode is bytes, text, json, msgpack or a type"):
        skerry.function(decode="xml")
