"""What the user's code may do to the machine, and that it cannot do more.

Each of these handlers says what came of its attempts; the site goes on whatever they are.
"""

from __future__ import annotations

import os
import resource
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.functions import confine, lane, process
from skerry.functions.frames import SCRATCH
from tests.conftest import until
from tests.live.function_lanes import MB, Bench

TRY = '''
    import skerry

    def attempt(what, *args):
        """Its result, or the name of the error."""
        try:
            return what(*args)
        except Exception as error:
            return type(error).__name__
'''


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


async def test_all_of_it_is_in_force_here(tmp_path: Path) -> None:
    async with Bench(tmp_path, "def handler(ctx, event): pass") as bench:
        assert bench.ready.confined == ("memory", "scratch", "rights", "files", "calls")


async def test_processes_cannot_be_started(tmp_path: Path) -> None:
    code = (
        TRY
        + """
    import multiprocessing, os, subprocess, sys

    def handler(ctx, event):
        ctx.publish("out", [
            attempt(os.fork),
            attempt(subprocess.run, ["/bin/true"]),
            attempt(os.system, "true"),
            attempt(os.execv, "/bin/true", ["true"]),
            attempt(os.posix_spawn, "/bin/true", ["true"], {}),
            attempt(multiprocessing.get_context("spawn").Process(target=print).start),
        ])
    """
    )
    async with Bench(tmp_path, code) as bench:
        said = await bench.says()
        assert said[:2] == ["PermissionError", "PermissionError"]
        assert said[2] != 0
        assert said[3:5] == ["PermissionError", "PermissionError"]
        assert isinstance(said[5], str)


async def test_a_fork_bomb_is_one_failed_event_after_the_other(tmp_path: Path) -> None:
    code = """
        import os

        def handler(ctx, event):
            if event.data:
                while True:
                    os.fork()
    """
    async with Bench(tmp_path, code) as bench:
        assert "PermissionError" in (await bench.fails(b"x")).error
        await bench.done()
        assert _tasks(bench) == 1


def _tasks(bench: Bench) -> int:
    assert bench.lane._process is not None
    return len(os.listdir(f"/proc/{bench.lane._process.pid}/task"))


async def test_threads_may_be_started_but_not_without_end(tmp_path: Path) -> None:
    code = """
        import threading, time

        def handler(ctx, event):
            if event.data:
                threading.stack_size(32768)
                for n in range(1000):
                    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
            said = []
            one = threading.Thread(target=said.append, args=("ran",))
            one.start()
            one.join()
            ctx.publish("out", said)
    """
    async with Bench(tmp_path, code) as bench:
        assert await bench.says() == ["ran"]
        bench.give(b"x")
        assert (await bench.end()).reason == f"had more than {lane.THREADS} threads"


async def test_work_between_events_is_limited_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "LOOK", 0.2)
    code = """
        import threading

        def spin():
            while True: pass

        def handler(ctx, event):
            threading.Thread(target=spin, daemon=True).start()
    """
    async with Bench(tmp_path, code, timeout=2.0) as bench:
        await bench.done()
        end = await bench.end()
        assert end == lane.End(0, "used more than 2 s of CPU time between events")


async def test_files_of_others_are_out_of_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "site" / "keys"
    secret.parent.mkdir()
    secret.write_text("secret")
    code = (
        TRY
        + f"""
    import os
    from pathlib import Path

    SECRET = Path({str(secret)!r})

    def handler(ctx, event):
        ctx.publish("out", [
            attempt(SECRET.read_text),
            attempt(SECRET.write_text, "x"),
            attempt(os.listdir, SECRET.parent),
            attempt(os.unlink, SECRET),
            attempt(os.rename, SECRET, "mine"),
            attempt(os.link, SECRET, "mine"),
            attempt(os.truncate, SECRET, 0),
            attempt(os.listdir, {str(Path.home())!r}),
            attempt(os.listdir, "/"),
            attempt(Path("/etc/shadow").read_text),
            attempt(Path("/proc/1/environ").read_bytes),
            attempt(Path(__import__("json").__file__).write_text, ""),
            attempt(Path("/tmp/elsewhere").write_text, ""),
            attempt(Path("/dev/shm/elsewhere").write_text, ""),
            attempt(os.symlink, SECRET, "link"), attempt(Path("link").read_text),
        ])
    """
    )
    async with Bench(tmp_path, code) as bench:
        said = await bench.says()
        assert [each for each in said if each not in ("PermissionError", "OSError")] == [None]
        assert secret.read_text() == "secret"


CHANGES = (
    TRY
    + """
    import ctypes, fcntl, os, struct, sys

    libc = ctypes.CDLL(None, use_errno=True)

    def call(x86, arm, *args):
        number = arm if os.uname().machine in ("aarch64", "arm64") else x86
        return None if libc.syscall(number, *args) == 0 else os.strerror(ctypes.get_errno())

    def chattr(path, flags):
        file = os.open(path, os.O_RDONLY)
        fcntl.ioctl(file, 0x40086602, struct.pack("l", flags))

    def handler(ctx, event):
        secret = event.data.decode()
        path = secret.encode()
        mine = os.open("mine", os.O_CREAT | os.O_WRONLY, 0o600)
        ctx.publish("out", [
            attempt(os.chmod, secret, 0o666), attempt(os.fchmod, mine, 0o666),
            attempt(os.chown, secret, os.getuid(), os.getgid()),
            attempt(os.lchown, secret, os.getuid(), os.getgid()),
            attempt(os.fchown, mine, os.getuid(), os.getgid()),
            attempt(os.utime, secret, (1, 1)), attempt(os.utime, mine, (1, 1)),
            attempt(os.setxattr, secret, "user.x", b"1"),
            attempt(os.setxattr, mine, "user.x", b"1"),
            attempt(os.removexattr, secret, "user.there"), attempt(chattr, "mine", 0x80),
            call(452, 452, -100, path, 0o666, 0), call(268, 53, -100, path, 0o666),
            call(463, 463, -100, path, 0, b"user.none", None, 0),
            call(466, 466, -100, path, 0, b"user.none"),
            call(469, 469, -100, path, None, 0, 0),
        ])
    """
)


async def test_mode_owner_times_and_attributes_cannot_be_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of files that the code cannot read, which Landlock does not guard, nor of others."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o600)
    os.setxattr(secret, "user.there", b"1")
    before = secret.stat()
    async with Bench(tmp_path, CHANGES) as bench:
        said = await bench.says(str(secret).encode())
        assert said == ["PermissionError"] * 11 + ["Operation not permitted"] * 5
    after = secret.stat()
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    assert os.listxattr(secret) == ["user.there"]
    # Where the calls are not filtered the same code changes them: it does reach the file.
    monkeypatch.setattr(process, "_BOOT", _boot("c.seccomp._ARCHES = {}"))
    async with Bench(tmp_path, CHANGES) as bench:
        await bench.done(str(secret).encode())
    assert (secret.stat().st_mode & 0o777, secret.stat().st_mtime) == (0o666, 1)
    assert os.listxattr(secret) == ["user.x"]


async def test_what_may_be_read_and_written(tmp_path: Path) -> None:
    code = (
        TRY
        + """
    import os, tempfile, zoneinfo
    from pathlib import Path

    def handler(ctx, event):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "a").write_text("kept for now")
        Path("here").write_text("x")
        import sqlite3, ssl, wave
        ssl.create_default_context()
        db = sqlite3.connect("db")
        db.execute("create table t (a)")
        with open("/dev/null", "w") as null:
            null.write("x")
        ctx.publish("out", [
            os.listdir(), len(os.urandom(8)), os.getcwd() == tempfile.gettempdir(),
            os.cpu_count() > 0, Path("~").expanduser() == Path.cwd(),
        ])
    """
    )
    async with Bench(tmp_path, code) as bench:
        said = await bench.says()
        assert sorted(said[0]) == ["db", "here"]
        assert said[1:] == [8, True, True, True]
        assert bench.lane._process is not None
        folder = Path(bench.lane._process.folder)
        assert folder.exists()
    assert not folder.exists()


FILL = """
    import errno, time

    def handler(ctx, event):
        said = []
        try:
            if event.data:
                for n in range(100_000):
                    open(f"file{n}", "w").close()
            else:
                for n in range(100):
                    with open(f"file{n}", "wb") as file:
                        file.write(bytes(4_000_000))
        except OSError as error:
            said.append(errno.errorcode[error.errno])
        ctx.publish("out", said)
"""


@pytest.mark.parametrize("data", [b"", b"many"])
async def test_files_are_limited(tmp_path: Path, data: bytes) -> None:
    async with Bench(tmp_path, FILL) as bench:
        assert await bench.says(data) == ["ENOSPC"]


@pytest.mark.parametrize("data", [b"", b"many"])
async def test_files_are_limited_without_a_file_system_of_its_own(
    tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "LOOK", 0.1)
    code = FILL.replace('ctx.publish("out", said)', "time.sleep(60)")
    monkeypatch.setattr(process, "_BOOT", _boot("c._NEWNS = -1"))
    async with Bench(tmp_path, code) as bench:
        assert "scratch" not in bench.ready.confined
        bench.give(data)
        assert (await bench.end()).reason.startswith(f"wrote more than {SCRATCH >> 20} MB")


def _boot(change: str) -> str:
    """What starts a worker, on a system that lacks something."""
    first, rest = process._BOOT.split("from skerry", 1)
    return f"{first}\nimport skerry.functions.confine as c; {change}\nfrom skerry{rest}"


async def test_where_the_kernel_lacks_a_part_the_others_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def boots(change: str) -> None:
        monkeypatch.setattr(process, "_BOOT", _boot(change))

    code = (
        TRY
        + """
    import os
    def handler(ctx, event):
        ctx.publish("out", [attempt(os.listdir, "/"), attempt(os.fork)])
    """
    )
    original = process._BOOT
    for change, missing, said in [
        ("c.landlock._CREATE = 9999", "files", [True, True]),
        ("c.seccomp._ARCHES = {}", "calls", [True, True]),
        ("c._CAPSET = {'x86_64': 9999, 'aarch64': 9999}", "rights", [True, True]),
    ]:
        monkeypatch.setattr(process, "_BOOT", original)
        boots(change)
        async with Bench(tmp_path, code) as bench:
            assert set(bench.ready.confined) == (
                {"memory", "scratch", "rights", "files", "calls"} - {missing}
            )
            listed, forked = await _listed_and_forked(bench, missing)
            assert [listed, forked] == said


async def _listed_and_forked(bench: Bench, missing: str) -> tuple[bool, bool]:
    """Whether the parts that are there did what they must."""
    if missing == "calls":
        # It may fork now. What it leaves behind ends with it all the same.
        return True, True
    listed, forked = await bench.says()
    return (listed == "PermissionError") != (missing == "files"), forked == "PermissionError"


async def test_what_a_worker_left_behind_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the system cannot keep it from starting processes."""
    monkeypatch.setattr(process, "_BOOT", _boot("c.seccomp._ARCHES = {}"))
    code = """
        import os, time

        def handler(ctx, event):
            child = os.fork()
            if child == 0:
                time.sleep(3600)
            ctx.publish("out", [child])
    """
    async with Bench(tmp_path, code) as bench:
        [child] = await bench.says()
        assert Path(f"/proc/{child}").exists()
    await until(lambda: _is_dead(child))


def _is_dead(pid: int) -> bool:
    """Gone, or waiting for whoever is to take note of it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


SOCKETS = (
    TRY
    + """
    import socket

    def handler(ctx, event):
        port = int(event.data)
        pair = socket.socketpair()
        ctx.publish("out", [
            attempt(lambda: socket.create_connection(("localhost", port)).close()),
            attempt(lambda: socket.create_server(("127.0.0.1", 0)).close()),
            attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()),
            attempt(lambda: socket.socket(socket.AF_UNIX).close()),
            attempt(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()),
            attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close()),
            attempt(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close()),
        ])
"""
)


async def test_sockets_cannot_be_opened(tmp_path: Path, listener: socket.socket) -> None:
    async with Bench(tmp_path, SOCKETS) as bench:
        said = await bench.says(str(listener.getsockname()[1]).encode())
        assert said[0] in ("PermissionError", "gaierror")
        assert set(said[1:]) == {"PermissionError"}


async def test_with_network_the_internet_is_there_and_no_more(
    tmp_path: Path, listener: socket.socket
) -> None:
    async with Bench(tmp_path, SOCKETS, network=True) as bench:
        said = await bench.says(str(listener.getsockname()[1]).encode())
        assert said[:3] == [None, None, None]
        assert set(said[3:]) == {"PermissionError"}


async def test_other_processes_are_out_of_reach(tmp_path: Path) -> None:
    code = (
        TRY
        + f"""
    import ctypes, os, resource

    HOST = {os.getpid()}

    def handler(ctx, event):
        ctx.publish("out", [
            attempt(os.kill, HOST, 0),
            attempt(os.kill, -1, 0),
            attempt(os.killpg, os.getpgid(HOST), 0),
            attempt(os.setpriority, os.PRIO_PROCESS, HOST, 19),
            attempt(os.sched_setaffinity, HOST, [0]),
            attempt(resource.prlimit, HOST, resource.RLIMIT_NOFILE, (10, 10)),
            attempt(os.pidfd_open, HOST),
        ])
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.ptrace(16, HOST, 0, 0) == -1
        assert libc.unshare(0x10000000) == -1
        assert libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None) == -1
        assert resource.prlimit(0, resource.RLIMIT_NOFILE)
        os.kill(os.getpid(), 0)
    """
    )
    async with Bench(tmp_path, code) as bench:
        assert set(await bench.says()) == {"PermissionError"}


async def test_limits_cannot_be_raised_and_rights_not_regained(tmp_path: Path) -> None:
    code = (
        TRY
        + """
    import os, resource
    from pathlib import Path

    def handler(ctx, event):
        limits = [attempt(resource.setrlimit, what, (1 << 40, 1 << 40))
                  for what in (resource.RLIMIT_DATA, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE)]
        status = dict(line.split(":\\t") for line in Path("/proc/self/status").read_text()
                      .splitlines() if line.startswith(("Cap", "NoNewPrivs", "Seccomp:")))
        ctx.publish("out", [limits, status, attempt(os.chroot, ".")])
    """
    )
    async with Bench(tmp_path, code) as bench:
        limits, status, chroot = await bench.says()
        assert set(limits) == {"ValueError"}
        assert chroot == "PermissionError"
        capabilities = {status[name] for name in ("CapPrm", "CapEff", "CapInh", "CapBnd", "CapAmb")}
        assert capabilities == {"0" * 16}
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


@pytest.mark.parametrize(
    "grab",
    [
        "bytearray(1 << 30)",
        "[bytearray(1 << 20) for _ in range(1000)]",
        "'x' * (1 << 30)",
        "mmap.mmap(-1, 1 << 30, mmap.MAP_PRIVATE).write(bytes(1 << 20))",
    ],
)
async def test_memory_that_is_grabbed_is_refused(tmp_path: Path, grab: str) -> None:
    code = f"""
        import mmap

        def handler(ctx, event):
            try:
                {grab}
            except (MemoryError, OSError) as error:
                ctx.publish("out", ["refused"])
    """
    async with Bench(tmp_path, code, memory=128 * MB) as bench:
        assert await bench.says() == ["refused"]


async def test_shared_memory_is_no_way_around(tmp_path: Path) -> None:
    code = (
        TRY
        + """
    import ctypes, mmap, os

    def handler(ctx, event):
        libc = ctypes.CDLL(None, use_errno=True)
        ctx.publish("out", [
            attempt(lambda: mmap.mmap(-1, 1 << 20).close()),
            attempt(os.memfd_create, "x"),
            libc.shmget(0, 1 << 20, 0o1600),
        ])
    """
    )
    async with Bench(tmp_path, code) as bench:
        assert await bench.says() == ["PermissionError", "OSError", -1]


async def test_memory_beyond_the_limit_ends_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the kernel does not count it."""
    monkeypatch.setattr(lane, "LOOK", 0.1)
    monkeypatch.setattr(process, "_BOOT", _boot("c.seccomp._ARCHES = {}"))
    code = """
        import mmap, time

        def handler(ctx, event):
            area = mmap.mmap(-1, 300_000_000)
            for n in range(0, len(area), 4096):
                area[n] = 1
            time.sleep(60)
    """
    async with Bench(tmp_path, code, memory=64 * MB) as bench:
        bench.give(b"")
        assert await bench.end() == lane.End(1, "needed more than 64 MB")


async def test_open_files_are_limited(tmp_path: Path) -> None:
    code = """
        def handler(ctx, event):
            files = []
            try:
                while True:
                    files.append(open("/dev/null"))
            except OSError:
                ctx.publish("out", [len(files)])
    """
    async with Bench(tmp_path, code) as bench:
        [count] = await bench.says()
        assert 100 < count < confine.OPEN_FILES
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] != confine.OPEN_FILES
    assert threading.active_count() < 100
