"""Pages of an archive that grows, is damaged, or does not answer."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.retention import expire_points, lose_segments
from kbackup.archive.reader import open_archive
from kbackup.errors import UnreachableError
from kbackup.jobs.points import label, pin
from kbackup.store.base import ObjectInfo, Store
from kbackup.web.archive_cache import FRESH, ArchiveCache
from tests.support.archives import commit_point, group_at, topic_state
from tests.support.faulty_store import FaultyStore
from tests.support.visits import links, text, visit


def test_an_earlier_restore_point_stays_with_its_links(rich: Store) -> None:
    client = visit(rich)
    page = client.get("/topics/orders/1?point=2").text
    assert "as of restore point 2 · go to the newest" in text(page)
    inside = [link for link in links(page) if link.startswith("/topics/orders")]
    assert inside
    assert all("point=2" in link for link in inside if link != "/topics/orders/1")
    records = client.get("/topics/orders/1/records?point=2&last=1&n=1").text
    assert "offsets 39 to 39" in text(records)


def test_damage_is_named_on_its_page(store: Store) -> None:
    client = visit(store)
    assert client.get("/topics/orders/0/records").status_code == 200
    key = next(e.key for e in store.list("topics/orders/segment_partition_000") if e.key.endswith("_records"))
    store.put(key, b"\x01" + b"\x7f" * (len(store.get(key)) - 1))
    for address in ("/topics/orders/0/records", "/topics/orders/0/records/1"):
        answer = client.get(address)
        assert answer.status_code == 500
        assert key.rpartition("/")[2] in text(answer.text)
        assert "Traceback" not in answer.text
    assert client.get("/topics/orders/1/records").status_code == 200
    groups = open_archive(store).capture(1).groups.key
    store.put(groups, b"{}")
    assert groups in text(client.get("/groups?point=1").text)


def test_a_store_that_does_not_answer(store: Store) -> None:
    class Gone(FaultyStore):
        away = False

        def get(self, key: str) -> bytes:
            if self.away:
                raise UnreachableError("store s3://away can't be reached", "is it up?")
            return super().get(key)

    gone = Gone(store)
    client = visit(gone)
    gone.away = True
    answer = client.get("/groups")
    assert answer.status_code == 502
    assert "store s3://away can't be reached" in text(answer.text)
    gone.away = False
    assert client.get("/groups").status_code == 200


def test_unexpected_errors_become_an_error_page(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    cache = ArchiveCache(store)
    client = visit(store, cache=cache)
    cache.points = None  # type: ignore[assignment, method-assign]
    answer = client.get("/")
    assert answer.status_code == 500
    assert "internal error: TypeError" in text(answer.text)
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "Traceback" not in caplog.text


def test_new_restore_points_show_up(store: Store) -> None:
    now = [0.0]
    client = visit(store, clock=lambda: now[0])
    assert "/points/3" not in client.get("/").text
    archive = ArchiveCache(store)._archive
    assert archive is not None
    state = topic_state("later", 3, "present", [(0, 0, [])])
    commit_point(archive, 3, [state], [], [group_at("new", ("later", 0, 0))])
    assert "/points/3" not in client.get("/").text, "nobody looked yet"
    now[0] += FRESH + 1
    assert "/points/3" in client.get("/").text
    assert "later" in text(client.get("/topics").text)
    base = open_archive(store).committed
    commit(store, base, lambda state: expire_points(state, [1, 2]), Author("expire", "", "test"))
    now[0] += FRESH + 1
    page = client.get("/").text
    assert "/points/2" not in page, "what goes is noticed as well"
    assert "/points/3" in page
    assert "2 restore points expired or lost" in text(page)
    assert "restore point 2, expired or lost" in text(client.get("/points/3").text)


def test_pins_labels_and_damage_are_shown(store: Store) -> None:
    """Damage that a repair found counts for every restore point that has the segment."""
    pin(store, "1")
    label(store, "2", "before-migration")
    archive = open_archive(store)
    segment = archive.added(0, 1)[0]
    damaged = {segment.key: "the object is missing"}
    commit(store, archive.committed, lambda state: lose_segments(state, damaged), Author("repair", "", "test"))
    client = visit(store)
    rows = re.findall(r"<tr>\s*<th><a.*?</tr>", client.get("/").text, re.DOTALL)
    newest, oldest = map(text, rows)
    assert "1 damaged segment" in newest
    assert "before-migration" in newest
    assert "pinned" not in newest
    assert "pinned" in oldest
    point = text(client.get("/points/before-migration").text)
    assert "Restore point 2 before-migration" in point
    assert "the object is missing" in point
    for document in archive.find_point(2).documents:
        assert document in point
    assert "Restore point 1 pinned" in text(client.get("/points/1").text)
    topics = client.get("/topics?point=before-migration")
    assert topics.status_code == 200
    assert "as of restore point before-migration" in text(topics.text)
    assert "the object is missing" in text(client.get(f"/topics/{segment.topic}").text)


def test_looking_again_costs_one_listing(store: Store) -> None:
    class Listing(FaultyStore):
        def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
            self.calls.append(("list", prefix))
            return super().list(prefix, start_after)

    counted = Listing(store)
    now = [0.0]
    client = visit(counted, clock=lambda: now[0])
    client.get("/topics")
    counted.calls.clear()
    client.get("/topics")
    assert counted.calls == []
    now[0] += FRESH + 1
    client.get("/topics")
    assert counted.calls == [("list", layout.CATALOG)]
