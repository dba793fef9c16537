"""`skerry placement explain`: why a topic is where it is."""

from __future__ import annotations

from skerry.cli.common import TIMEOUT, AsJson, Connect, Timeout, TopicName, in_fabric, run
from skerry.cli.output import columns, draw, emit, emit_document, facts, note
from skerry.model.placement import Explanation

EXAMPLE = "Example: skerry placement explain sensors"

APART = 10.0
"""Milliseconds by which estimate and measurement may differ before that is said."""


def explain(
    topic: TopicName,
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Show where a topic's clients are, what its events take, and what each site would be to it.

    Estimates are by the coordinates of sites, in milliseconds one way. Measured is what clients
    see: half of what a publisher waits for its acknowledgement, and from the home's time stamp to
    the subscriber's clock, which holds what the two clocks differ by."""

    async def ask() -> Explanation:
        async with in_fabric(connect, timeout) as client:
            return await client.placement_explain(topic)

    found = run(ask())
    if as_json:
        emit_document(found)
        return
    draw(
        facts(
            [
                ("topic", found.topic),
                ("home", found.home + (", pinned" if found.pinned else "")),
                ("latency bound", _ms(found.bound_ms, "none")),
                ("estimated", _ms(found.estimated_ms, "nothing: it lacks clients or records")),
                ("measured", _ms(found.measured_ms, "nothing yet")),
                ("decision", found.decision),
            ]
        )
    )
    if found.clients:
        emit("")
        table = columns(
            "CLIENTS AT", ">PUBLISHERS", ">SUBSCRIBERS", ">ACCESS", ">TO HOME", ">PUBLISH",
            ">DELIVERY", ">AT MOST",
        )  # fmt: skip
        for at in found.clients:
            access = max(at.producer_access_ms, at.consumer_access_ms)
            table.add_row(
                at.site, f"{at.producers:,}", f"{at.consumers:,}", _ms(access), _ms(at.home_ms),
                _ms(at.publish_ms), _ms(at.deliver_ms), _ms(at.deliver_most_ms),
            )  # fmt: skip
        draw(table)
    emit("")
    table = columns("SITE", ">WORST CASE", "VERDICT", "WHY")
    for site in found.candidates:
        table.add_row(site.site, _ms(site.worst_ms, "?"), site.verdict, site.why)
    draw(table)
    measured, estimated = found.measured_ms, found.estimated_ms
    if measured is not None and estimated is not None and measured > estimated + APART:
        note(
            "What is measured is well above the estimate: clients wait for something else than the "
            "way, or the sites' clocks differ."
        )


def _ms(value: float | None, missing: str = "-") -> str:
    return missing if value is None else f"{value:.1f} ms" if value < 100 else f"{value:.0f} ms"
