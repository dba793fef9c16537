"""WebAssembly functions: what they do, and what bad ones cost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import wasmtime

from skerry.errors import FunctionBroken
from skerry.functions.frames import Done, Published, Result
from tests.conftest import until
from tests.live.function_lanes import MB, Bench

HEAD = """
    (import "skerry" "publish" (func $publish (param i32 i32 i32 i32)))
    (import "skerry" "log" (func $log (param i32 i32)))
    (import "skerry" "state_get" (func $get (param i32 i32 i32 i32) (result i32)))
    (import "skerry" "state_set" (func $set (param i32 i32 i32 i32)))
    (memory (export "memory") 2)
    (data (i32.const 0) "outn")
    (global $top (mut i32) (i32.const 1024))
    (func (export "alloc") (param $size i32) (result i32)
        (local $at i32)
        (local.set $at (global.get $top))
        (global.set $top (i32.add (global.get $top) (local.get $size)))
        (local.get $at))
"""


def module(handle: str, head: str = HEAD) -> str:
    """A module whose `handle` does this; it forgets what was allocated when it ends."""
    return f"""(module {head}
        (func (export "handle")
            (param $topic i32) (param $topic_length i32) (param $index i64)
            (param $data i32) (param $length i32) (result i32)
            {handle}
            (global.set $top (i32.const 1024))
            (i32.const 0)))"""


ECHO = module("""
    (call $publish (i32.const 0) (i32.const 3) (local.get $data) (local.get $length))
    (call $publish (i32.const 0) (i32.const 3) (local.get $topic) (local.get $topic_length))
""")

# Counts in four bytes under the key "n", and publishes them.
COUNT = module("""
    (drop (call $get (i32.const 3) (i32.const 1) (i32.const 16) (i32.const 4)))
    (i32.store (i32.const 16) (i32.add (i32.load (i32.const 16)) (i32.const 1)))
    (call $set (i32.const 3) (i32.const 1) (i32.const 16) (i32.const 4))
    (call $publish (i32.const 0) (i32.const 3) (i32.const 16) (i32.const 4))
""")


def when_asked(bad: str) -> str:
    """Do something bad if the event has data."""
    return module(f"(if (local.get $length) (then {bad}))")


async def test_echo(tmp_path: Path) -> None:
    async with Bench(tmp_path, ECHO, kind="wasm") as bench:
        assert bench.ready.handler == "handle"
        assert (await bench.done(b"hello", topic="a/b")).published == (
            Published("out", b"hello"),
            Published("out", b"a/b"),
        )
        assert (await bench.done(b"")).published[0] == Published("out", b"")


async def test_binary_modules_are_taken_as_well(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "", kind="wasm")
    Path(bench.launch.setup.path).write_bytes(bytes(wasmtime.wat2wasm(ECHO)))
    async with bench:
        assert (await bench.done(b"hello")).published[0].data == b"hello"


async def test_a_counter_with_state(tmp_path: Path) -> None:
    async with Bench(tmp_path, COUNT, kind="wasm") as bench:
        assert _counts(await bench.run(b"", b"", b"")) == [1, 2, 3]
        state = bench.state
    async with Bench(tmp_path, COUNT, kind="wasm") as bench:
        bench.state = state
        assert _counts(await bench.run(b"")) == [4]


def _counts(results: list[Result]) -> list[int]:
    return [
        int.from_bytes(each.published[0].data, "little")
        for each in results
        if isinstance(each, Done)
    ]


async def test_with_order_key_the_empty_key_is_the_events_own(tmp_path: Path) -> None:
    code = module("(call $set (i32.const 0) (i32.const 0) (local.get $data) (local.get $length))")
    async with Bench(tmp_path, code, kind="wasm", order="key") as bench:
        assert list((await bench.done(b"x", key="room")).state) == ["room"]
    async with Bench(tmp_path, COUNT, kind="wasm", order="key") as bench:
        assert "may use the state of 'room' only" in (await bench.fails(key="room")).error


async def test_what_it_logs(tmp_path: Path) -> None:
    code = module("(call $log (local.get $data) (local.get $length))")
    async with Bench(tmp_path, code, kind="wasm") as bench:
        await bench.run(b"one", b"two")
        await until(lambda: len(bench.text) >= 2)  # text takes another way than results
        assert bench.text == ["one", "two"]


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ("(loop $for_ever (br $for_ever))", "it used up its fuel: is there an endless loop?"),
        ("unreachable", "it gave up (unreachable)"),
        ("(drop (i32.load (i32.const 0x7fffffff)))", "it went beyond its memory"),
        ("(return (i32.const 7))", "handle returned 7"),
        ("(drop (i32.div_s (i32.const 1) (i32.const 0)))", "divide by zero"),
        ("(call $log (i32.const -1) (i32.const 5))", "are beyond its memory"),
        ("(call $log (i32.const 0) (i32.const -1))", "are beyond its memory"),
        ("(call $publish (i32.const 900) (i32.const 3) (i32.const 0) (i32.const 0))", "BadName"),
    ],
)
async def test_traps_fail_their_event_only(tmp_path: Path, bad: str, error: str) -> None:
    code = when_asked(bad)
    async with Bench(tmp_path, code, kind="wasm", fuel=1_000_000) as bench:
        assert error in (await bench.fails(b"x")).error
        await bench.done(b"")


async def test_after_a_trap_there_is_a_new_instance(tmp_path: Path) -> None:
    """What the failed one left in its memory is gone."""
    code = module("""
        (i32.store (i32.const 16) (i32.add (i32.load (i32.const 16)) (i32.const 1)))
        (call $publish (i32.const 0) (i32.const 3) (i32.const 16) (i32.const 4))
        (if (local.get $length) (then unreachable))
    """)
    async with Bench(tmp_path, code, kind="wasm") as bench:
        assert _counts(await bench.run(b"", b"")) == [1, 2]
        await bench.fails(b"x")
        assert _counts(await bench.run(b"", b"", attempt=2)) == [1, 2]


async def test_memory_is_limited(tmp_path: Path) -> None:
    code = module("""
        (local $last i32)
        (loop $more
            (local.set $last (memory.grow (i32.const 16)))
            (br_if $more (i32.ge_s (local.get $last) (i32.const 0))))
        (i32.store (i32.const 16) (memory.size))
        (call $publish (i32.const 0) (i32.const 3) (i32.const 16) (i32.const 4))
    """)
    async with Bench(tmp_path, code, kind="wasm", memory=128 * MB) as bench:
        [pages] = _counts(await bench.run(b""))
        assert 16 * MB < pages * 65536 <= 128 * MB
        await bench.done()


async def test_fuel_is_counted_by_event(tmp_path: Path) -> None:
    code = module("""
        (local $n i32)
        (loop $again
            (local.set $n (i32.add (local.get $n) (i32.const 1)))
            (br_if $again (i32.lt_s (local.get $n) (i32.const 10000))))
    """)
    async with Bench(tmp_path, code, kind="wasm", fuel=100_000) as bench:
        assert {type(each) for each in await bench.run(*[b""] * 20)} == {Done}


@pytest.mark.parametrize(
    ("code", "what", "advice"),
    [
        ("(module", "this is no WebAssembly", ""),
        ("\x00asm\x01", "this is no WebAssembly", ""),
        ("(module)", "does not export its memory", "memory"),
        ('(module (memory (export "memory") 1))', "does not export alloc", "alloc(i32) -> i32"),
        (f"(module {HEAD})", "does not export handle", "handle(i32, i32, i64, i32, i32) -> i32"),
        (f'(module {HEAD} (func (export "handle") (param i32)))', "other parameters", ""),
        ('(module (import "wasi_snapshot_preview1" "fd_write" (func)))',
         "imports wasi_snapshot_preview1.fd_write", "without WASI"),
        ('(module (import "skerry" "publish" (func (param i64))) (memory (export "memory") 1))',
         "", ""),
        (module("", HEAD.replace('"memory") 2', '"memory") 60000')), "cannot start", ""),
        (module("", HEAD + "(func $go unreachable) (start $go)"), "cannot start", ""),
        (module("", HEAD + "(func $go (loop $a (br $a))) (start $go)"), "used up its fuel", ""),
        (module("", HEAD + "(func $go (call $log (i32.const 0) (i32.const 3))) (start $go)"),
         "before there is an event", ""),
    ],
)  # fmt: skip
async def test_modules_that_cannot_be_loaded(
    tmp_path: Path, code: str, what: str, advice: str
) -> None:
    with pytest.raises(FunctionBroken) as broken:
        async with Bench(tmp_path, code, kind="wasm", fuel=1_000_000):
            pass
    assert what in broken.value.what
    assert advice in broken.value.advice


def _example(language: str) -> str:
    page = (Path(__file__).parents[2] / "docs" / "function-code.md").read_text()
    [block] = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
    return str(block)


async def test_the_examples_of_the_documentation(tmp_path: Path) -> None:
    async with Bench(tmp_path, _example("wat"), kind="wasm") as bench:
        assert (await bench.done(b"hello")).published == (Published("copies", b"hello"),)
    async with Bench(tmp_path, _example("python")) as bench:
        assert (await bench.done(b'{"degrees": 20}', topic="roof")).published == ()
        assert (await bench.says(b'{"degrees": 90}', topic="roof")) == {
            "sensor": "roof",
            "degrees": 90.0,
        }
