"""Each difference between the sides of a migration is named, and none that passes within the lag."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kbackup.archive.reader import open_archive
from kbackup.config.models import Backup
from kbackup.errors import MismatchError, UsageError
from kbackup.jobs.metadata import Asked, merge
from kbackup.jobs.migrate import archive as archive_job
from kbackup.jobs.migrate import verify as job
from kbackup.jobs.migrate.archive import archive_metadata
from kbackup.jobs.migrate.verify import Clock, VerifyReport, verify_migration
from kbackup.metadata.entities import Reading
from kbackup.metadata.sources import Sources
from kbackup.metrics.registry import Silent
from kbackup.store import open_store
from tests.support.metadata_entities import acl, by_brokers, by_log, by_zookeeper, quota, topic, user

BROKERS = Sources(kafka={"bootstrap.servers": "b:1"})
NONE = Sources(kafka={})
BOTH = (topic(replicas=((1, 2),)), topic("unselected"))


class Looks:
    """Gives each look its readings, the last ones for ever; time passes by its sleeps alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *looks: tuple[Reading, ...]) -> None:
        self.looks, self.at, self.now = looks, -1, 0.0
        self.clock = Clock(lambda: self.now, self._sleep)
        monkeypatch.setattr(job, "sources_beside", self._beside)
        monkeypatch.setattr(job, "read_brokers", lambda sources: (by_brokers(topics=BOTH), 1))

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def _beside(self, sources: Sources) -> list[Asked]:
        self.at = min(self.at + 1, len(self.looks) - 1)
        return [Asked(r.source, r.source, lambda r=r: r) for r in self.looks[self.at]]  # type: ignore[misc]  # bound now


def texts(report: VerifyReport) -> list[str]:
    return [each.text for each in report.differences]


def verified(looks: Looks, sources: Sources = NONE, **options: Any) -> VerifyReport:
    return verify_migration(sources, options.get("archive"), "latest", 10, looks.clock)


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


def test_against_the_archive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "archive"))
    live = (by_zookeeper(), by_log())
    merged = merge([by_brokers(topics=BOTH), *live], "2026-01-05T00:00:00.000Z", 1)
    monkeypatch.setattr(archive_job, "read_all", lambda sources: merged)
    archive_metadata(Backup(), BROKERS, store, Silent())
    archive = open_archive(store)
    same = verified(Looks(monkeypatch, live), BROKERS, archive=archive)
    assert (texts(same), same.restore_point) == ([], 1)

    internal = topic("__consumer_offsets")
    changed = tuple(replace(r, acls=(acl(), acl("new")), topics=(*BOTH, internal)) for r in (*live,))
    looks = Looks(monkeypatch, changed)
    monkeypatch.setattr(
        job,
        "read_brokers",
        lambda sources: (by_brokers(topics=(*BOTH, internal), acls=(acl(), acl("new"))), 1),
    )
    assert texts(verified(looks, BROKERS, archive=archive)) == [
        "ACLs: User:a allow read from * on literal topic new: in the cluster, not in restore point 1"
    ]


def test_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="one side alone"):
        verified(Looks(monkeypatch, (by_zookeeper(),)))
    with pytest.raises(MismatchError, match="several clusters"):
        verified(Looks(monkeypatch, (by_zookeeper(), replace(by_log(), cluster_id="d"))))
