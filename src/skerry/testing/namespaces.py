"""Network namespaces, each with a TUN device: the sites of an emulated WAN.

A namespace's name says which process made it, and when that one was started, so that what a killed
process left behind can be told from what is in use.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

NETWORK = bytes([10, 77])
"""The first two bytes of every address; the third is the site's number."""
MTU = 1500
CAP_NET_ADMIN, CAP_SYS_ADMIN = 12, 21
LIBC = ctypes.CDLL(None, use_errno=True)

_FOLDER = Path("/run/netns")
_DEVICE = "wan0"
_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000


def make_site(namespace: str, number: int) -> int:
    """Make a site's namespace and device; return the descriptor that its packets pass through."""
    _ip("netns", "add", namespace)
    with inside(namespace):
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        flags = _IFF_TUN | _IFF_NO_PI
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", _DEVICE.encode(), flags))
        # What the kernel drops in front of us is not counted: let it queue a whole window.
        wan = f"link set {_DEVICE} mtu {MTU} txqueuelen 10000 multicast off up"
        address = f"addr add {address_of(number)}/16 dev {_DEVICE}"
        _ip("-batch", "-", text=f"link set lo up\n{address}\n{wan}\n")
        Path("/proc/sys/net/ipv4/tcp_congestion_control").write_text("reno")
    return device


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Have this thread in a network namespace for the block."""
    flags = os.O_RDONLY | os.O_CLOEXEC
    home = os.open("/proc/thread-self/ns/net", flags)
    try:
        there = os.open(_FOLDER / namespace, flags)
        try:
            _set_namespace(there)
        finally:
            os.close(there)
        try:
            yield
        finally:
            _set_namespace(home)
    finally:
        os.close(home)


def _set_namespace(descriptor: int) -> None:
    # `os.setns` came with Python 3.12.
    if LIBC.setns(descriptor, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot enter a network namespace: {os.strerror(number)}")


def remove(prefix: str) -> None:
    """Remove the namespaces whose names begin so, as far as they are still there."""
    for path in _FOLDER.glob(prefix + "*"):
        with contextlib.suppress(OSError):  # somebody else removes them at the same time
            _ip("netns", "del", path.name)


def remove_orphans() -> None:
    """Remove what processes left behind that were killed together with their forwarders."""
    owners = {"-".join(path.name.split("-")[:3]) + "-" for path in _FOLDER.glob("skerry-*-*-*")}
    for prefix in owners:
        pid = prefix.split("-")[1]
        if pid.isdecimal() and prefix != owner_prefix(int(pid)):
            remove(prefix)


def owner_prefix(pid: int) -> str | None:
    """How the names of all namespaces of a process begin; None if there is no such process.

    The time of its start is part of it, as process ids come round again.
    """
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The second field is the program's name in brackets and may hold anything; the time is the
    # 22nd.
    started = status.rpartition(")")[2].split()[19]
    return f"skerry-{pid}-{started}-"


def _ip(*arguments: str, text: str = "") -> None:
    """Run `ip`; raise `OSError` with what it says if it fails."""
    program = ip_program() or "ip"
    done = subprocess.run(
        [program, *arguments], input=text, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def ip_program() -> str | None:
    """Where `ip` is; None if it is not installed."""
    # The PATH of an ordinary user, kept by `sudo`, may lack the folders of the administrator.
    return shutil.which("ip", path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin")


def has_capabilities(*bits: int) -> bool:
    """Whether this process has these capabilities."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            held = int(line.split()[1], 16)
            return all(held >> bit & 1 for bit in bits)
    return False


def address_of(number: int) -> str:
    """The IPv4 address of the site of that number."""
    return socket.inet_ntoa(NETWORK + bytes([number, 1]))
