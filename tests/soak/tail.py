"""Files that other processes write, as they grow, and what their lines mean to the judge."""

from __future__ import annotations

from pathlib import Path

from tests.soak.judge import Ack, Delivery


class Tail:
    """The lines that came since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = 0

    def lines(self) -> list[str]:
        """Whole lines only; the last may still be written."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._place)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._place += len(whole)
        return [line for line in whole.decode().splitlines() if line]


def ack_of(line: str, topic: str, level: str) -> Ack | None:
    """What a line of a publisher's file says; None: nothing of an acknowledgement."""
    kind, time, *rest = line.split(" ")
    if kind != "A":
        return None
    name, number, index, began, epoch = rest
    return Ack(topic, level, name, int(number), int(index), int(epoch), float(began), float(time))


def delivery_of(line: str, reader: str) -> Delivery:
    """What a line of a subscriber's file says."""
    topic, index, _, payload, deliveries, time, session, stamp = line.split(" ")
    return Delivery(
        reader, topic, session, int(index), payload, int(stamp), float(time), int(deliveries)
    )
