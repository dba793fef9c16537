"""`@skerry.function`: what a user declares, and how it is found in a file and called.

    @skerry.function(decode="json")
    def hot(ctx, event):
        if event.data["degrees"] > 30:
            ctx.publish("alerts", {"sensor": event.topic, **event.data})

What is decorated stays the function that it was: tests may call it with a context of their own.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from types import CodeType, ModuleType
from typing import Any, TypeVar, overload

import msgspec

from skerry.errors import BadSetting, FunctionBroken
from skerry.functions.context import AsyncContext, Context, Event, entered
from skerry.functions.frames import Task

T = TypeVar("T", bound=Callable[..., Any])

MODULE = "skerry_function"
"""What the module of the user's code is called."""

_MARK = "__skerry_function__"
_DECODERS: dict[str, Callable[[bytes], Any] | None] = {
    "bytes": None,
    "text": bytes.decode,
    "json": msgspec.json.decode,
    "msgpack": msgspec.msgpack.decode,
}
_VARARGS, _GENERATOR, _COROUTINE, _ASYNC_GENERATOR = 0x04, 0x20, 0x80, 0x200


class Unfit(Exception):
    """Trying again would not help. Its text says why."""


class Handler:
    """A handler that was found: its name, and `call(context, task)`, which raises `Unfit`, or what
    the code raises. `context` is the kind of context that it takes. Where the result of `call` is
    not None it is to be awaited, and then checked with `nothing`."""

    def __init__(
        self,
        name: str,
        call: Callable[[Any, Task], Any],
        context: type[Context] = Context,
    ) -> None:
        self.name = name
        self.call = call
        self.context = context


@overload
def function(handler: T, /) -> T: ...
@overload
def function(*, decode: str | type = "bytes") -> Callable[[T], T]: ...
def function(handler: T | None = None, /, *, decode: str | type = "bytes") -> T | Callable[[T], T]:
    """Declare that `handler(ctx, event)`, plain or `async`, is a function of the fabric; so is
    `handler(topic, index, data)`.

    `decode` says what `event.data` is: `bytes`, `text`, `json` or `msgpack`, or a type that msgspec
    knows, such as a struct, which is then read from JSON. An event that cannot be decoded goes to
    the dead letters at once.
    """
    if isinstance(decode, str) and decode not in _DECODERS:
        raise BadSetting(
            f"decode is bytes, text, json, msgpack or a type, not {decode!r}",
            "A type is given as itself, without quotes.",
        )

    def mark(handler: T) -> T:
        setattr(handler, _MARK, decode)
        return handler

    return mark if handler is None else mark(handler)


def load(source: bytes, file: str, wanted: str) -> Handler:
    """Run the user's code and find its handler. What the code raises goes through; `FunctionBroken`
    if there is no handler. `file` is what traces call the code."""
    text = source.decode("utf-8", "replace")
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    module = ModuleType(MODULE)
    module.__file__ = file
    code: CodeType = compile(source, file, "exec", dont_inherit=True)
    sys.modules[MODULE] = module
    exec(code, module.__dict__)  # noqa: S102 - to run the user's code is what this is for
    return find(vars(module), wanted)


def find(names: dict[str, Any], wanted: str) -> Handler:
    """The handler among the names of a module: the one called `wanted`, or else the only one."""
    marked = {name: thing for name, thing in names.items() if hasattr(thing, _MARK)}
    marked = dict({id(thing): (name, thing) for name, thing in marked.items()}.values())
    if not marked and callable(names.get("handler")):
        marked = {"handler": names["handler"]}
    if wanted:
        found = marked.get(wanted) or names.get(wanted)
        if not callable(found):
            raise FunctionBroken(
                f"the code has no handler {wanted!r}",
                f"It has {', '.join(sorted(marked))}." if marked else _HOW,
            )
        return made(wanted, found)
    if not marked:
        raise FunctionBroken("the code has no handler", _HOW)
    if len(marked) > 1:
        raise FunctionBroken(
            f"the code has {len(marked)} handlers: {', '.join(sorted(marked))}",
            "Say which one with --handler.",
        )
    [(name, thing)] = marked.items()
    return made(name, thing)


_HOW = "Put @skerry.function above `def handler(ctx, event)`."


def made(name: str, handler: Callable[..., Any]) -> Handler:
    """What calls `handler` as its form wants."""
    decode = _decoder(getattr(handler, _MARK, "bytes"))
    count, flags = _form(handler)
    if flags & (_GENERATOR | _ASYNC_GENERATOR):
        raise FunctionBroken(
            f"the handler {name} yields", "Publish with ctx.publish, and return nothing."
        )
    if count not in (2, 3):
        raise FunctionBroken(
            f"the handler {name} takes {count} arguments",
            "It is def handler(ctx, event), or def handler(topic, index, data).",
        )

    def with_context(context: Context, task: Task) -> Any:
        data = task.data if decode is None else decode(task.data)
        result = handler(
            context,
            Event(task.topic, task.index, task.time_ns, task.key, task.headers, data, task.attempt),
        )
        return result if result is None else _unfinished(result)

    def plain(context: Context, task: Task) -> Any:
        data = task.data if decode is None else decode(task.data)
        entered(context)
        result = handler(task.topic, task.index, data)
        return result if result is None else _unfinished(result)

    return Handler(
        name,
        with_context if count == 2 else plain,
        AsyncContext if flags & _COROUTINE else Context,
    )


def _unfinished(result: Any) -> Any:
    return result if hasattr(result, "__await__") else nothing(result)


def nothing(result: Any) -> None:
    """Check that a handler returned nothing."""
    if result is not None:
        raise Unfit(
            f"the handler returned {type(result).__name__}: "
            "return nothing, and publish with ctx.publish"
        )


def _decoder(decode: str | type) -> Callable[[bytes], Any] | None:
    if isinstance(decode, str):
        way, what = _DECODERS[decode], decode
        if way is None:
            return None
    else:
        way, what = msgspec.json.Decoder(decode).decode, getattr(decode, "__name__", str(decode))
    return lambda data: _decoded(way, what, data)


def _decoded(way: Callable[[bytes], Any], what: str, data: bytes) -> Any:
    try:
        return way(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Unfit(f"the event cannot be decoded as {what}: {error}") from None


def _form(handler: Callable[..., Any]) -> tuple[int, int]:
    """How many arguments a handler takes, and the flags of its code. What takes any number, or is
    no plain function, is taken to want two."""
    inner: Any = handler
    flags = 0
    while (code := getattr(inner, "__code__", None)) is not None:
        flags |= code.co_flags & (_GENERATOR | _COROUTINE | _ASYNC_GENERATOR)
        if code.co_flags & _VARARGS and hasattr(inner, "__wrapped__"):
            inner = inner.__wrapped__
            continue
        optional = len(getattr(inner, "__defaults__", None) or ())
        count: int = code.co_argcount - (1 if hasattr(inner, "__self__") else 0)
        if code.co_flags & _VARARGS or count - optional <= 2 <= count:
            count = 2
        return count, flags
    return 2, flags
