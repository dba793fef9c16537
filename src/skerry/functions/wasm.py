"""Functions in WebAssembly: code that one need not trust, with a memory of its own.

A module exports `memory`, `alloc(size) -> address` and `handle(topic, topic_length, index: i64,
data, data_length) -> i32`, 0 if all went well. It may import, from `skerry`, what `_IMPORTS` lists,
and nothing else: there is no WASI. Addresses and lengths are i32. An instance handles one event
after the other, until it fails: then there is a new one. docs/function-code.md says it at length.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from skerry.errors import FunctionBroken, get_extra
from skerry.functions.context import Context
from skerry.functions.frames import Setup, Task
from skerry.functions.handler import Handler

try:
    import wasmtime
    from wasmtime import Func, Memory, Store, ValType
except ImportError as error:
    raise FunctionBroken("this site cannot run WebAssembly", get_extra("wasm")) from error

FUEL = 1_000_000_000
"""Units that one event may use, about one an instruction: a second or so."""

_MODULE = "skerry"
_IMPORTS = {"publish": (4, 0), "log": (2, 0), "state_get": (4, 1), "state_set": (4, 0)}
_EXPORTS = {"alloc": (["i32"], ["i32"]), "handle": (["i32", "i32", "i64", "i32", "i32"], ["i32"])}
_TRAPS = {
    "OUT_OF_FUEL": "it used up its fuel: is there an endless loop?",
    "UNREACHABLE": "it gave up (unreachable)",
    "MEMORY_OUT_OF_BOUNDS": "it went beyond its memory",
    "STACK_OVERFLOW": "its stack is full",
}


class WasmFailure(Exception):
    """The module failed; the first line of its text says how, the others where."""


def load(source: bytes, setup: Setup, memory: int) -> Handler:
    """Compile a module, binary or text, and make an instance that may have `memory` bytes."""
    config = wasmtime.Config()
    config.consume_fuel = True
    config.parallel_compilation = False
    config.memory_init_cow = False  # it would take memory that a worker may not have
    engine = wasmtime.Engine(config)
    try:
        module = wasmtime.Module(engine, source)
    except (wasmtime.WasmtimeError, UnicodeDecodeError) as error:
        raise FunctionBroken(f"this is no WebAssembly: {_first(error)}", trace=str(error)) from None
    _check(module)
    guest = _Guest(engine, module, setup.fuel or FUEL, memory)
    try:
        guest.renew()
    except WasmFailure as error:
        raise FunctionBroken(f"the module cannot start: {_first(error)}") from None
    return Handler("handle", guest.handle)


class _Guest:
    """A module, and the instance of it that there is now."""

    def __init__(
        self, engine: wasmtime.Engine, module: wasmtime.Module, fuel: int, memory: int
    ) -> None:
        self._engine = engine
        self._module = module
        self._fuel = fuel
        self._most = memory
        self._context: Context | None = None
        self._fresh = False
        """Whether the instance has not failed."""
        self._store: Store
        self._memory: Memory
        self._alloc: Func
        self._handle: Func
        self._linker = wasmtime.Linker(engine)
        calls: dict[str, Callable[..., Any]] = {
            "publish": self._publish,
            "log": self._log,
            "state_get": self._state_get,
            "state_set": self._state_set,
        }
        for name, (takes, gives) in _IMPORTS.items():
            kind = wasmtime.FuncType([ValType.i32()] * takes, [ValType.i32()] * gives)
            self._linker.define_func(_MODULE, name, kind, calls[name])

    def renew(self) -> None:
        """Have a new instance."""
        self._store = Store(self._engine)
        self._store.set_limits(memory_size=self._most, table_elements=100_000, instances=1)
        exports = self._run(
            lambda: self._linker.instantiate(self._store, self._module).exports(self._store)
        )
        self._memory, self._alloc, self._handle = (
            exports["memory"], exports["alloc"], exports["handle"]
        )  # fmt: skip
        self._fresh = True

    def handle(self, context: Context, task: Task) -> None:
        """Have the instance handle an event."""
        if not self._fresh:
            self.renew()
        self._context = context
        self._fresh = False
        code = self._run(lambda: self._call(task.topic.encode(), task.index, task.data))
        self._fresh = True
        if code != 0:
            raise WasmFailure(f"handle returned {code}")

    def _call(self, topic: bytes, index: int, data: bytes) -> Any:
        # One call for both: calls cost more than what they do.
        at: int = self._alloc(self._store, len(data) + len(topic)) & 0xFFFFFFFF
        self._write(at, data + topic)
        return self._handle(self._store, at + len(data), len(topic), index, at, len(data))

    def _run(self, step: Callable[[], Any]) -> Any:
        self._store.set_fuel(self._fuel)
        try:
            return step()
        except wasmtime.Trap as trap:
            code = trap.trap_code
            what = _TRAPS.get(code.name) if code is not None else None
            what = what or trap.message.rpartition("wasm trap: ")[2].strip()
            raise WasmFailure(f"{what}\n{trap.message}") from None
        except wasmtime.WasmtimeError as error:
            raise WasmFailure(str(error).strip()) from None

    def _read(self, at: int, length: int) -> bytes:
        at, length = at & 0xFFFFFFFF, length & 0xFFFFFFFF
        if at + length > self._memory.data_len(self._store):
            raise WasmFailure(f"{length} bytes at {at} are beyond its memory")
        return ctypes.string_at(self._address + at, length)

    def _write(self, at: int, data: bytes) -> None:
        if at + len(data) > self._memory.data_len(self._store):
            raise WasmFailure(f"{len(data)} bytes at {at} are beyond its memory")
        ctypes.memmove(self._address + at, data, len(data))

    @property
    def _address(self) -> int:
        """Where its memory is now: it moves when it grows."""
        address = ctypes.cast(self._memory.data_ptr(self._store), ctypes.c_void_p).value
        assert address is not None
        return address

    def _text(self, at: int, length: int) -> str:
        try:
            return self._read(at, length).decode()
        except UnicodeDecodeError:
            raise WasmFailure("a name that it gave is no UTF-8") from None

    # What the module may import.

    def _publish(self, topic: int, topic_length: int, data: int, length: int) -> None:
        self._now.publish(self._text(topic, topic_length), self._read(data, length))

    def _log(self, at: int, length: int) -> None:
        self._now.log(self._read(at, length).decode("utf-8", "replace"))

    def _state_get(self, key: int, key_length: int, out: int, room: int) -> int:
        value = self._now.state.get(self._key(key, key_length))
        if value is None:
            return -1
        if isinstance(value, str):
            value = value.encode()
        if not isinstance(value, bytes):
            raise WasmFailure(f"the state holds {type(value).__name__}, not bytes")
        self._write(out & 0xFFFFFFFF, value[: room & 0xFFFFFFFF])
        return len(value)

    def _state_set(self, key: int, key_length: int, value: int, length: int) -> None:
        self._now.state[self._key(key, key_length)] = self._read(value, length)

    def _key(self, at: int, length: int) -> str:
        """The key of the state that is meant; an empty one is the event's own."""
        return self._text(at, length) or self._now._key

    @property
    def _now(self) -> Context:
        if self._context is None:
            raise WasmFailure("it cannot use the site before there is an event")
        return self._context


def _check(module: wasmtime.Module) -> None:
    for each in module.imports:
        if each.module != _MODULE or each.name not in _IMPORTS:
            raise FunctionBroken(
                f"the module imports {each.module}.{each.name}, which there is not",
                f"It may import {', '.join(_IMPORTS)} from {_MODULE!r}; build it without WASI.",
            )
    found = {each.name: each.type for each in module.exports}
    if not isinstance(found.get("memory"), wasmtime.MemoryType):
        raise FunctionBroken("the module does not export its memory", 'Export it as "memory".')
    for name, (takes, gives) in _EXPORTS.items():
        kind = found.get(name)
        if not isinstance(kind, wasmtime.FuncType):
            raise FunctionBroken(
                f"the module does not export {name}", f"It is {name}({', '.join(takes)}) -> i32."
            )
        if [*map(str, kind.params)] != takes or [*map(str, kind.results)] != gives:
            raise FunctionBroken(
                f"{name} has other parameters or results than it must have",
                f"It is {name}({', '.join(takes)}) -> i32.",
            )


def _first(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
