"""The search page: matches, bounds, and links that resume a search."""

from __future__ import annotations

import re
from unittest import mock
from urllib.parse import quote

import pytest

from kbackup.store.base import Store
from kbackup.store.file import FileStore
from kbackup.web.pages import records as engine
from tests.golden.java_archive import ROOT as JAVA
from tests.support.archives import T0, topic_archive
from tests.support.faulty_store import FaultyStore
from tests.support.memory_store import MemoryStore
from tests.support.plain_records import Plain, block_of
from tests.support.rich_archive import ATTACK, SCRIPT
from tests.support.visits import WRITES, links, tags, text, visit

_MATCH = re.compile(r'/topics/([^/"]+)/(\d+)/records/(\d+)[^"]*">')
Address = tuple[str, int, int]


def matches(html: str) -> list[Address]:
    return [(topic, int(partition), int(offset)) for topic, partition, offset in _MATCH.findall(html)]


def search_all(store: Store, address: str) -> tuple[list[Address], int]:
    """Follow the links to the end of a search; return its matches and the number of pages."""
    client, seen, pages = visit(store), list[Address](), 0
    following: str | None = address
    while following is not None:
        html = client.get(following).text
        seen += matches(html)
        pages += 1
        following = next((link for link in links(html) if "at=" in link), None)
    assert "that is all" in html
    return seen, pages


ORDERS = [("orders", 0, o) for o in (*range(10), 15, *range(17, 40))] + [("orders", 1, o) for o in range(12)]
CLICKS = [("clicks", 0, o) for o in range(20)]


def test_a_search_over_all_topics(store: Store) -> None:
    found, pages = search_all(store, "/search?text=key+0")
    assert found == [each for each in CLICKS + ORDERS if each[2] % 3 == 0]
    assert pages == 1


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("text=value+7+of&where=orders", [("orders", 0, 7), ("orders", 1, 7)]),
        ("text=value+7+of&where=orders:1", [("orders", 1, 7)]),
        ("text=VALUE+7+of&where=orders/1&ignore_case=1", [("orders", 1, 7)]),
        ("text=%5Evalue+3%5B12%5D&regex=1&where=orders", [("orders", 0, 31), ("orders", 0, 32)]),
        ("text=key&in=value&where=orders", []),
        ("text=trace&in=headers&where=orders:1:2-4", [("orders", 1, 2), ("orders", 1, 3)]),
        (f"text=key&where=orders:0&from_time={T0 + 38_000}", [("orders", 0, 38), ("orders", 0, 39)]),
        (f"text=key&where=orders:1&to_time={T0 + 1000}", [("orders", 1, 0), ("orders", 1, 1)]),
        ("text=key&where=orders:2", []),
    ],
)
def test_search_finds_records_by_text_topic_and_time(store: Store, query: str, expected: list[Address]) -> None:
    assert search_all(store, f"/search?{query}")[0] == expected


@pytest.mark.exhaustive
@pytest.mark.parametrize("bounds", [{"MATCHES": 7}, {"BYTES": 1}, {"SECONDS": 0.0}, {"ROOM": 1}])
def test_bounded_pages_find_the_same(store: Store, bounds: dict[str, float]) -> None:
    address = "/search?text=key+&in=key&from_time=1"
    with mock.patch.dict(vars(engine), {"_UNIT": 500, **bounds}):
        found, pages = search_all(store, address)
    assert found == CLICKS + ORDERS
    assert pages > 5


def test_a_bounded_page_reads_little() -> None:
    store = FaultyStore(MemoryStore())
    records = block_of([Plain(b"k", b"v" * 1000) for _ in range(2000)])
    segments = topic_archive(store, "t", records, 20_000)
    client = visit(store)
    assert len(segments) > 50
    store.calls.clear()
    shown = text(client.get("/search?text=v").text)
    assert "50 records found" in shown
    read = {key for operation, key in store.calls if operation == "open_range" and key.endswith("_records")}
    assert len(read) < 12
    assert not WRITES & {operation for operation, _ in store.calls}


def test_a_match_far_behind_the_beginning_is_shown(rich: Store) -> None:
    store = MemoryStore()
    long = "é".encode() * 5000 + b"needle" + b"x" * 5000
    records = block_of([Plain(b"k", long, headers=((b"h", b"pin"),))])
    topic_archive(store, "t", records)
    shown = visit(store).get("/search?text=needle").text
    assert "\N{HORIZONTAL ELLIPSIS}" + "é" * 20 + "needle" + "x" * 150 in shown
    assert "xefxbf" not in shown
    assert "header h pin" in text(visit(store).get("/search?text=pin").text)


def test_topics_of_a_java_folder_with_any_name() -> None:
    source, store = FileStore(JAVA / "archive"), MemoryStore()
    name = f"{ATTACK} ?#&"
    topic = next(iter(source.list_dirs()))
    for entry in source.list(f"{topic}/"):
        store.put(f"{name}/{entry.key.rpartition('/')[2]}", source.get(entry.key))
    client = visit(store)
    (address,) = {link for link in links(client.get(f"/topics/{quote(name, safe='')}").text) if "where=" in link}
    assert client.get(address).status_code == 200
    with mock.patch.dict(vars(engine), {"MATCHES": 1}):
        first = client.get("/search", params={"text": "a", "where": f"{name}:0"}).text
        (following,) = {link for link in links(first) if "at=" in link}
        second = client.get(following)
    assert second.status_code == 200
    records = [[link for link in links(html) if "/records/" in link] for html in (first, second.text)]
    assert len(records[0]) == len(records[1]) == 1
    assert records[0] != records[1]


def test_hostile_matches_are_text(rich: Store) -> None:
    shown = visit(rich).get("/search", params={"text": "onerror", "where": "odd"})
    assert shown.status_code == 200
    assert ATTACK in text(shown.text)
    assert SCRIPT in text(visit(rich).get("/search", params={"text": SCRIPT}).text)
    assert {tag for tag, attributes in tags(shown.text) if tag == "script"} == {"script"}
    assert not [tag for tag, _ in tags(shown.text) if tag == "img"]


@pytest.mark.parametrize(
    ("query", "status", "message"),
    [
        ("text=a(&regex=1", 400, "a( can't be looked for"),
        ("text=a&where=<b>", 400, "<b> is not an address"),
        ("text=a&at=x:1:y", 400, "x:1:y is not an address"),
        ("text=a&from_time=yesterdy", 400, "yesterdy is not a time"),
        ("text=a&where=nowhere", 404, "there is no topic nowhere"),
        ("text=a&where=orders:9", 404, "topic orders has no partition 9"),
        ("text=a&in=everything", 400, ""),
    ],
)
def test_invalid_input(store: Store, query: str, status: int, message: str) -> None:
    shown = visit(store).get(f"/search?{query}")
    assert shown.status_code == status
    assert message in text(shown.text)


def test_damage_ends_a_search_behind_its_matches(store: Store) -> None:
    bad = next(e.key for e in store.list("topics/orders/segment_partition_001") if e.key.endswith("_records"))
    store.put(bad, b"\x7f" * len(store.get(bad)))
    shown = visit(store).get("/search?text=value+3").text
    assert matches(shown) == [("clicks", 0, 3), ("orders", 0, 3), *(("orders", 0, o) for o in range(30, 40))]
    assert f"The search ended at damage: file {bad}" in text(shown) or bad in text(shown)
    assert not [link for link in links(shown) if "at=" in link]
