"""How long a TCP handshake takes: the round-trip time to a site that we have no link to."""

from __future__ import annotations

import asyncio
import socket
import struct

_RTT_AT = 68
"""Where Linux' `struct tcp_info` has the smoothed round-trip time, in microseconds. Its place has
been the same since it was added; what is newer comes behind it."""


async def handshake(address: str, timeout: float) -> float | None:
    """Seconds there and back, to `host:port`; None: nobody answered in time. Nothing is sent, and
    the connection is closed at once. Where the kernel tells, the time is the kernel's: ours would
    have in it what this process was late."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout):
            found = await loop.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
            family, _, _, _, target = found[0]
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setblocking(False)
                began = loop.time()
                await loop.sock_connect(probe, target)
                return _kernel_rtt(probe) or loop.time() - began
    except (OSError, TimeoutError, ValueError):
        return None


def _kernel_rtt(connected: socket.socket) -> float:
    """As the kernel measured it; 0 if it does not say."""
    if not hasattr(socket, "TCP_INFO"):
        return 0.0
    try:
        info = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RTT_AT + 4)
        (microseconds,) = struct.unpack_from("=I", info, _RTT_AT)
    except (OSError, struct.error):
        return 0.0
    return float(microseconds) / 1e6
