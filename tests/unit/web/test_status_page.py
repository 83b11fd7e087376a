"""The verdict at the top of every page, and the page of the status that it leads to."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from kbackup.archive import layout
from kbackup.archive.models import Lease, dump
from kbackup.archive.reader import open_archive
from kbackup.errors import DeniedError
from kbackup.store.base import ObjectInfo, Store
from kbackup.store.file import FileStore
from kbackup.util.times import rfc3339
from kbackup.web.archive_cache import FRESH, FRESH_STATUS, ArchiveCache
from tests.golden.java_archive import ROOT as JAVA
from tests.support.archives import commit_point
from tests.support.drill_reports import store_drill
from tests.support.faulty_store import FaultyStore
from tests.support.rich_archive import ATTACK, SCRIPT
from tests.support.visits import links, tags, text, visit

LENIENT = 1e12


def verdict(html: str) -> tuple[str, str]:
    """Return the level and the text of the verdict on a page."""
    (classes,) = [a["class"] or "" for tag, a in tags(html) if (a.get("class") or "").startswith("verdict ")]
    shown = text(html.partition('<a class="verdict')[2].partition(">")[2].partition("</a>")[0])
    assert shown.startswith(classes.split()[1])
    return classes.split()[1], shown.partition(" ")[2]


def test_every_page_shows_the_verdict(store: Store) -> None:
    client = visit(store, cache=ArchiveCache(store, max_age=LENIENT))
    for address in ("/", "/topics", "/topics/orders/0/records", "/restore", "/status", "/nothing"):
        html = client.get(address).text
        level, line = verdict(html)
        assert level == "ok"
        assert line.startswith("restore point 2 is ")
        assert "never verified; no drill" in line
        assert "/status" in links(html)


def test_an_old_restore_point_turns_it_red(store: Store) -> None:
    html = visit(store).get("/status").text
    level, line = verdict(html)
    assert level == "critical"
    assert "the newest restore point, 2, is" in line
    assert line.endswith("backup.max_age is 26h")
    shown = text(html)
    assert shown.count(line) == 2, "at the top, and among the findings with its command"
    for command in ("kbackup backup", "kbackup verify", "kbackup drill"):
        assert f'data-copy="{command}"' in html
    assert "No writer holds it" in shown


def test_findings_of_hostile_names_are_text(store: Store) -> None:
    store_drill(store, "drill-1", result="failed")
    lease = Lease(
        owner="x",
        host=ATTACK,
        pid=1,
        command=SCRIPT,
        acquired_at="2026-01-01T00:00:00.000Z",
        expires_at="2026-01-01T00:01:00.000Z",
    )
    store.put(layout.LOCK, dump(lease))
    html = visit(store, cache=ArchiveCache(store, max_age=LENIENT)).get("/status").text
    assert verdict(html)[0] == "critical"
    assert "1 other finding" in verdict(html)[1]
    assert f"{SCRIPT} on {ATTACK} (pid 1) began at" in text(html)
    assert "kbackup unlock" in text(html)
    assert html.count("<script") == 2, "the page's own"


def test_a_status_that_can_not_be_read_hides_no_page(store: Store) -> None:
    class Denied(FaultyStore):
        def get_with_etag(self, key: str) -> tuple[bytes, str]:
            if key == layout.LOCK:
                raise DeniedError("access to the lease is denied", "grant s3:GetObject")
            return super().get_with_etag(key)

    client = visit(Denied(store))
    assert verdict(client.get("/topics").text) == ("unknown", "access to the lease is denied")
    shown = client.get("/status")
    assert shown.status_code == 200
    assert "grant s3:GetObject" in text(shown.text)


def test_the_status_is_read_once_a_minute_and_with_a_new_restore_point(store: Store) -> None:
    class Counted(FaultyStore):
        def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
            self.calls.append(("list", prefix))
            return super().list(prefix, start_after)

    counted = Counted(store)
    now = [0.0]
    client = visit(counted, cache=ArchiveCache(counted, lambda: now[0], max_age=LENIENT))
    client.get("/")
    counted.calls.clear()
    now[0] += FRESH + 1
    client.get("/status")
    client.get("/nothing")
    assert counted.calls == [("list", layout.CATALOG)]
    now[0] += FRESH_STATUS
    client.get("/status")
    assert len(counted.calls) <= 8
    archive = open_archive(store)
    assert archive.head is not None
    commit_point(archive, 3, archive.head.topics, [], [])
    now[0] += FRESH + 1
    assert verdict(client.get("/").text)[1].startswith("restore point 3 is ")


def test_a_folder_of_the_java_tool_has_no_verdict() -> None:
    client = visit(FileStore(JAVA / "archive"))
    assert 'class="verdict' not in client.get("/").text
    assert client.get("/status").status_code == 404


@pytest.mark.parametrize("allow_loss", [False, True])
def test_the_verdict_follows_the_rules_of_the_configuration(store: Store, allow_loss: bool) -> None:
    archive = open_archive(store)
    assert archive.head is not None
    loss = archive.losses(archive.head)[0]
    commit_point(archive, 3, archive.head.topics, [], [], [loss], at=rfc3339(datetime.now(UTC)))
    cache = ArchiveCache(store, allow_loss=allow_loss)
    assert verdict(visit(store, cache=cache).get("/").text)[0] == ("ok" if allow_loss else "warning")
