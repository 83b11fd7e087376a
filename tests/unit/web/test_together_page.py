"""The page of a topic's records: all partitions together, in order of time."""

from __future__ import annotations

import re
from html import unescape
from itertools import pairwise

import pytest

from kbackup.archive.query.together import PARTITIONS, SEGMENTS
from kbackup.archive.run import open_or_create
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.writer import SegmentTarget
from kbackup.store.base import Store
from kbackup.store.file import FileStore
from tests.golden.java_archive import ROOT as JAVA
from tests.support.archives import commit_point, topic_state, write_block
from tests.support.faulty_store import Counting
from tests.support.memory_store import MemoryStore
from tests.support.plain_records import Plain, block_of
from tests.support.visits import links, text, visit

ROW = re.compile(r'datetime="([^"]+)".*?<td class="r part">(\d+)</td><th class="r"><a href="[^"]*">([\d,]+)</a>')


def shown(html: str) -> list[tuple[str, int, int]]:
    """Return time, partition and offset of the records of a page."""
    return [(time, int(number), int(offset.replace(",", ""))) for time, number, offset in ROW.findall(html)]


def neighbour(html: str, way: str) -> str | None:
    found = re.search(rf'<a rel="{way}" href="([^"]*)"', html)
    return unescape(found[1]) if found else None


def topic_with(store: Store, partitions: int, times: list[int], segment_bytes: int) -> None:
    """Write an archive of a topic whose partitions have records of the same times."""
    states: list[tuple[int, int, list[Segment]]] = []
    for number in range(partitions):
        block = block_of([Plain(b"key", b"value", 0, time) for time in times])
        target = SegmentTarget("orders", 1, number, segment_bytes, "none")
        states.append((0, len(times), write_block(store, target, block)))
    segments = [segment for _, _, some in states for segment in some]
    commit_point(open_or_create(store), 1, topics=[topic_state("orders", states)], segments=segments)


def test_leafing_through_a_topic_meets_every_record_once_in_order_of_time(rich: Store) -> None:
    client = visit(rich)
    records = []
    address: str | None = "/topics/orders/records?n=37"
    while address is not None:
        html = client.get(address).text
        records += shown(html)
        address = neighbour(html, "next")
    offsets = [*range(120), *range(160, 180)]
    assert sorted((number, offset) for _, number, offset in records) == [(p, o) for p in range(3) for o in offsets]
    assert all(earlier <= later for (earlier, _, _), (later, _, _) in pairwise(records))


def test_leafing_back_meets_the_same_records(rich: Store) -> None:
    client = visit(rich)
    ahead = client.get("/topics/orders/records?n=20").text
    second_address = neighbour(ahead, "next")
    assert second_address is not None
    second = client.get(second_address).text
    back_address = neighbour(second, "prev")
    assert back_address is not None
    assert shown(client.get(back_address).text) == shown(ahead)
    assert neighbour(ahead, "prev") is None


def test_the_page_says_what_its_order_is(rich: Store) -> None:
    shown_text = text(visit(rich).get("/topics/orders/records").text)
    assert "each partition keeps the order of its log" in shown_text
    assert "a record that is older than those before it in its partition follows them" in shown_text


def test_a_time_leads_to_the_first_records_of_that_time(rich: Store) -> None:
    client = visit(rich)
    jump = client.get("/topics/orders/records?time=2026-10-02T03:00:00Z&n=5")
    assert jump.status_code == 303
    records = shown(client.get(jump.headers["location"]).text)
    assert {time >= "2026-10-02T03:00:00.000Z" for time, _, _ in records} == {True}
    assert {number for _, number, _ in records} == {0, 1, 2}
    late = client.get("/topics/orders/records?time=2100-01-01T00:00:00Z&n=5").text
    assert "No record has a time of 2100-01-01T00:00:00Z or later: these are the last records." in text(late)
    assert len(shown(late)) == 5
    assert neighbour(late, "next") is None


def test_a_page_of_a_topic_reads_a_bounded_number_of_objects() -> None:
    """Of more partitions than are merged at a time, with more segments than are read for a page."""
    store = Counting(MemoryStore())
    topic_with(store, PARTITIONS + 6, times=[1, 2, 3, 4], segment_bytes=1)
    client = visit(store)
    client.get("/topics/orders")
    store.read.clear()
    html = client.get("/topics/orders/records?n=500").text
    objects = {key for key, _, _ in store.read}
    assert shown(html)
    assert len(objects) == 2 * SEGMENTS, "index and records of each segment"
    assert len(store.read) == len(objects), "each with one request"


def test_a_topic_with_many_partitions_is_shown_in_groups() -> None:
    store = MemoryStore()
    topic_with(store, PARTITIONS + 6, times=[1], segment_bytes=1 << 20)
    client = visit(store)
    first = client.get("/topics/orders/records?n=500").text
    assert f"This topic has {PARTITIONS + 6} partitions. Here are partitions 0 to {PARTITIONS - 1}" in text(first)
    (after,) = {link for link in links(first) if "group=2" in link}
    rest = client.get(after).text
    numbers = [number for _, number, _ in shown(first) + shown(rest)]
    assert numbers == list(range(PARTITIONS + 6))


@pytest.mark.parametrize("start", ["x", "1", "1-", "-5", "0-1.x", "0--1", "0-" + "9" * 40])
def test_a_position_that_is_none_is_refused(rich: Store, start: str) -> None:
    answer = visit(rich).get("/topics/orders/records", params={"start": start})
    assert answer.status_code == 400
    assert "is not a position" in text(answer.text)


def test_the_pages_of_a_topic_and_of_a_partition_lead_to_it(rich: Store) -> None:
    client = visit(rich)
    for address in ("/topics/orders", "/topics/orders/1/records"):
        assert [link for link in links(client.get(address).text) if link.startswith("/topics/orders/records")], address
    alone = client.get("/topics/odd/0/records").text
    assert not [link for link in links(alone) if link.startswith("/topics/odd/records")], "of one partition alone"


def test_records_of_a_folder_of_the_java_tool_are_shown_together() -> None:
    client = visit(FileStore(JAVA / "archive"))
    html = client.get("/topics/orders.v1/records?n=500").text
    assert len({number for _, number, _ in shown(html)}) > 1
