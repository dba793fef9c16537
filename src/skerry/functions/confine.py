"""What the user's code may not do, enforced by the kernel as far as it can.

A worker confines itself, for good, before it loads the code:

| part | what it does |
| --- | --- |
| `memory` | limits of data, open files, the size of a file; no core dumps |
| `scratch` | a file system of its own in memory, of limited size, to write files in |
| `rights` | no capabilities, and none to be had |
| `files` | Landlock: read Python, libraries and the code; write the scratch folder |
| `calls` | seccomp: no processes, no sockets, no signals to others, no mounts … |

Where the system lacks one, the others hold. On Linux it also dies with its host.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

from skerry.functions import landlock, seccomp
from skerry.functions.frames import SCRATCH, SCRATCH_FILES

OPEN_FILES = 256

_PDEATHSIG, _NO_NEW_PRIVS, _CAPBSET_DROP, _SET_SECCOMP = 1, 38, 24, 22
_FILTER = 2
_NEWUSER, _NEWNS = 0x10000000, 0x00020000
_NOSUID, _NODEV, _NOEXEC = 2, 4, 8
_CAPSET = {"x86_64": 126, "aarch64": 91, "arm64": 91}
_CAPABILITY_VERSION = 0x20080522

# Of /etc only what libraries look for: a site may run as root, who can read its secrets.
_READABLE = (
    "/usr", "/lib", "/lib32", "/lib64", "/bin",
    "/etc/ld.so.cache", "/etc/localtime", "/etc/timezone", "/etc/nsswitch.conf", "/etc/hosts",
    "/etc/resolv.conf", "/etc/host.conf", "/etc/gai.conf", "/etc/services", "/etc/protocols",
    "/etc/mime.types", "/etc/os-release", "/etc/passwd", "/etc/group", "/etc/fonts",
    "/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/ssl/cert.pem", "/etc/ca-certificates",
    "/etc/pki/tls/certs", "/etc/pki/tls/openssl.cnf", "/etc/pki/ca-trust/extracted",
    "/etc/crypto-policies", "/run/systemd/resolve",
    "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys/vm",
    "/proc/sys/kernel/osrelease", "/sys/devices/system/cpu", "/sys/devices/system/node",
    "/sys/kernel/mm/transparent_hugepage", "/dev/urandom", "/dev/random", "/dev/zero",
)  # fmt: skip


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("program", ctypes.c_char_p))


def confine(
    *, parent: int, memory: int, network: bool, readable: tuple[str, ...]
) -> tuple[str, ...]:
    """Confine this process for good; return what of it is in force. It may read `readable` too.
    `parent` is the process that it dies with."""
    limit(memory)
    if sys.platform != "linux":
        return ("memory",)
    system = _System()
    scratch = system.attempt(_mount_scratch)
    parts = {"memory": True, "scratch": scratch, "rights": system.attempt(_drop_rights)}
    # Not before: to change one's rights forgets it.
    system.prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    folder = str(Path.cwd())
    parts["files"] = system.attempt(
        lambda system: landlock.restrict(
            system.call,
            read=(*_READABLE, *_python(), *readable),
            write=("/dev/null",),
            folders=(folder,),
            network=network,
        )
    )
    parts["calls"] = system.attempt(lambda system: _filter(system, network))
    return tuple(part for part, in_force in parts.items() if in_force)


def limit(memory: int) -> None:
    """Limit what this process takes."""
    for what, most in (
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_FSIZE, SCRATCH),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(what)[1]
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        resource.setrlimit(what, (most, most))


def _python() -> list[str]:
    """Where this interpreter and its libraries live."""
    found = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]
    found += [path for path in sys.path if path]
    for package in ("skerry", "msgspec", "wasmtime"):
        module = sys.modules.get(package)
        if module is not None:
            found += list(module.__path__)
    return [path for path in found if path != "/"]


class _System:
    """The calls that Python has no names for."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)

    def call(self, number: int, *arguments: object) -> int:
        """A system call by number."""
        return self._checked(self._library.syscall(ctypes.c_long(number), *map(_long, arguments)))

    def prctl(self, *arguments: object) -> int:
        """`prctl(2)`."""
        five = [*arguments, 0, 0, 0, 0][:5]
        return self._checked(self._library.prctl(*map(_long, five)))

    def unshare(self, flags: int) -> None:
        """`unshare(2)`."""
        self._checked(self._library.unshare(flags))

    def mount(self, what: str, where: str, flags: int, options: str) -> None:
        """`mount(2)`."""
        text = options.encode()
        self._checked(
            self._library.mount(what.encode(), where.encode(), what.encode(), flags, text)
        )

    def attempt(self, step: object) -> bool:
        """Take a step that the system may refuse; whether it did not."""
        assert callable(step)
        try:
            step(self)
        except (OSError, AttributeError):
            return False
        return True

    def _checked(self, result: int) -> int:
        if result == -1:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result


def _long(argument: object) -> object:
    return ctypes.c_long(argument) if isinstance(argument, int) else argument


def _mount_scratch(system: _System) -> None:
    """Put a file system of limited size, that goes with this process, over its folder."""
    folder, user, group = str(Path.cwd()), os.geteuid(), os.getegid()
    system.unshare(_NEWUSER | _NEWNS)
    with contextlib.suppress(OSError):
        Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    options = f"size={SCRATCH},nr_inodes={SCRATCH_FILES},mode=0700"
    system.mount("tmpfs", folder, _NOSUID | _NODEV | _NOEXEC, options)
    os.chdir(folder)


def _drop_rights(system: _System) -> None:
    """Give up all capabilities, for ever."""
    system.prctl(_NO_NEW_PRIVS, 1)
    for capability in range(64):
        try:
            system.prctl(_CAPBSET_DROP, capability)
        except OSError:
            break  # no such capability, or no right to give it up: there is none to lose
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    data = (ctypes.c_uint32 * 6)()
    system.call(_CAPSET[os.uname().machine], header, data)


def _filter(system: _System, network: bool) -> None:
    program = seccomp.program(os.getpid(), network=network)
    if program is None:
        raise OSError("there is no filter for this machine")
    system.prctl(_NO_NEW_PRIVS, 1)
    filter = _Filter(len(program) // 8, program)
    system.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(filter))
