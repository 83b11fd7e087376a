"""A restore point of metadata alone: what is in it, and that everything else goes on as if it were not there."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.documents import OpenRun
from kbackup.archive.catalog.operations import begin_run
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import Metadata
from kbackup.archive.query.content import Content
from kbackup.archive.reader import Archive, open_archive
from kbackup.cli import main
from kbackup.config.models import Backup, Restore
from kbackup.errors import LockedError, MismatchError, RefusedError, UsageError
from kbackup.jobs.backup.plan import make_plan
from kbackup.jobs.capture import Live, LiveTopic
from kbackup.jobs.metadata import Merged, merge
from kbackup.jobs.points import history
from kbackup.jobs.restore.plan import select_content
from kbackup.jobs.restore.request import RestoreRequest
from kbackup.jobs.retention import Expiry, Policy, expire
from kbackup.jobs.verify import verify
from kbackup.metadata.entities import SCRAM_SECRETS, DelegationToken, Reading
from kbackup.metadata.sources import Sources
from kbackup.metrics.registry import Silent
from kbackup.migrate import archive as job
from kbackup.migrate import verify as verify_job
from kbackup.migrate.archive import ArchiveReport, archive_metadata
from kbackup.migrate.bootstrap import make_bootstrap
from kbackup.migrate.metadata_log.codec import record
from kbackup.migrate.metadata_log.image import MetadataImage, reading_of
from kbackup.migrate.metadata_log.log import read_snapshot
from kbackup.migrate.verify import MigrationVerifyReport, verify_migration
from kbackup.store import open_store
from kbackup.store.base import Store
from kbackup.store.crypt.kek import generate_key
from kbackup.systems import MetadataSource
from tests.support.archives import make_archive
from tests.support.metadata_entities import acl, by_brokers, by_log, by_zookeeper, quota, token, topic, user
from tests.support.metadata_records import write_snapshot

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
    return select_content(RestoreRequest.of(Restore(**options)), store)  # type: ignore[arg-type]  # each option has its own type


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
    dry = expire(store, Expiry(Policy(last=9), timedelta(days=900), timedelta(0)), 60, Silent(), confirm=False)
    archived(store)
    after = expire(store, Expiry(Policy(last=9), timedelta(days=900), timedelta(0)), 60, Silent(), confirm=False)
    assert after.before == dry.before


def test_segments_of_an_interrupted_backup_are_still_looked_for(store: Store) -> None:
    archive = make_archive(store)
    _interrupt(archive)
    archived(store)
    assert open_archive(store).state.open_run is not None


def _interrupt(archive: Archive) -> None:
    run = OpenRun(
        run="ab", command="backup", host="h", started_at="2026-01-03T00:00:00.000Z", isolation_level="read_committed"
    )
    archive.move(commit(archive.store, archive.committed, lambda s: begin_run(s, run), Author("begin", "ab", "")))


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


def test_metadata_of_no_cluster_or_of_another_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
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


# The file that a fresh KRaft cluster starts from, made of a restore point.


LATER = 1 << 45
USERS = (user(), user("b o%b"))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "formatted"
    folder.mkdir()
    features = [record("FeatureLevelRecord", {"name": "metadata.version", "featureLevel": 30})]
    return write_snapshot(folder, 0, features)


def key_of(folder: Path) -> str:
    key = folder / "key"
    key.write_text(generate_key())
    key.chmod(0o600)
    return f"file:{key}"


def archive_of(folder: Path, monkeypatch: pytest.MonkeyPatch, *readings: Reading, encrypted: bool = True) -> Archive:
    store = open_store(str(folder / "archive"), key=key_of(folder) if encrypted else "", key_class=layout.key_class)
    merged = merge(readings, "2026-01-05T00:00:00.000Z", 1)
    monkeypatch.setattr(job, "read_all", lambda sources: merged)
    archive_metadata(Backup(), Sources(kafka={"bootstrap.servers": "b:1"}), store, Silent())
    return open_archive(store)


def test_users_quotas_and_valid_tokens(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    valid = DelegationToken(
        **{name: getattr(token(), name) for name in DelegationToken.__struct_fields__}
        | {"id": "t2", "expires_at": LATER}
    )
    zookeeper = by_zookeeper(scram_users=USERS, delegation_tokens=(token(), valid))
    archive = archive_of(tmp_path, monkeypatch, by_brokers(), zookeeper)
    report = make_bootstrap(archive, "latest", base, tmp_path / "out")
    file = tmp_path / "out" / base.name
    assert report.file == str(file)
    assert (report.scram_users, report.client_quotas, report.delegation_tokens) == (2, 1, 1)
    assert (report.expired, report.live) == (("t1",), ("acls", "configs"))
    assert file.stat().st_mode & 0o777 == 0o600
    image = MetadataImage()
    for each in read_snapshot(file):
        image.replay(each.record)
    found = reading_of(image, "")
    assert (found.scram_users, found.client_quotas) == (USERS, (quota(),))
    assert [t.id for t in found.delegation_tokens or ()] == ["t2"]
    assert report.next_producer_id == found.next_producer_id == 2000
    assert [f.name for f in found.features or ()] == ["metadata.version"]


def test_without_a_producer_id_block_none_is_written(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = archive_of(tmp_path, monkeypatch, by_brokers(), by_zookeeper(next_producer_id=None))
    assert make_bootstrap(archive, "latest", base, tmp_path / "out").next_producer_id is None
    records = read_snapshot(tmp_path / "out" / base.name)
    assert "ProducerIdsRecord" not in {each.record.name for each in records}


def test_without_secrets_it_is_refused(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = archive_of(tmp_path, monkeypatch, by_brokers(), by_zookeeper(), encrypted=False)
    with pytest.raises(
        RefusedError, match=r"no secrets of SCRAM user alice; run .kbackup migrate archive. into an encrypted archive"
    ):
        make_bootstrap(archive, "latest", base, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_users_that_were_not_captured(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = archive_of(tmp_path, monkeypatch, by_brokers(scram_users=None))
    with pytest.raises(RefusedError, match="were not captured"):
        make_bootstrap(archive, "latest", base, tmp_path / "out")


def test_bootstrap_reads_a_file_that_is_there_and_writes_one_that_is_not(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = archive_of(tmp_path, monkeypatch, by_brokers(), by_zookeeper())
    with pytest.raises(UsageError, match="no such file"):
        make_bootstrap(archive, "latest", tmp_path / "missing", tmp_path / "out")
    make_bootstrap(archive, "latest", base, tmp_path / "out")
    with pytest.raises(UsageError, match="is there already"):
        make_bootstrap(archive, "latest", base, tmp_path / "out")


def test_the_command_names_no_secret(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    archive_of(tmp_path, monkeypatch, by_brokers(), by_zookeeper())
    monkeypatch.chdir(tmp_path)
    command = ["migrate", "bootstrap", "-a", str(tmp_path / "archive"), "--encryption-key", f"file:{tmp_path}/key"]
    assert main([*command, "--base", str(base), "--out", str(tmp_path / "out")]) == 0
    out, err = capsys.readouterr()
    assert "restore point 1, 1 SCRAM user, 1 client quota, 0 delegation tokens, producer ids from 2000 on\n" in out
    assert "kbackup restore --with acls,configs" in out
    for secret in ("c3RvcmVk", "stored"):
        assert secret not in out + err


# Each difference between the sides of a migration is named, and none that passes within the lag.


BROKERS = Sources(kafka={"bootstrap.servers": "b:1"})
NONE = Sources(kafka={})
BOTH = (topic(replicas=((1, 2),)), topic("unselected"))


class Looks:
    """Gives each look its readings, the last ones for ever; time passes by its sleeps alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *looks: tuple[Reading, ...]) -> None:
        self.looks, self.at, self.now = looks, -1, 0.0
        monkeypatch.setattr(verify_job, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self._sleep))
        monkeypatch.setattr(verify_job, "metadata_sources", self._beside)
        monkeypatch.setattr(verify_job, "read_brokers", lambda sources: (by_brokers(topics=BOTH), 1))

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def _beside(self, sources: Sources) -> list[MetadataSource]:
        self.at = min(self.at + 1, len(self.looks) - 1)
        return [MetadataSource(r.source, r.source, lambda r=r: r) for r in self.looks[self.at]]  # type: ignore[misc]  # bound now


def texts(report: MigrationVerifyReport) -> list[str]:
    return [each.text for each in report.differences]


def verified(looks: Looks, sources: Sources = NONE, **options: Any) -> MigrationVerifyReport:
    return verify_migration(sources, options.get("archive"), "latest", 10)


def test_all_sides_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    report = verified(Looks(monkeypatch, (by_zookeeper(), by_log())), BROKERS)
    assert (texts(report), report.looks, report.restore_point) == ([], 1, None)
    assert [side.name for side in report.sides] == ["brokers", "zookeeper", "metadata log"]
    assert report.sides[1].entities["topics"] == 2
    assert report.not_compared["zookeeper and metadata log"] == [
        "group configs",
        "client metrics",
        "values of sensitive broker configs",
        "leaders and in-sync replicas",
    ]


def test_differences_that_pass_within_the_lag_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    behind = (by_zookeeper(acls=()), by_log())
    looks = Looks(monkeypatch, behind, behind, (by_zookeeper(), by_log()))
    report = verified(looks)
    assert (texts(report), report.looks, looks.now) == ([], 3, 2.0)


def test_lasting_differences_are_named_after_the_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    tampered = by_zookeeper(acls=(), client_quotas=(quota(rate=1.0),), scram_users=(user(key="b3RoZXI="),))
    looks = Looks(monkeypatch, (tampered, by_log()))
    report = verified(looks)
    assert looks.now == 10.0
    assert texts(report) == [
        "ACLs: User:a allow read from * on literal topic orders: in metadata log, not in zookeeper",
        *(
            f"SCRAM users: alice SCRAM-SHA-512: {field} is ******** in zookeeper, ******** in metadata log"
            for field in ("salt", "server_key", "stored_key")
        ),
        "client quotas: user 'alice': consumer_byte_rate is 1.0 in zookeeper, 1024.0 in metadata log",
    ]


def test_zookeeper_is_not_compared_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch, (by_zookeeper(acls=()), by_log(migration="POST_MIGRATION")))
    report = verified(looks, BROKERS)
    assert texts(report) == []
    assert "the migration has ended" in report.sides[1].outdated


def test_a_log_before_the_migration_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = Reading(source="controller log", cluster_id="c", topics=(), acls=(), outdated="not copied yet")
    assert texts(verified(Looks(monkeypatch, (by_zookeeper(), empty)), BROKERS)) == []


def test_what_was_archived_is_verified_against_the_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "archive"))
    live = (by_zookeeper(), by_log())
    merged = merge([by_brokers(topics=BOTH), *live], "2026-01-05T00:00:00.000Z", 1)
    monkeypatch.setattr(job, "read_all", lambda sources: merged)
    archive_metadata(Backup(), BROKERS, store, Silent())
    archive = open_archive(store)
    same = verified(Looks(monkeypatch, live), BROKERS, archive=archive)
    assert (texts(same), same.restore_point) == ([], 1)

    internal = topic("__consumer_offsets")
    changed = tuple(replace(r, acls=(acl(), acl("new")), topics=(*BOTH, internal)) for r in (*live,))
    looks = Looks(monkeypatch, changed)
    monkeypatch.setattr(
        verify_job, "read_brokers", lambda sources: (by_brokers(topics=(*BOTH, internal), acls=(acl(), acl("new"))), 1)
    )
    assert texts(verified(looks, BROKERS, archive=archive)) == [
        "ACLs: User:a allow read from * on literal topic new: in the cluster, not in restore point 1"
    ]


def test_verify_needs_two_sides_of_one_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="one side alone"):
        verified(Looks(monkeypatch, (by_zookeeper(),)))
    with pytest.raises(MismatchError, match="several clusters"):
        verified(Looks(monkeypatch, (by_zookeeper(), replace(by_log(), cluster_id="d"))))
