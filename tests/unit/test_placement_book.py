"""What clients tell their site, and what becomes of it in the site's record."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from skerry.model.placement import TopicUse, Usage
from skerry.placement.book import Book, Held
from skerry.placement.records import TopicColumns


def told(book: Book, client: str, *uses: TopicUse, access: float = 0.002, now: float = 0.0) -> bool:
    return book.take(msgspec.msgpack.encode(Usage(client, access, list(uses))), now)


def columns(book: Book, held: dict[str, Held] | None = None, seconds: float = 5.0) -> TopicColumns:
    return book.columns(held or {}, seconds, lambda name: name != "unknown")


def test_clients_are_added_up_and_the_longest_line_counts() -> None:
    book = Book()
    told(book, "a", TopicUse("t", True, 0, 10, 1000, publish_s=0.03), access=0.004)
    told(book, "b", TopicUse("t", False, 2, delivered=50, deliver_s=0.02, deliver_most_s=0.05))
    told(book, "c", TopicUse("t", True, 1, delivered=25, deliver_s=0.01), TopicUse("u", False, 1))
    told(book, "d", TopicUse("unknown", True, 0))
    made = columns(book, {"h": Held(rate_in=7.0, stored_bytes=9.0, copies=2)})
    assert made.names == ["h", "t", "u"]
    assert made.column("producers").tolist() == [0, 2, 0]
    assert made.column("consumers").tolist() == [0, 2, 1]
    assert made.column("producer_access").tolist() == [0, 2, 0]  # 4 ms there and back
    assert made.column("rate_in").tolist() == [7, 0, 0]
    assert made.column("rate_out").tolist() == [14, 15, 0]  # to copies; 75 events in 5 s
    assert made.column("publish_ms").tolist() == [0, 15, 0]
    assert made.column("deliver_ms").tolist() == [0, 20, 0]
    assert made.column("deliver_most_ms").tolist() == [0, 50, 0]
    assert columns(book).column("rate_out").tolist() == [0, 0]  # of the next period


def test_who_begins_or_ends_to_use_a_topic_is_news() -> None:
    book = Book()
    assert told(book, "a", TopicUse("t", True, 0))
    assert not told(book, "a", TopicUse("t", True, 0, 5))
    assert told(book, "a", TopicUse("t", True, 1))
    assert told(book, "a")  # goodbye
    assert not told(book, "a")
    assert len(book) == 0
    told(book, "a", TopicUse("t", True, 0), now=10.0)
    told(book, "b", TopicUse("t", True, 0), now=14.0)
    assert not book.expire(14.0, 5.0)
    assert book.expire(16.0, 5.0)
    assert len(book) == 1


def test_what_was_measured_is_remembered_until_it_is_measured_again() -> None:
    book = Book()
    told(book, "a", TopicUse("t", True, 1, publish_s=0.04, deliver_s=0.02, deliver_most_s=0.03))
    told(book, "a", TopicUse("t", True, 1, deliver_s=0.01))
    made = columns(book)
    assert made.column("publish_ms").tolist() == [20]
    assert made.column("deliver_ms").tolist() == [10]


@pytest.mark.parametrize(
    "usage",
    [
        Usage("", 0.1, [TopicUse("t", True, 0)]),
        Usage("x" * 65, 0.1, [TopicUse("t", True, 0)]),
        Usage("a", float("nan"), [TopicUse("t", True, 0)]),
        Usage("a", -1.0, [TopicUse("t", True, 0)]),
        Usage("a", 0.1, [TopicUse("t", True, -1)]),
        Usage("a", 0.1, [TopicUse("t", True, 0, 2**60)]),
        Usage("a", 0.1, [TopicUse("t", True, 0, publish_s=float("inf"))]),
    ],
)
def test_nonsense_is_refused(usage: Usage) -> None:
    book = Book()
    assert not book.take(msgspec.msgpack.encode(usage), 0.0)
    assert not book.take(b"nonsense", 0.0)
    assert (len(book), book.refused) == (0, 2)


def test_a_line_of_any_length_can_be_reported() -> None:
    book = Book()
    told(book, "a", TopicUse("t", True, 0), access=1e9)
    assert columns(book).column("producer_access").tolist() == [10_000]


def test_plain_clients_are_known_to_be_there() -> None:
    book = Book()
    told(book, "a", TopicUse("t", True, 0))
    made = book.columns({}, 5.0, lambda name: True, ["t", "p"], ["t"])
    assert made.names == ["p", "t"]
    assert made.column("producers").tolist() == [1, 1]
    assert made.column("consumers").tolist() == [0, 1]


def test_a_row_has_one_size_whatever_the_clients() -> None:
    """Section 5.6, figure 6."""

    def size(clients: int) -> int:
        book = Book()
        for number in range(clients):
            told(book, f"c{number}", TopicUse("t", True, 1, 10, 1000, 10, 0.01, 0.01, 0.02))
        return len(msgspec.msgpack.encode(columns(book)))

    assert len({size(clients) for clients in (1, 10, 1000)}) == 1
    assert np.isfinite(size(1))
