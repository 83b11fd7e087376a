"""Pages of the status, drills, the history and settings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
from msgspec.structs import replace

from kbackup.archive import layout
from kbackup.archive.models import Lease, Metadata, dump
from kbackup.archive.reader import open_archive
from kbackup.cli import main
from kbackup.config.models import Backup
from kbackup.errors import DeniedError
from kbackup.jobs.metadata import merge
from kbackup.jobs.points import history
from kbackup.jobs.verify import record_verification
from kbackup.metadata.entities import (
    BrokerConfig,
    ClientMetrics,
    ClientQuota,
    Feature,
    Listener,
    Registration,
    not_carried_entry,
)
from kbackup.metadata.sources import Sources
from kbackup.metrics.registry import Silent
from kbackup.migrate import archive as job
from kbackup.migrate.archive import archive_metadata
from kbackup.store import open_store
from kbackup.store.base import ObjectInfo, Store
from kbackup.store.crypt.kek import generate_key
from kbackup.store.file import FileStore
from kbackup.util.times import rfc3339
from kbackup.web.archive_cache import FRESH, FRESH_STATUS, ArchiveCache
from kbackup.web.guard import STORED_POLICY
from kbackup.web.pages import points as history_page
from kbackup.web.pages.points import settings_tables
from tests.support.archives import commit_point, make_archive
from tests.support.drill_reports import EVIL, comparison, store_drill
from tests.support.faulty_store import FaultyStore
from tests.support.memory_store import MemoryStore
from tests.support.metadata_entities import BROKER_SECRET, acl, by_brokers, by_log, by_zookeeper, token, user
from tests.support.rich_archive import ATTACK, SCRIPT
from tests.support.verifications import SEGMENT, run
from tests.support.visits import crawl, links, tags, text, visit

LENIENT = 1e12


class Verdict(NamedTuple):
    level: str
    text: str


def verdict(html: str) -> Verdict:
    """Return the verdict that stands on a page."""
    (classes,) = [a["class"] or "" for tag, a in tags(html) if (a.get("class") or "").startswith("verdict ")]
    shown = text(html.partition('<a class="verdict')[2].partition(">")[2].partition("</a>")[0])
    level = classes.split()[1]
    assert shown.startswith(level)
    return Verdict(level, shown.partition(" ")[2])


def test_every_page_shows_the_verdict(store: Store) -> None:
    client = visit(store, cache=ArchiveCache(store, rules=Backup(max_age=LENIENT)))
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
        assert f'data-copy="{command} --archive {store.url}"' in html
    assert "No command is writing" in shown


def test_findings_of_hostile_names_are_text(store: Store) -> None:
    store_drill(store, "drill-1", result="failed", comparison=comparison(ok=False))
    lease = Lease(
        owner="x",
        host=ATTACK,
        pid=1,
        command=SCRIPT,
        acquired_at="2026-01-01T00:00:00.000Z",
        expires_at="2026-01-01T00:01:00.000Z",
    )
    store.put(layout.LOCK, dump(lease))
    html = visit(store, cache=ArchiveCache(store, rules=Backup(max_age=LENIENT))).get("/status").text
    assert verdict(html).level == "critical"
    assert "1 other finding" in verdict(html).text
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
    client = visit(counted, cache=ArchiveCache(counted, lambda: now[0], rules=Backup(max_age=LENIENT)))
    client.get("/")
    counted.calls.clear()
    client.get("/topics")
    assert counted.calls == []
    now[0] += FRESH + 1
    client.get("/status")
    client.get("/nothing")
    assert counted.calls == [("list", layout.CATALOG)]
    now[0] += FRESH_STATUS
    client.get("/status")
    assert len(counted.calls) <= 8
    archive = open_archive(store)
    assert archive.head is not None
    commit_point(archive, 3)
    now[0] += FRESH + 1
    assert verdict(client.get("/").text).text.startswith("restore point 3 is ")


@pytest.mark.parametrize("allow_loss", [False, True])
def test_the_verdict_follows_the_rules_of_the_configuration(store: Store, allow_loss: bool) -> None:
    archive = open_archive(store)
    assert archive.head is not None
    loss = archive.losses(archive.head)[0]
    commit_point(archive, 3, losses=[loss], at=rfc3339(datetime.now(UTC)))
    cache = ArchiveCache(store, rules=Backup(allow_loss=allow_loss))
    assert verdict(visit(store, cache=cache).get("/").text).level == ("ok" if allow_loss else "warning")


# Drills on the page: the list, damaged reports, and the stored pages behind a policy of their own.


def test_the_newest_drill_comes_first_and_damage_hides_no_other(store: Store) -> None:
    store_drill(store, "drill-1", result="failed", comparison=comparison(ok=False), findings=(EVIL, *["differs"] * 6))
    store_drill(store, "drill-2")
    store.put(layout.drill_key("drill-2", layout.REPORT), b"{}")
    store_drill(store, "drill-3", restore_point=2, comparison=comparison("clicks"))
    shown = visit(store).get("/drills").text
    assert "<script>alert" not in shown
    said = text(shown)
    assert said.index("last drill passed") < said.index("drill-3 passed")
    assert "drill-2 can't be read" in said
    assert "drill-1 failed" in said
    assert "and 2 more" in said
    assert 'href="/points/2"' in shown, "a restore point that the archive has"
    assert 'href="/points/7"' not in shown


def test_a_recorded_verification_is_shown(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    store = FileStore(root)
    make_archive(store)
    client = visit(store)
    empty = text(client.get("/drills").text)
    assert "No drill of this archive is stored" in empty
    assert "No verification of this archive is recorded" in empty
    record_verification(store, run(root, quick=True), "2026-01-31T05:30:00.000Z", partial=False)
    (root / SEGMENT).write_bytes(b"damage")
    record_verification(store, run(root, quick=True), "2026-01-31T06:30:00.000Z", partial=False)
    broken = layout.verification_key("2026-01-31T07-30-00-000Z-full-0a")
    store.put(broken, b"{}")
    shown = text(client.get("/drills").text)
    assert f"can't be read file {broken}" in shown
    assert shown.index("can't be read") < shown.index("1 finding ") < shown.index("nothing found")
    assert SEGMENT in shown


def test_the_stored_page_is_kept_apart(store: Store) -> None:
    store_drill(store, "drill-1")
    client = visit(store)
    shown = client.get("/drills/drill-1/page")
    assert shown.status_code == 200
    assert shown.text.startswith("<!doctype html>")
    assert shown.headers["content-security-policy"] == STORED_POLICY
    assert "sandbox" in STORED_POLICY
    assert "script" not in STORED_POLICY
    assert links(shown.text) == ["/drills"], "the way back"
    assert shown.headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize("drill_id", ["drill-9", "..", "a b", "%2e%2e%2farchive.json"])
def test_a_drill_that_is_not_stored(store: Store, drill_id: str) -> None:
    assert visit(store).get(f"/drills/{drill_id}/page").status_code == 404


def test_a_page_that_was_changed_is_not_shown(store: Store) -> None:
    store_drill(store, "drill-1")
    store.put(layout.drill_key("drill-1", layout.PAGE), b"<script>alert(1)</script>" * 1000)
    shown = visit(store).get("/drills/drill-1/page")
    assert shown.status_code == 500
    assert "is not what its report says" in text(shown.text)
    store.delete([layout.drill_key("drill-1", layout.PAGE)])
    assert "is missing" in text(visit(store).get("/drills/drill-1/page").text)


def test_drills_beside_the_archive(store: Store) -> None:
    """With `restore.state`, reports of drills are not in the archive."""
    state = MemoryStore()
    store_drill(state, "drill-1")
    client = visit(store, cache=ArchiveCache(store, lambda: 0.0, state))
    assert "drill-1 passed" in text(client.get("/drills").text)


# The archive's history on the page.


def test_every_catalog_is_shown_the_newest_first(store: Store) -> None:
    rows = history(open_archive(store))
    html = visit(store).get("/history").text
    assert re.findall(r'<data class="n" value="(\d+)"', html) == [str(row.catalog) for row in rows[::-1]]
    assert len(rows) > 2
    shown = text(html)
    assert all(f"{row.kind} {row.summary} {row.by}" in shown for row in rows)


def test_history_page_by_page(store: Store) -> None:
    client = visit(store)
    address: str | None = "/history"
    seen: list[str] = []
    with mock.patch.object(history_page, "HISTORY_PAGE", 2):
        while address is not None:
            html = client.get(address).text
            numbers = re.findall(r'<data class="n" value="(\d+)"', html)
            assert 1 <= len(numbers) <= 2
            seen += numbers
            address = next((link for link in links(html) if "upto=" in link), None)
    assert seen == [str(row.catalog) for row in history(open_archive(store))[::-1]]
    assert client.get("/history?upto=0").status_code == 400


def test_the_restore_point_at_which_the_cluster_changed_is_marked(store: Store) -> None:
    archive = open_archive(store)
    commit_point(archive, 3, cluster_id="rebuilt")
    commit_point(archive, 4, cluster_id="rebuilt")
    client = visit(store)
    assert text(client.get("/").text).count("another cluster") == 1
    assert "another cluster than before" in text(client.get("/points/3").text)
    for number in (1, 4):
        assert "another cluster" not in text(client.get(f"/points/{number}").text)


# The tables of a restore point's settings; secrets of an encrypted archive are in none.


HIDDEN = "not-to-be-seen"


METADATA = Metadata(
    captured_at="now",
    cluster_id="c",
    brokers=1,
    topics=(),
    acls=(acl("x", resource="user", operation="describe_tokens"),),
    scram_users=(user(key=HIDDEN),),
    broker_configs=(
        BrokerConfig(broker=None, name="log.segment.bytes", value="1"),
        BrokerConfig(broker=1, name="ssl.key.password", value=HIDDEN),
    ),
    client_quotas=(ClientQuota(entity={"user": "b o%b", "client-id": None}, quotas={"producer_byte_rate": 3e9}),),
    delegation_tokens=(replace(token(HIDDEN), requester="User:r", renewers=("User:b",), expires_at=1000),),
    client_metrics=(ClientMetrics(name="m 1", configs={"interval.ms": "1", "metrics": "x"}),),
    features=(Feature(name="metadata.version", level=30),),
    registrations=(
        Registration(
            id=1, role="broker", listeners=(Listener(name="", host="h", port=1, security_protocol="SSL"),), alive=False
        ),
    ),
    not_carried=(not_carried_entry("group_configs", "denied", "so it is"),),
)


def test_every_kind_has_its_table() -> None:
    tables = {table.title: table for table in settings_tables(METADATA)}
    assert HIDDEN not in repr(tables)
    assert tables["Client quotas"].rows == [("b o%b", "default", "-", "producer_byte_rate=3000000000")]
    assert tables["Delegation tokens"].rows == [("t1", "User:a", "User:r", "User:b", "1970-01-01T00:00:01.000Z")]
    assert tables["Client metrics"].rows == [("m 1", "interval.ms=1, metrics=x")]
    assert tables["Features"].rows == [("metadata.version", 30)]
    assert tables["Brokers and controllers"].rows == [(1, "broker", "SSL h:1", "-", "down")]
    assert tables["Configs of brokers"].rows == [("all", "log.segment.bytes", "1"), (1, "ssl.key.password", None)]
    assert (tables["Configs of groups"].rows, tables["Configs of groups"].why) == (None, "so it is")
    assert all(len(row) == len(table.columns) for table in tables.values() for row in table.rows or ())


# Commands and pages show everything of an encrypted archive but a cluster's secrets.


KEYS = ("Zmlyc3Qga2V5", "c2Vjb25kIGtleQ==")
SECRETS = (*KEYS, "aG1hYw==", "hush")
COMMANDS = (["info"], ["list"], ["log"], ["diff", "1", "2"], ["verify", "--quick"], ["ls"])


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two restore points, between which the user's password changed."""
    (tmp_path / "key").write_text(generate_key())
    (tmp_path / "key").chmod(0o600)
    store = open_store(str(tmp_path / "archive"), key=f"file:{tmp_path}/key", key_class=layout.key_class)
    for key in KEYS:
        zookeeper = by_zookeeper(scram_users=(user(key=key),), delegation_tokens=(token(),))
        log = by_log(scram_users=(user(key=key),))
        readings = [by_brokers(), zookeeper, log]
        merged = merge(readings, "2026-01-05T00:00:00.000Z", 1)
        monkeypatch.setattr(job, "read_all", lambda sources, merged=merged: merged)
        archive_metadata(Backup(), Sources(kafka={"bootstrap.servers": "b:1"}), store, Silent())
    archive = open_archive(store)
    assert archive.head is not None
    held = repr(archive.metadata(archive.head))
    assert all(secret in held for secret in SECRETS if secret != KEYS[0])
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("how", [[], ["--json"]], ids=["text", "json"])
def test_no_command_shows_a_secret(
    root: Path, command: list[str], how: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    archive = ["-a", str(root / "archive"), "--set", f"encryption.key=file:{root}/key"]
    assert main([*command, *archive, *how]) == 0
    out, err = capsys.readouterr()
    assert out
    assert not [secret for secret in SECRETS if secret in out + err]


def test_no_page_shows_a_secret(root: Path) -> None:
    store = open_store(str(root / "archive"), key=f"file:{root}/key", key_class=layout.key_class)
    pages = {address: html for address, _, html in crawl(visit(store), of_a_kind=3)}
    assert len(pages) > 3
    for address, html in pages.items():
        assert not [secret for secret in SECRETS if secret in html], address
    assert any(BROKER_SECRET.name in html for html in pages.values()), "the name of the config is no secret"
