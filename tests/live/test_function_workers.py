"""Workers: what handlers do and get, and what bad ones cost."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

import msgspec
import pytest

import skerry
from skerry.errors import FunctionBroken, NotYet, UnknownTopic
from skerry.functions import lane as lanes
from skerry.functions import scratch
from skerry.functions.frames import Answer, Ask, Done, Failed, Published, Skipped, Task
from skerry.functions.lane import Lane
from skerry.model.functions import MAX_STATE_VALUE
from tests.conftest import until
from tests.live.function_lanes import MB, Bench

ECHO = """
    import skerry

    @skerry.function
    def handler(ctx, event):
        ctx.publish("out", event.data)
"""

COUNT = """
    import skerry

    @skerry.function
    def count(ctx, event):
        key = event.key or event.topic
        n = ctx.state.get(key, 0) + 1
        ctx.state[key] = n
        ctx.publish(f"out/{key}", str(n))
        if event.data == b"fail" and event.attempt == 1:
            raise ValueError("not yet")
        if event.data == b"die":
            import os
            os._exit(3)
"""


async def test_a_handler_sees_the_event_and_publishes(tmp_path: Path) -> None:
    code = """
        import skerry

        @skerry.function
        def handler(ctx, event):
            seen = [event.topic, event.index, event.time.isoformat(), event.key, event.headers,
                    event.data.decode(), event.attempt, ctx.function]
            ctx.publish("out/a", seen, key="k", headers={"X": "y"})
            ctx.publish("out/b", "text")
            ctx.publish("out/c", bytearray(b"raw"))
    """
    async with Bench(tmp_path, code) as bench:
        assert bench.ready.handler == "handler"
        done = await bench.done(b"data", key="room", attempt=2)
        seen = ["t", 1, "2001-09-09T01:46:40+00:00", "room", {"A": "b"}, "data", 2, "f"]
        assert done.published == (
            Published("out/a", msgspec.json.encode(seen), "k", {"X": "y"}),
            Published("out/b", b"text"),
            Published("out/c", b"raw"),
        )
        assert done.state == {}


@pytest.mark.parametrize(
    ("decode", "data", "seen"),
    [
        ("'text'", "grün".encode(), "grün"),
        ("'json'", b'{"a": [1]}', {"a": [1]}),
        ("'msgpack'", msgspec.msgpack.encode({"a": 1}), {"a": 1}),
        ("Reading", b'{"degrees": 21.5, "more": 1}', {"degrees": 21.5, "room": "hall"}),
    ],
)
async def test_data_is_decoded_as_declared(
    tmp_path: Path, decode: str, data: bytes, seen: object
) -> None:
    code = f"""
        import msgspec
        import skerry

        class Reading(msgspec.Struct):
            degrees: float
            room: str = "hall"

        @skerry.function(decode={decode})
        def handler(ctx, event):
            ctx.publish("out", [event.data])
    """
    async with Bench(tmp_path, code) as bench:
        assert await bench.says(data) == [seen]
        failed = await bench.fails(b"\xc1")
        assert failed.final
        assert "cannot be decoded as" in failed.error
        assert await bench.says(data) == [seen]  # a final failure holds nothing up


async def test_the_plain_form(tmp_path: Path) -> None:
    code = """
        from skerry.functions.context import current

        def handler(topic, index, data):
            current().publish("out", [topic, index, data.decode()])
    """
    async with Bench(tmp_path, code) as bench:
        assert await bench.says(b"x") == ["t", 1, "x"]


async def test_async_handlers_await_what_they_read(tmp_path: Path) -> None:
    code = """
        import asyncio
        import skerry

        left = []

        async def linger():
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                left.append("cancelled")

        @skerry.function
        async def handler(ctx, event):
            asyncio.create_task(linger())
            await asyncio.sleep(0)
            latest = await ctx.latest_index("other")
            one = await ctx.get("other", latest)
            all = [each.data.decode() async for each in ctx.read("other", 1)]
            ctx.publish("out", [one.data.decode(), all, left])
    """
    async with Bench(tmp_path, code) as bench:
        bench.answers = _other
        assert await bench.says() == ["c", ["a", "b", "c"], []]
        # What a handler leaves behind ends with it.
        assert await bench.says() == ["c", ["a", "b", "c"], ["cancelled"]]


def _other(ask: Ask) -> Answer:
    """A topic with three events, read two at a time; index 2 is another sub-topic's."""
    log = {1: b"a", 3: b"b", 4: b"c"}
    events: list[list[Any]] = [["other", n, 10**18, None, {}, data] for n, data in log.items()]
    match ask:
        case Ask("latest_index", ("other",)):
            return Answer(4)
        case Ask("get", ("other", index)):
            if index > 4:
                raise NotYet("no event 9 yet", "The latest is 4.")
            return Answer(events[-1])
        case Ask("read", ("other", first, last)):
            return Answer([each for each in events if first <= each[1] <= last][:2])
    raise UnknownTopic("no such topic", "Make it.")


async def test_handlers_read_other_topics_and_get_their_errors(tmp_path: Path) -> None:
    code = """
        import skerry

        @skerry.function(decode="text")
        def handler(ctx, event):
            if event.data == "read":
                some = [(each.index, each.data.decode()) for each in ctx.read("other", 2, 4)]
                return ctx.publish("out", [some, ctx.latest_index("other")])
            try:
                ctx.get("other", 9) if event.data == "get" else ctx.latest_index("nowhere")
            except skerry.errors.SkerryError as error:
                ctx.publish("out", [type(error).__name__, error.what, error.advice])
    """
    async with Bench(tmp_path, code) as bench:
        bench.answers = _other
        assert await bench.says(b"read") == [[[3, "b"], [4, "c"]], 4]
        assert await bench.says(b"get") == ["NotYet", "no event 9 yet", "The latest is 4."]
        assert await bench.says(b"") == ["UnknownTopic", "no such topic", "Make it."]


async def test_state_is_kept_and_what_fails_leaves_nothing(tmp_path: Path) -> None:
    async with Bench(tmp_path, COUNT) as bench:
        results = await bench.run(b"", b"", b"fail", b"")
        assert [type(each) for each in results] == [Done, Done, Failed, Skipped]
        assert msgspec.msgpack.decode(bench.state["t"]) == 2
        assert isinstance(results[2], Failed)
        assert results[2].error == "ValueError: not yet"
        assert 'File "f.py"' in results[2].trace
        assert "skerry/functions/worker.py" not in results[2].trace
        assert not results[2].final
        again = await bench.run(b"fail", b"", attempt=2)
        assert [each.published[0].data for each in again if isinstance(each, Done)] == [b"3", b"4"]
        assert len(bench.asked) == 1  # the rest is known in the worker


async def test_with_order_key_a_failure_holds_up_its_key_only(tmp_path: Path) -> None:
    async with Bench(tmp_path, COUNT, order="key") as bench:
        tasks = [("a", b""), ("b", b"fail"), ("a", b""), ("b", b""), ("c", b"")]
        bench.lane.give(
            [Task(n, "t", n, 0, key, {}, data) for n, (key, data) in enumerate(tasks, 1)]
        )
        await until(lambda: len(bench.results) == 5)
        kinds = [type(each) for each in bench.results]
        assert kinds == [Done, Failed, Done, Skipped, Done]
        bench.given = 5
        assert (await bench.done(b"fail", key="b", attempt=2)).published[0].data == b"1"
        assert (await bench.done(key="b")).published[0].data == b"2"


async def test_with_order_none_nothing_is_held_up(tmp_path: Path) -> None:
    code = """
        def handler(ctx, event):
            if event.data == b"state":
                ctx.state["n"] = 1
            if event.data == b"fail":
                raise ValueError
    """
    async with Bench(tmp_path, code, order="none") as bench:
        kinds = [type(each) for each in await bench.run(b"", b"fail", b"", b"fail", b"")]
        assert kinds == [Done, Failed, Done, Failed, Done]
        assert "order 'none' has no state" in (await bench.fails(b"state")).error


async def test_a_new_worker_goes_on_with_the_state(tmp_path: Path) -> None:
    async with Bench(tmp_path, COUNT) as bench:
        await bench.run(b"", b"")
        bench.give(b"", b"", b"die", b"")
        end = await bench.end()
        assert end == lanes.End(5, "exited with code 3")
        state = dict(bench.state)
        # What came of events before it may be lost, never of some without those before them.
        known = len(bench.results)
        assert msgspec.msgpack.decode(state["t"]) == known
        assert bench.lane.waiting == 6 - known
    async with Bench(tmp_path, COUNT) as second:
        second.state = state
        assert (await second.done()).published[0].data == str(known + 1).encode()


async def test_keys_of_the_state(tmp_path: Path) -> None:
    code = """
        def handler(ctx, event):
            state, said = ctx.state, []
            said.append("a" in state)
            said.append(state.setdefault("a", [1]))
            state["a"].append(2)              # of a copy
            said.append(state["a"])
            said.append(state.pop("a"))
            said.append(state.get("a", "none"))
            for wrong in (lambda: state["a"], lambda: list(state), lambda: state[1],
                          lambda: state.__delitem__("b"), lambda: state.get("k" * 513)):
                try:
                    wrong()
                except Exception as error:
                    said.append(type(error).__name__)
            ctx.publish("out", said)
    """
    async with Bench(tmp_path, code) as bench:
        said = await bench.says()
        assert said[:5] == [False, [1], [1], [1], "none"]
        assert said[5:] == ["KeyError", "TypeError", "BadSetting", "KeyError", "BadSetting"]
        done = bench.results[0]
        assert isinstance(done, Done)
        assert done.state == {"a": None}


async def test_with_order_key_only_the_events_own_state_is_used(tmp_path: Path) -> None:
    code = """
        def handler(ctx, event):
            ctx.state[event.data.decode()] = 1
    """
    async with Bench(tmp_path, code, order="key") as bench:
        assert "may use the state of 'a' only" in (await bench.fails(b"b", key="a")).error
        assert (await bench.done(b"a", key="a", attempt=2)).state == {"a": b"\x01"}
        assert (await bench.done(b"t")).state == {"t": b"\x01"}  # without a key: its topic


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("ctx.publish('a b', b'')", "BadName"),
        ("ctx.publish('functions/registry', b'')", "Skerry's own"),
        ("ctx.publish('out', 7)", "an event holds bytes, text, a dict or a list, not int"),
        ("ctx.publish('out', b'', key='a\\nb')", "cannot travel in a header"),
        ("ctx.publish('out', b'', headers={'Nats-Msg-Id': 'x'})", "Skerry's own"),
        ("ctx.publish('out', bytes(2_000_000))", "EventTooLarge"),
        ("[ctx.publish('out', bytes(1_000_000)) for _ in range(20)]", "EventTooLarge"),
        ("ctx.state['k'] = bytes(70_000)", f"{MAX_STATE_VALUE} at most are kept"),
        ("ctx.state['k'] = object()", "TypeError"),
        ("import sys; sys.exit(3)", "the handler called sys.exit(3)"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise Exception('one\\ntwo')", "Exception: one"),
        ("raise Exception('\\udcff')", "Exception: ?"),
        ("ctx.state['\\udcff'] = 1", "UnicodeEncodeError"),
        ("ctx.publish('out', b'', key='\\udcff')", "UnicodeEncodeError"),
        ("for n in range(400): ctx.state[str(n)] = bytes(60_000)", "EventTooLarge"),
        ("raise type('E', (Exception,), {'__str__': lambda self: 1 / 0})", "E: (its text"),
        ("f = lambda: f(); f()", "RecursionError"),
    ],
)
async def test_what_a_handler_may_not_do_fails_its_event(
    tmp_path: Path, code: str, error: str
) -> None:
    text = f"def handler(ctx, event):\n    if event.data:\n        {code}\n"
    async with Bench(tmp_path, text) as bench:
        failed = await bench.fails(b"x")
        assert error in failed.error
        assert "\n" not in failed.error
        assert not failed.final
        assert (await bench.done(b"")).published == ()


@pytest.mark.parametrize("form", ["def", "async def"])
async def test_garbage_that_is_returned(tmp_path: Path, form: str) -> None:
    code = f"""
        {form} handler(ctx, event):
            ctx.publish("out", b"")
            return {{"a": 1}} if event.data else None
    """
    async with Bench(tmp_path, code) as bench:
        failed = await bench.fails(b"x")
        assert failed.final
        expected = "the handler returned dict: return nothing, and publish with ctx.publish"
        assert failed.error == expected
        await bench.done()


@pytest.mark.parametrize(
    ("code", "what", "advice"),
    [
        ("def handler(ctx, event)\n    pass", "SyntaxError", ""),
        ("x = 1", "the code has no handler", "@skerry.function"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'", ""),
        ("1 / 0", "ZeroDivisionError", ""),
        ("raise SystemExit(4)", "the code called sys.exit(4) when it was loaded", ""),
        ("import os; os._exit(4)", "exited with code 4 while its code was loaded", ""),
        ("def handler(a): pass", "the handler handler takes 1 arguments", "ctx, event"),
        ("def handler(ctx, event): yield 1", "the handler handler yields", "ctx.publish"),
        ("import skerry\n@skerry.function(decode='xml')\ndef f(c, e): ...", "decode is", ""),
        ("import skerry\n@skerry.function\ndef a(c, e): ...\n@skerry.function\ndef b(c, e): ...",
         "the code has 2 handlers: a, b", "--handler"),
        ("\0", "", ""),
        ("x = bytes(1 << 40)\ndef handler(c, e): ...", "MemoryError", ""),
    ],
)  # fmt: skip
async def test_code_that_cannot_be_loaded(
    tmp_path: Path, code: str, what: str, advice: str
) -> None:
    with pytest.raises(FunctionBroken) as broken:
        async with Bench(tmp_path, code):
            pass
    assert what in broken.value.what
    assert advice in broken.value.advice


async def test_a_trace_says_where_loading_failed(tmp_path: Path) -> None:
    with pytest.raises(FunctionBroken) as broken:
        async with Bench(tmp_path, "x = 1\nimport no_such_module\n"):
            pass
    assert 'File "f.py", line 2' in broken.value.trace
    assert "import no_such_module" in broken.value.trace


async def test_what_was_printed_says_why_loading_ended(tmp_path: Path) -> None:
    with pytest.raises(FunctionBroken) as broken:
        async with Bench(tmp_path, "import os\nprint('no licence')\nos._exit(4)\n"):
            pass
    assert broken.value.trace == "no licence\n"


async def test_the_deployer_names_one_of_several_handlers(tmp_path: Path) -> None:
    code = """
        import skerry

        @skerry.function
        def one(ctx, event): ctx.publish("out", ["one"])

        @skerry.function
        def two(ctx, event): ctx.publish("out", ["two"])
    """
    async with Bench(tmp_path, code, handler="two") as bench:
        assert await bench.says() == ["two"]
    with pytest.raises(FunctionBroken, match="no handler 'three'"):
        async with Bench(tmp_path, code, handler="three"):
            pass


async def test_code_that_loads_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "LOADING", 0.5)
    with pytest.raises(FunctionBroken, match=r"not loaded within 0\.5 s"):
        async with Bench(tmp_path, "while True: pass"):
            pass


async def test_an_interpreter_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FunctionBroken, match="cannot be started"):
        async with Bench(tmp_path, ECHO, python=str(tmp_path / "python")):
            pass


@pytest.mark.parametrize(
    "code", ["import time; time.sleep(3600)", "while True: pass"], ids=["sleeps", "loops"]
)
async def test_a_handler_without_an_end(tmp_path: Path, code: str) -> None:
    text = f"def handler(ctx, event):\n    if event.data:\n        {code}\n"
    async with Bench(tmp_path, text, timeout=1.5) as bench:
        bench.give(b"", b"", b"x", b"")
        assert await bench.end() == lanes.End(3, "took longer than 1.5 s")


async def test_cpu_time_is_limited_and_sleeping_is_none(tmp_path: Path) -> None:
    code = """
        import time

        def handler(ctx, event):
            if event.data:
                while True: pass
            time.sleep(0.3)
    """
    async with Bench(tmp_path, code, cpu=0.2) as bench:
        await bench.run(b"", b"")
        bench.give(b"x")
        assert await bench.end() == lanes.End(3, "used more than 0.2 s of CPU time")


async def test_the_time_of_answers_is_not_the_handlers(tmp_path: Path) -> None:
    code = """
        def handler(ctx, event):
            ctx.publish("out", [ctx.latest_index("t")])
    """
    async with Bench(tmp_path, code, timeout=1.5) as bench:

        async def slowly(ask: Ask) -> Answer:
            await asyncio.sleep(2.0)
            return Answer(5)

        bench.lane._answer = slowly
        assert await bench.says() == [5]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("os._exit(3)", "exited with code 3"),
        ("os.abort()", "was killed by signal 6 (SIGABRT)"),
        ("os.kill(os.getpid(), 11)", "was killed by signal 11 (SIGSEGV)"),
        ("ctypes.string_at(0)", "was killed by signal 11 (SIGSEGV)"),
        ("os.closerange(3, 100); time.sleep(60)", "closed its connection to the host"),
        ("os.write(sock, b'\\xff' * 100)", "broke its contract with the host"),
    ],
)
async def test_a_crash_is_put_down_to_its_event(tmp_path: Path, code: str, reason: str) -> None:
    text = f"""
        import ctypes, os, stat, time

        sock = next(fd for fd in range(3, 99)
                    if os.path.exists(f"/proc/self/fd/{{fd}}")
                    and stat.S_ISSOCK(os.fstat(fd).st_mode))

        def handler(ctx, event):
            if event.data:
                {code}
    """
    async with Bench(tmp_path, text) as bench:
        bench.give(b"", b"", b"x", b"")
        end = await bench.end()
        assert reason in end.reason
        # Whoever wrote to the socket behind our back may be at the next one, or at none.
        assert end.number == 3 or (end.number and "contract" in reason)
        assert bench.lane.waiting >= 2


async def test_what_a_worker_forges_is_not_taken(tmp_path: Path) -> None:
    """The code can get at everything in its process. Beyond it, the host's checks hold."""
    code = """
        from skerry.functions.context import Context
        from skerry.functions.frames import Published

        def handler(ctx, event):
            ctx._published.append(Published(event.data.decode(), b"evil"))
    """
    async with Bench(tmp_path, code) as bench:
        await bench.done(b"out")
        bench.give(b"out", b"functions/registry", b"out")
        end = await bench.end()
        assert "Skerry's own" in end.reason
        assert end.number == 3
        assert len(bench.results) == 2


async def test_a_worker_that_is_killed(tmp_path: Path) -> None:
    code = """
        import time

        def handler(ctx, event):
            if event.data:
                print("begun")
                time.sleep(3600)
    """
    async with Bench(tmp_path, code) as bench:
        await bench.done()
        bench.give(b"", b"x")
        await until(lambda: "begun" in bench.text)
        assert bench.lane._process is not None
        os.kill(bench.lane._process.pid, signal.SIGKILL)
        end = await bench.end()
        assert end.number == 3
        assert "signal 9" in end.reason
    async with Bench(tmp_path, code) as bench:
        assert bench.lane._process is not None
        os.kill(bench.lane._process.pid, signal.SIGKILL)
        assert (await bench.end()).number == 0


async def test_a_lane_that_is_closed_says_nothing_more(tmp_path: Path) -> None:
    code = "def handler(ctx, event):\n    while True: print('x')\n"
    async with Bench(tmp_path, code) as bench:
        bench.give(b"")
        await until(lambda: bool(bench.text))
        process = bench.lane._process
        assert process is not None
        await bench.lane.close()
        lines = len(bench.text)
        assert not Path(f"/proc/{process.pid}").exists()
        assert not Path(process.folder).exists()
        bench.give(b"")
    assert bench.ended == []
    assert bench.results == []
    assert len(bench.text) == lines


async def test_megabytes_of_output_cost_nothing_but_their_lines(tmp_path: Path) -> None:
    code = """
        import os, sys

        def handler(ctx, event):
            if event.data:
                for n in range(100_000):
                    print("line", n, "x" * 50)
                os.write(2, b"y" * 1_000_000)
                print()
            ctx.log("done " + str(event.index))
    """
    async with Bench(tmp_path, code) as bench:
        await bench.run(b"x", b"")
        await until(lambda: any("left out" in line for line in bench.text))
        assert bench.text[0].startswith("line 0 ")
        assert sum(map(len, bench.text)) < 1_000_000
        await until(lambda: _logs(bench))


async def _logs(bench: Bench) -> bool:
    await bench.done()
    return any(line.startswith("done") for line in bench.text)


async def test_what_is_logged_arrives_also_of_an_event_that_fails(tmp_path: Path) -> None:
    code = """
        import sys

        def handler(ctx, event):
            ctx.log("logged")
            print("printed")
            print("to stderr", file=sys.stderr)
            sys.stdout.write("half a line")
            1 / 0
    """
    async with Bench(tmp_path, code) as bench:
        await bench.fails()
        await until(lambda: len(bench.text) >= 3)
        assert sorted(bench.text[:3]) == ["logged", "printed", "to stderr"]


async def test_many_large_tasks_do_not_wait_for_a_worker_that_does_not_read(
    tmp_path: Path,
) -> None:
    code = """
        import time

        def handler(ctx, event):
            if event.index == 1:
                time.sleep(0.2)
            ctx.publish("out", event.data)
    """
    async with Bench(tmp_path, code) as bench:
        data = os.urandom(500_000)
        results = await bench.run(*([data] * 40))
        assert all(isinstance(each, Done) for each in results)
        assert {each.published[0].data for each in results if isinstance(each, Done)} == {data}


async def test_tasks_are_numbered_from_one_on(tmp_path: Path) -> None:
    async with Bench(tmp_path, ECHO) as bench:
        with pytest.raises(ValueError, match="task 2 does not follow 0"):
            bench.lane.give([Task(2, "t", 1, 0, None, {}, b"")])
        await bench.done()


async def test_variables_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "x")
    code = """
        import os

        def handler(ctx, event):
            ctx.publish("out", [os.environ.get("SECRET_OF_THE_HOST"), os.environ.get("MINE")])
    """
    async with Bench(tmp_path, code, env={"MINE": "yes"}) as bench:
        assert await bench.says() == [None, "yes"]


async def test_memory_is_limited_and_a_new_worker_has_room(tmp_path: Path) -> None:
    code = """
        leak = []

        def handler(ctx, event):
            leak.append(bytearray(40_000_000))
    """
    async with Bench(tmp_path, code, memory=128 * MB) as bench:
        bench.give(b"", b"", b"", b"", b"")
        end = await bench.end()
        assert end == lanes.End(0, "needed more than 128 MB")
        failed = bench.results[-1]
        assert isinstance(failed, Failed)
        assert failed.error.startswith("MemoryError")
        assert bench.lane.waiting == 5 - len(bench.results) > 0


async def test_workers_die_with_their_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is busy, and reads nothing; its folder goes with the next host."""
    (tmp_path / "host.py").write_text(
        "import asyncio, os, sys\n"
        "from pathlib import Path\n"
        "from tests.live.function_lanes import Bench\n"
        "async def main():\n"
        "    code = 'def handler(ctx, event):\\n    print(1)\\n    while True: pass\\n'\n"
        f"    async with Bench(Path({str(tmp_path)!r}), code) as bench:\n"
        "        bench.give(b'')\n"
        "        while not bench.text: await asyncio.sleep(0.01)\n"
        "        print(bench.lane._process.pid, bench.lane._process.folder, flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    host = await asyncio.create_subprocess_exec(
        sys.executable, str(tmp_path / "host.py"), stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(_paths()), "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert host.stdout is not None
    number, name = (await host.stdout.readline()).split()
    pid, folder = int(number), Path(name.decode())
    assert Path(f"/proc/{pid}").exists()
    host.kill()
    await host.wait()
    await until(lambda: _is_gone(pid))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    scratch._own.cache_clear()
    scratch.sweep()
    assert folder.exists()  # it is young
    monkeypatch.setattr(scratch, "YOUNG", -1.0)
    async with Bench(tmp_path, ECHO) as bench:
        assert bench.lane._process is not None
        own = Path(bench.lane._process.folder)
        scratch.sweep()
        assert not folder.parent.exists()
        assert own.is_relative_to(tmp_path)
        assert own.exists()
    scratch._own.cache_clear()


def _paths() -> list[str]:
    return [str(Path(str(skerry.__file__)).parents[1]), str(Path(__file__).parents[2])]


def _is_gone(pid: int) -> bool:
    """Gone, or waiting for whoever is to take note of it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


async def test_a_worker_does_not_import_the_client(tmp_path: Path) -> None:
    code = """
        import sys
        import skerry

        @skerry.function
        def handler(ctx, event):
            ctx.publish("out", [name for name in sys.modules if name.startswith("skerry.")])
    """
    async with Bench(tmp_path, code) as bench:
        names = await bench.says()
        assert "skerry.functions.worker" in names
        assert not {"skerry.client", "skerry.engine.wire", "skerry.log.append"} & set(names)


async def test_a_lane_may_be_closed_while_it_starts(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "import time\ntime.sleep(3600)\n")
    start = asyncio.create_task(bench.lane.start())
    await until(lambda: bench.lane._process is not None)
    await bench.lane.close()
    with pytest.raises(FunctionBroken):
        await start
    other: Lane = Bench(tmp_path, ECHO).lane
    await other.close()


async def test_an_environment_of_its_own(tmp_path: Path) -> None:
    """It has what is installed there, and Skerry, and nothing else of the site's."""
    venv.create(tmp_path / "env", with_pip=False)
    [packages] = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (packages / "mine.py").write_text("x = 7\n")
    code = """
        import sys
        import mine
        import msgspec
        import skerry

        try:
            import lark
        except ImportError:
            lark = None

        @skerry.function(decode="json")
        def handler(ctx, event):
            ctx.publish("out", [mine.x, lark is None, sys.prefix])
    """
    python = tmp_path / "env" / "bin" / "python"
    async with Bench(tmp_path, code, python=str(python)) as bench:
        assert await bench.says(b"1") == [7, True, str(tmp_path / "env")]
        assert "files" in bench.ready.confined


async def test_names_may_be_of_an_enumeration(tmp_path: Path) -> None:
    code = """
        import enum

        class Name(str, enum.Enum):
            OUT = "out"

        class Data(bytes): ...

        def handler(ctx, event):
            ctx.publish(Name.OUT, Data(b"x"), key=Name.OUT, headers={Name.OUT: Name.OUT})
    """
    async with Bench(tmp_path, code) as bench:
        assert (await bench.done()).published == (Published("out", b"x", "out", {"out": "out"}),)


async def test_a_worker_that_is_stuck_between_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "STUCK", 1.0)
    code = """
        import ctypes, os, threading, time

        libc = ctypes.PyDLL(None)

        def hold():
            time.sleep(2)  # what came of the event has been told by then
            os.write(1, b"holding\\n")
            libc.sleep(3600)  # and lets nobody else run

        def handler(ctx, event):
            threading.Thread(target=hold, daemon=True).start()
    """
    async with Bench(tmp_path, code, timeout=1.5) as bench:
        await bench.done()
        await until(lambda: "holding" in bench.text)
        await asyncio.sleep(0.5)  # from saying so to doing so
        bench.give(b"")
        assert await bench.end() == lanes.End(0, "did not take its next event for 2.5 s")


async def test_a_state_that_is_larger_than_the_workers_memory(tmp_path: Path) -> None:
    code = """
        def handler(ctx, event):
            key = str(event.index % 1500)
            assert ctx.state.get(key, b"")[:1] == (b"" if event.index <= 1500 else b"x")
            ctx.state[key] = b"x" * 60_000
    """
    async with Bench(tmp_path, code, memory=48 * MB) as bench:
        results = await bench.run(*[b""] * 1600)
        assert [each for each in results if not isinstance(each, Done)] == []
        assert len(bench.state) == 1500
