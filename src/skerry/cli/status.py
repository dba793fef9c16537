"""`skerry status`: how a site is."""

from __future__ import annotations

from skerry.cli.common import TIMEOUT, AsJson, Connect, Timeout, connected, run
from skerry.cli.output import draw, emit_document, facts
from skerry.model.control import SiteStatus
from skerry.model.quantities import show_duration, show_size

EXAMPLE = "Example: skerry status --json"


def status(connect: Connect = None, timeout: Timeout = TIMEOUT, as_json: AsJson = False) -> None:
    """Show how the site is: address, engine, topics, storage, memory."""

    async def ask() -> SiteStatus:
        async with connected(connect, timeout) as client:
            return await client.status()

    found = run(ask())
    if as_json:
        emit_document(found)
    else:
        draw(facts(_facts(found)))


def _facts(status: SiteStatus) -> list[tuple[str, str]]:
    engine = f"nats-server {status.engine}"
    if status.engine_pid is None:
        engine += ", run by somebody else"
    else:
        engine += f", process {status.engine_pid}"
    pairs = [
        ("site", status.site),
        ("address", status.address),
        ("data", status.data),
        ("durability", status.durability),
        ("engine", engine),
        ("agent", f"process {status.agent_pid}"),
        ("restarts", str(status.restarts)),
        ("uptime", show_duration(status.uptime)),
        ("topics", f"{status.topics:,}"),
        ("subscriptions", f"{status.subscriptions:,}"),
        ("stored", show_size(status.stored_bytes)),
        ("memory", show_size(status.memory_bytes)),
    ]
    if status.strays_kept:
        text = f"{status.strays_kept:,} kept of {status.strays:,}, the last for {status.last_stray}"
        pairs.append(("strays", text))
    if status.mqtt_port is not None:
        pairs.append(("mqtt", f"port {status.mqtt_port}"))
    if status.websocket_port is not None:
        pairs.append(("websocket", f"port {status.websocket_port}"))
    return pairs
