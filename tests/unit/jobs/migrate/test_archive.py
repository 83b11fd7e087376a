"""A restore point of metadata alone: what is in it, and that everything else goes on as if it were not there."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.documents import OpenRun
from kbackup.archive.catalog.operations import begin_run
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import Metadata
from kbackup.archive.query.content import Content
from kbackup.archive.reader import Archive, open_archive
from kbackup.config.models import Backup, Restore
from kbackup.errors import LockedError, MismatchError, UsageError
from kbackup.jobs.backup.plan import make_plan
from kbackup.jobs.capture import Live, LiveTopic
from kbackup.jobs.metadata import Merged, merge
from kbackup.jobs.migrate import archive as job
from kbackup.jobs.migrate.archive import ArchiveReport, archive_metadata
from kbackup.jobs.points import history
from kbackup.jobs.restore.plan import select_content
from kbackup.jobs.retention import Expiry, Policy, expire
from kbackup.jobs.verify.job import verify
from kbackup.metadata.entities import SCRAM_SECRETS
from kbackup.metadata.sources import Sources
from kbackup.metrics.registry import Silent
from kbackup.store import open_store
from kbackup.store.base import Store
from kbackup.store.crypt.kek import generate_key
from tests.support.archives import make_archive
from tests.support.metadata_entities import by_brokers, by_zookeeper, user

SOURCES = Sources(kafka={"bootstrap.servers": "b:1"})
SECRETS = (b"c3RvcmVk", b"aG1hYw==")
"""Of the user and of the token."""


@pytest.fixture(autouse=True)
def _cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(sources: Sources) -> Merged:
        readings = [replace(r, cluster_id="source") for r in (by_brokers(), by_zookeeper())]
        return merge(readings, "2026-01-05T00:00:00.000Z", 1)

    monkeypatch.setattr(job, "read_all", read)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "archive"))


def archived(store: Store, label: str = "") -> ArchiveReport:
    return archive_metadata(Backup(), SOURCES, store, Silent(), label)


def content(store: Store, **options: object) -> Content:
    return select_content(Restore(**options), store)  # type: ignore[arg-type]  # each option has its own type


def metadata_of(store: Store) -> Metadata:
    archive = open_archive(store)
    assert archive.head is not None
    return archive.metadata(archive.head)


def stored(root: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file())


def test_into_an_empty_archive(store: Store) -> None:
    report = archived(store, "before-controllers")
    archive = open_archive(store)
    assert (report.restore_point, report.label) == (1, "before-controllers")
    assert archive.state.labels == {"before-controllers": 1}
    assert archive.state.open_run is None
    assert {p.part: (p.entities, p.source) for p in report.parts}["SCRAM users"] == (1, "zookeeper")
    assert archive.head is not None
    assert (archive.head.topics, archive.head.totals.records) == ((), 0)
    assert [t.name for t in metadata_of(store).topics] == ["orders"]
    assert content(store).topics == ()
    assert history(archive)[-1].summary == "restore point 1: metadata alone"


def test_topics_and_groups_stay_as_the_last_backup_has_them(store: Store) -> None:
    make_archive(store)
    before, records = content(store), _records(store)
    archived(store)
    after = content(store)
    assert [(t.name, t.as_of, t.partitions) for t in after.topics] == [
        (t.name, t.as_of, t.partitions) for t in before.topics
    ]
    assert (after.groups, after.losses) == (before.groups, before.losses)
    assert _records(store) == records
    head = open_archive(store).head
    assert head is not None
    assert {(t.name, t.state) for t in head.topics} == {("clicks", "deleted"), ("orders", "unselected")}


def _records(store: Store) -> int:
    return sum(p.records for t in content(store).topics for p in t.partitions)


def test_the_next_backup_goes_on_where_the_last_one_ended(store: Store) -> None:
    archive = make_archive(store)
    live = [LiveTopic("orders", "id of orders", {0: Live(0, 50, 50), 1: Live(0, 12, 12), 2: Live(0, 0, 0)})]
    expected = make_plan(archive.head, live, ["orders"], lambda name, topic_id: 9)
    archived(store)
    plan = make_plan(open_archive(store).head, live, ["orders"], lambda name, topic_id: 9)
    assert plan == expected


def test_archived_metadata_is_verified(store: Store) -> None:
    make_archive(store)
    archived(store)
    archived(store)
    report = verify(store, "all", True, lambda: pytest.fail("Spark was asked for"), Silent())
    assert report.findings == ()


def test_older_points_expire_and_records_stay(store: Store) -> None:
    make_archive(store)
    archived(store)
    before = content(store)
    expire(store, Expiry(Policy(last=1), None, timedelta(0)), 60, Silent(), confirm=True)
    assert [p.number for p in open_archive(store).restore_points] == [3]
    assert content(store).topics == before.topics
    assert content(store).groups == before.groups
    assert verify(store, "all", True, lambda: pytest.fail("Spark was asked for"), Silent()).findings == ()


def test_records_do_not_age_by_it(store: Store) -> None:
    """The age of records counts from the newest capture of topics: restore point 2, of 2026-01-02."""
    make_archive(store)
    dry = expire(
        store, Expiry(Policy(last=9), timedelta(days=900), timedelta(0)), 60, Silent(), confirm=False
    )
    archived(store)
    after = expire(
        store, Expiry(Policy(last=9), timedelta(days=900), timedelta(0)), 60, Silent(), confirm=False
    )
    assert after.before == dry.before


def test_segments_of_an_interrupted_backup_are_still_looked_for(store: Store) -> None:
    archive = make_archive(store)
    _interrupt(archive)
    archived(store)
    assert open_archive(store).state.open_run is not None


def _interrupt(archive: Archive) -> None:
    run = OpenRun(
        run="ab",
        command="backup",
        host="h",
        started_at="2026-01-03T00:00:00.000Z",
        isolation_level="read_committed",
    )
    archive.move(
        commit(archive.store, archive.committed, lambda s: begin_run(s, run), Author("begin", "ab", ""))
    )


def test_secrets_go_into_an_encrypted_archive_alone(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(generate_key())
    key.chmod(0o600)
    plain, sealed = (
        open_store(str(tmp_path / "plain")),
        open_store(str(tmp_path / "sealed"), key=f"file:{key}", key_class=layout.key_class),
    )
    report = archived(plain)
    archived(sealed)
    for secret in SECRETS:
        assert secret not in stored(tmp_path / "plain") + stored(tmp_path / "sealed")
    assert {n.what for n in report.not_carried if n.reason == "secret"} == {
        SCRAM_SECRETS,
        "secrets of delegation tokens",
    }
    assert metadata_of(plain).scram_users == (user(key=None),)
    assert metadata_of(sealed).scram_users == (user(),)


def test_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="names no cluster"):
        archive_metadata(Backup(), Sources(kafka={}), store, Silent())
    archive = make_archive(store)
    other = merge([replace(by_brokers(), cluster_id="other")], "2026-01-05T00:00:00.000Z", 1)
    with monkeypatch.context() as patched:
        patched.setattr(job, "read_all", lambda sources: other)
        with pytest.raises(MismatchError, match="is of cluster source, the source is cluster other"):
            archived(store)
    with HeldLease(archive.store, "kbackup backup --follow", 60), pytest.raises(LockedError):
        archived(store)
