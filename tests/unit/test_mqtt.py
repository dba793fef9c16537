"""Which events of other sites are filed for MQTT sessions with QoS 1 and 2."""

from __future__ import annotations

from skerry.fabric.mqtt import Filer


def head(
    place: int, index: int, *, qos: int = 1, site: str = "farm", outbox: str = "outbox:gNu5RiX9"
) -> bytes:
    """The header of an event as the log at lab delivers it."""
    source = f"{outbox} {place} o.{site}.t\x0co.{site}.t.> e.t\x0ce.t.> o.{site}.t.x"
    lines = [
        "NATS/1.0", f"Nmqtt-Pub:{qos}", f"Nats-Stream-Source: {source}", "Nats-Stream: t~t",
        "Nats-Subject: e.t.x", f"Nats-Sequence: {index}", "Nats-Last-Sequence: 0",
    ]  # fmt: skip
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode()


def test_what_another_site_published_with_qos_1_or_2_is_filed_with_its_mark() -> None:
    filer = Filer("lab")
    assert filer.file(head(2, 4)) == (
        b"NATS/1.0\r\nNmqtt-Pub:1\r\nNats-Msg-Id:outbox:gNu5RiX9-2\r\n\r\n"
    )
    assert b"Nmqtt-Pub:2\r\n" in (filer.file(head(3, 5, qos=2)) or b"")


def test_what_the_engine_delivers_or_has_filed_itself_is_not() -> None:
    filer = Filer("lab")
    assert filer.file(head(1, 1, qos=0)) is None
    assert filer.file(head(1, 1, site="lab")) is None
    assert filer.file(b"NATS/1.0\r\nNats-Stream: t~t\r\nNats-Sequence: 1\r\n\r\n") is None


def test_an_event_is_filed_once() -> None:
    """Two subscriptions may match it, and a log that is copied anew delivers it again."""
    filer = Filer("lab")
    assert filer.file(head(2, 4))
    assert filer.file(head(2, 4)) is None
    assert filer.file(head(1, 3)) is None
    assert filer.file(head(3, 4))  # of two that were given one index, one after the other


def test_every_outbox_counts_for_itself_also_one_that_begins_anew() -> None:
    filer = Filer("lab")
    assert filer.file(head(7, 1))
    assert filer.file(head(1, 2, site="hub", outbox="outbox:other"))
    assert filer.file(head(1, 3))
