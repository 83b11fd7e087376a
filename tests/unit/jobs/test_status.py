"""The status of an archive: its level, its findings, and the requests that it makes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kbackup.archive import layout
from kbackup.archive.models import (
    USE_NEWER,
    HangingTransaction,
    Lease,
    Loss,
    Transactions,
    UnseenDeletions,
    UsedSchemas,
    dump,
)
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.run import open_or_create
from kbackup.archive.verify.findings import Scope, Verification
from kbackup.config.models import Backup
from kbackup.jobs.copy import copy_archive
from kbackup.jobs.drill.report import DrillError, store_report
from kbackup.jobs.finding_kinds import NOTHING_COMPARED, loss_finding
from kbackup.jobs.status.job import archive_status
from kbackup.jobs.status.report import ArchiveStatus, Growth, summary
from kbackup.metrics.registry import Silent
from kbackup.store.base import Store
from kbackup.store.file import FileStore
from kbackup.util.times import ms_of, rfc3339
from tests.support import drill_reports
from tests.support.archives import commit_point, make_archive, records, topic_archive
from tests.support.made_segments import a_segment
from tests.support.memory_store import MemoryStore
from tests.support.repairs import key_of
from tests.support.schemas import schemas, version

DAY = 86400.0
GOLDEN = Path(__file__).parents[2] / "golden"
NEWEST = datetime(2026, 1, 2, tzinfo=UTC)
"""The commit of the newest restore point of `make_archive`."""


@pytest.fixture
def archive() -> Archive:
    return make_archive(MemoryStore())


def status(archive: Archive, after_hours: float = 1, reports: Store | None = None, **rules: Any) -> ArchiveStatus:
    moment = NEWEST + timedelta(hours=after_hours)
    return archive_status(archive, Backup(**rules), reports=reports, moment=moment)


def findings(status: ArchiveStatus) -> dict[str, str]:
    """By subject, the level."""
    return {finding.subject: finding.level for finding in status.findings}


def verify(store: Store, day: int, scope: Scope, findings: int) -> None:
    at = rfc3339(NEWEST + timedelta(days=day))
    verification_id = f"{at.replace(':', '-').replace('.', '-')}-{scope}-ab"
    record = Verification(
        verification_id=verification_id,
        archive_id="",
        tool="kbackup",
        scope=scope,
        started_at=at,
        ended_at=at,
        restore_points=2,
        newest=2,
        segments=4,
        read_records=0,
        read_bytes=0,
        finding_count=findings,
        findings=(),
        note_count=0,
        orphan_bytes=0,
        seconds={},
    )
    store.put(layout.verification_key(verification_id), dump(record))


def hold(store: Store, command: str, expires_at: str, released: bool = False) -> None:
    lease = Lease(
        owner="x", host="h", pid=7, command=command, acquired_at="2026-01-02T00:00:00.000Z",
        expires_at=expires_at, released=released,
    )  # fmt: skip
    store.put(layout.LOCK, dump(lease))


def test_a_young_restore_point_without_recent_losses_is_ok(archive: Archive) -> None:
    commit_point(archive, 3, at="2026-01-12T00:00:00.000Z")
    report = status(archive, after_hours=10 * 24 + 2)
    assert (report.level, report.findings, report.losses) == ("ok", (), 0)
    assert report.newest is not None
    assert (report.newest.number, report.newest.age_seconds, report.restore_points) == (3, 7200.0, 3)
    assert (report.verified, report.drilled, report.lease) == (None, None, None)
    assert (report.growth.restore_points, report.growth.records) == (1, 0)


def test_an_old_restore_point_is_critical(archive: Archive) -> None:
    found = status(archive, 26.5, allow_loss=True)
    assert (found.level, findings(found)) == ("critical", {"age": "critical"})
    assert "the newest restore point, 2, is 26h30m old; backup.max_age is 26h" in found.findings[0].message
    assert found.findings[0].command == f"kbackup backup --archive {archive.store.url}"


def test_an_old_restore_point_beside_a_backup_at_work_names_the_backup(archive: Archive) -> None:
    """Another one would be refused."""
    hold(archive.store, "kbackup backup", "2099-01-01T00:00:00.000Z")
    (finding,) = status(archive, 48, allow_loss=True).findings
    assert (finding.level, finding.subject) == ("critical", "age")
    assert "kbackup backup on h has been at work since 2026-01-02T00:00:00.000Z: see its log" in finding.message
    assert finding.command == f"kbackup list --archive {archive.store.url}"


def test_an_old_copy_is_renewed_from_its_origin(archive: Archive) -> None:
    destination = MemoryStore()
    copy_archive(archive.store, destination, 60, Silent())
    finding = status(open_archive(destination), 48, allow_loss=True).findings[0]
    assert finding.command == f"kbackup copy {destination.url} --archive {archive.store.url}"


def test_an_archive_without_restore_points_is_critical() -> None:
    found = status(open_or_create(MemoryStore()))
    assert (found.level, found.newest, found.restore_points) == ("critical", None, 0)


def test_an_old_restore_point_beside_a_follower_is_a_warning(archive: Archive) -> None:
    hold(archive.store, "kbackup backup --follow", "2099-01-01T00:00:00.000Z")
    found = status(archive, 48, allow_loss=True)
    assert findings(found) == {"age": "warning"}
    assert found.lease is not None
    assert found.lease.state == "alive"


def test_a_restore_point_of_the_future_is_a_warning(archive: Archive) -> None:
    found = status(archive, -1, allow_loss=True)
    assert findings(found) == {"age": "warning"}
    assert found.newest is not None
    assert found.newest.age_seconds == 0


@pytest.mark.parametrize(("days", "losses"), [(1, 1), (6, 1), (8, 0)])
def test_losses_are_a_warning_for_a_week(archive: Archive, days: int, losses: int) -> None:
    found = status(archive, days * 24)
    assert found.losses == losses
    assert ("losses" in findings(found)) == (losses > 0)
    if losses:
        (finding,) = (each for each in found.findings if each.subject == "losses")
        assert "found 1 loss of records (retention: 1)" in finding.message
        assert finding.command == f"kbackup info --archive {archive.store.url}"
    assert "losses" not in findings(status(archive, days * 24, allow_loss=True))


def test_damaged_segments_are_a_warning(archive: Archive) -> None:
    damaged = Loss(kind="damaged", topic="orders", partition=0, start=0, end=5, message="damaged")
    topics = archive.restore_point(2).topics
    commit_point(archive, 3, topics=topics, losses=[damaged], at="2026-01-12T00:00:00.000Z")
    found = status(archive, 10 * 24 + 1)
    assert (found.damaged_points, findings(found)) == (1, {"damage": "warning"})
    assert "; 0 losses; 1 damaged restore point; never verified; " in summary(found)
    assert found.findings[0].message.startswith("1 restore point lacks damaged segments: 3; a restore brings back all")


@pytest.mark.parametrize(
    ("verifications", "level"),
    [
        ([(0, "full", 2)], "critical"),
        ([(0, "full", 2), (1, "quick", 0)], "critical"),
        ([(0, "full", 2), (1, "quick", 0), (2, "full", 0)], None),
        ([(0, "quick", 1), (1, "quick", 0)], None),
        ([(0, "full", 0), (1, "partial", 1)], "critical"),
        ([(0, "partial", 1), (1, "quick", 0)], "critical"),
    ],
)
def test_findings_stay_until_a_full_verification_has_none(
    archive: Archive, verifications: list[tuple[int, Scope, int]], level: str | None
) -> None:
    for day, scope, count in verifications:
        verify(archive.store, day, scope, count)
    report = status(archive, 3 * 24)
    assert findings(report).get("damage") == level
    assert report.verified is not None
    day, scope, count = verifications[-1]
    assert (report.verified.scope, report.verified.findings) == (scope, count)
    assert report.verified.age_seconds == (3 - day) * DAY


# Drills: only a difference makes the archive doubtful.


DIFFERS = drill_reports.comparison(ok=False)
UNREACHABLE = DrillError(type="UnreachableError", message="no broker answers", hint="check the address", exit_code=14)
ON_THE_SOURCE = DrillError(
    type="RefusedError", message="the target is cluster c, which was backed up", hint="drill elsewhere", exit_code=1
)
NO_SPACE = DrillError(type="ClusterError", message="topic a: the disk is full", hint="make room", exit_code=1)
NEWER = DrillError(type="CorruptError", message="file f has version 9", hint=USE_NEWER, exit_code=13)
DAMAGE = DrillError(type="CorruptError", message="file f is missing", hint="run 'kbackup verify'", exit_code=13)
INTERRUPTED = DrillError(type="InterruptedByUserError", message="interrupted", hint="", exit_code=130)
REFUSED = "topic a was not restored: it wants replication factor 3, the target has 1 broker"
LEFT = ("topic drill-x.a: timed out",)


def drill_days_ago(archive: Archive, day: int, **changes: Any) -> str:
    """Store the report of a drill that ended on a day of December; return its id."""
    at = f"2025-12-{day:02}T00:00:00.000Z"
    drill_id = f"drill-2025-12-{day:02}-aaaaaaaa"
    report = drill_reports.report(**{"drill_id": drill_id, "started_at": at, "ended_at": at, **changes})
    store_report(archive.store, report, "<!doctype html>")
    return drill_id


def drill_findings(found: ArchiveStatus) -> list[tuple[str, str]]:
    """The level and the message of each finding of drills."""
    return [(finding.level, finding.message) for finding in found.findings if finding.subject == "drill"]


@pytest.mark.parametrize("error", [UNREACHABLE, ON_THE_SOURCE, NO_SPACE, NEWER])
def test_a_drill_that_could_not_run_is_a_warning_about_the_drill(archive: Archive, error: DrillError) -> None:
    drill_days_ago(archive, 28)
    name = drill_days_ago(archive, 29, result="failed", comparison=None, error=error)
    found = status(archive)
    assert drill_findings(found) == [
        ("warning", f"drill {name} could not run, so it says nothing about the archive: {error.message}; {error.hint}")
    ]
    assert found.drilled is not None
    assert found.drilled.result == "could not run"
    assert found.fully_drilled is not None
    assert found.fully_drilled.result == "passed"
    assert "drill could not run 4d1h ago" in summary(found)


def test_a_drill_of_nothing_could_not_run(archive: Archive) -> None:
    empty = msgspec.structs.replace(drill_reports.comparison(), records=0, same=0)
    drill_days_ago(archive, 29, result="failed", comparison=empty, findings=(NOTHING_COMPARED,))
    ((level, message),) = drill_findings(status(archive))
    assert level == "warning"
    assert NOTHING_COMPARED in message


def test_only_a_difference_makes_a_restore_point_doubtful(archive: Archive) -> None:
    name = drill_days_ago(archive, 29, result="failed", comparison=DIFFERS, findings=DIFFERS.findings)
    found = status(archive)
    ((level, message),) = drill_findings(found)
    assert level == "critical"
    assert message.startswith(f"drill {name} found differences, so restore point 7 may not be restorable: drill.orders")
    assert f"its report: {archive.store.url.rstrip('/')}/drills/{name}/" in message
    (finding,) = (each for each in found.findings if each.subject == "drill")
    assert finding.command == f"kbackup verify --archive {archive.store.url}"


def test_damage_that_ended_a_drill_makes_the_restore_point_doubtful(archive: Archive) -> None:
    drill_days_ago(archive, 29, result="failed", comparison=None, error=DAMAGE)
    ((level, message),) = drill_findings(status(archive))
    assert level == "critical"
    assert "met damage, so restore point 7 may not be restorable: file f is missing" in message


@pytest.mark.parametrize(
    "later",
    [
        {"result": "failed", "comparison": None, "error": UNREACHABLE},
        {"result": "interrupted", "comparison": None, "error": INTERRUPTED},
    ],
)
def test_a_difference_counts_until_a_later_drill_compares_records(archive: Archive, later: dict[str, Any]) -> None:
    drill_days_ago(archive, 28, result="failed", comparison=DIFFERS, findings=DIFFERS.findings)
    drill_days_ago(archive, 29, **later)
    assert drill_findings(status(archive))[0][0] == "critical"
    drill_days_ago(archive, 30)
    assert drill_findings(status(archive)) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"findings": (REFUSED,)}, REFUSED),
        ({"findings": (f"left on the target: {LEFT[0]}",), "left": LEFT}, LEFT[0]),
        ({"findings": ("group g can't be read: denied",)}, "group g can't be read: denied"),
    ],
)
def test_what_the_target_refused_is_no_difference(archive: Archive, changes: dict[str, Any], words: str) -> None:
    drill_days_ago(archive, 29, result="failed", **changes)
    found = status(archive)
    ((level, message),) = drill_findings(found)
    assert level == "warning"
    assert "found no difference in what it compared, but the target: " in message
    assert words in message
    (finding,) = (each for each in found.findings if each.subject == "drill")
    assert finding.command.startswith("kafka-topics.sh" if "left" in changes else "kbackup drill --archive ")


def test_records_that_are_known_to_be_damaged_are_no_difference(archive: Archive) -> None:
    drill_days_ago(
        archive, 29, result="failed", findings=(loss_finding("orders-0: segment s is missing"),), losses=("s",)
    )
    ((level, message),) = drill_findings(status(archive))
    assert level == "warning"
    assert "brought back all that restore point 7 has; in 1 place it lacks records" in message


def test_an_interrupted_drill_is_no_finding(archive: Archive) -> None:
    drill_days_ago(archive, 29, result="interrupted", comparison=None, error=INTERRUPTED)
    found = status(archive)
    assert drill_findings(found) == []
    assert found.drilled is not None
    assert (found.drilled.result, found.fully_drilled) == ("interrupted", None)


def test_drills_that_never_compare_anything_are_old_one_day(archive: Archive) -> None:
    for day in (10, 20, 30):
        drill_days_ago(archive, day, result="interrupted", comparison=None, error=INTERRUPTED)
    ((level, message),) = drill_findings(status(archive))
    assert level == "warning"
    assert message.startswith("none of the last 3 drills compared records; the first of them is 23d1h old")


def test_a_damaged_report_is_a_warning_and_the_drill_before_it_counts(archive: Archive) -> None:
    drill_days_ago(archive, 28)
    name = drill_days_ago(archive, 29)
    key = layout.drill_key(name, layout.REPORT)
    archive.store.put(key, archive.store.get(key)[:-9])
    found = status(archive)
    assert found.drilled is not None
    assert found.drilled.id == "drill-2025-12-28-aaaaaaaa"
    (finding,) = (each for each in found.findings if each.subject == "damage")
    assert finding.level == "warning"
    assert key in finding.message


def test_a_report_of_an_earlier_version_is_judged_likewise() -> None:
    kept = open_archive(FileStore(GOLDEN / "kept" / "0.1.0" / "plain"))
    found = archive_status(kept, Backup(max_age=1e9, max_drill_age=1e9))
    assert found.drilled is not None
    assert (found.drilled.id, found.drilled.result) == ("drill-2026-01-31-2813394e", "passed")
    assert drill_findings(found) == []


@pytest.mark.parametrize(("days", "level"), [(8.9, None), (9.1, "warning")])
def test_an_old_drill_is_a_warning(archive: Archive, days: float, level: str | None) -> None:
    store_report(archive.store, drill_reports.report(ended_at="2026-01-02T00:00:00.000Z"), "<!doctype html>")
    found = status(archive, days * 24, max_age=1e9)
    assert findings(found).get("drill") == level
    if level:
        expected = "the newest drill that compared records, drill-2026-01-31-2813394e, is 9d2h old; "
        assert found.findings[0].message == f"{expected}backup.max_drill_age is 9d"
    assert "drill" not in findings(status(archive, days * 24, max_age=1e9, max_drill_age=30 * DAY))


@pytest.mark.parametrize(("hours", "level"), [(2, "ok"), (27, "critical")])
def test_an_archive_of_one_restore_point_is_judged(hours: float, level: str) -> None:
    store = MemoryStore()
    topic_archive(store, "orders", records(0, range(10)))
    moment = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=hours)
    found = archive_status(open_archive(store), Backup(), moment=moment)
    assert (found.level, found.restore_points) == (level, 1)
    assert (found.growth.restore_points, found.growth.records) == (1, 10)
    assert (found.verified, found.drilled) == (None, None), "which is no finding"


def test_growth_is_what_the_last_days_added(archive: Archive) -> None:
    old = archive.restore_points[-1]
    segments = [
        a_segment("orders", 41, 50, partition=0, bytes=1000, stored=400),
        a_segment("orders", 12, 16, partition=1, bytes=500, stored=200),
    ]
    commit_point(archive, 3, segments=segments, at="2026-01-20T00:00:00.000Z")
    moment = datetime(2026, 1, 22, tzinfo=UTC)
    found = archive_status(archive, Backup(), moment=moment)
    assert old.committed_at < "2026-01-15"
    assert found.growth == Growth(days=7, restore_points=1, records=15, bytes=1500, stored_bytes=600)


def test_drills_are_read_where_their_reports_are(archive: Archive) -> None:
    state = MemoryStore()
    store_report(state, drill_reports.report(), "<!doctype html>")
    assert status(archive, reports=state).drilled is not None
    assert status(archive).drilled is None


def test_a_dead_lease_is_a_warning(archive: Archive) -> None:
    hold(archive.store, "kbackup backup", "2026-01-02T00:01:00.000Z")
    found = status(archive, allow_loss=True)
    assert findings(found) == {"lease": "warning"}
    assert "kbackup backup on h (pid 7) began at 2026-01-02T00:00:00.000Z and was killed" in found.findings[0].message
    assert found.findings[0].command == f"kbackup backup --archive {archive.store.url}"
    hold(archive.store, "kbackup backup", "2026-01-02T00:01:00.000Z", released=True)
    assert status(archive, allow_loss=True).lease is None


def test_a_status_makes_few_requests() -> None:
    store = MemoryStore()
    make_archive(store)
    for day in range(3):
        for scope in ("full", "quick", "partial"):
            verify(store, day, scope, 0)
        drilled = drill_reports.report(drill_id=f"drill-2026-01-0{day + 1}-aaaaaaaa")
        store_report(store, drilled, "<!doctype html>")
    store.requests.clear()
    found = status(open_archive(store))
    assert found.verified is not None
    assert found.drilled is not None
    assert store.requests["LIST"] == 3, "catalogs, verifications, drills"
    assert store.requests["GET"] <= 3 + 3 + 1 + 3 + 1, "opening, tables, lease, verifications, drill"
    assert store.requests["PUT"] == 0


def test_a_status_becomes_json(archive: Archive) -> None:
    document = msgspec.to_builtins(status(archive, 30))
    assert document["findings"][0].keys() == {"level", "subject", "message", "command"}
    assert msgspec.convert(document, ArchiveStatus) == status(archive, 30)


@pytest.mark.parametrize("name", [layout.MANIFEST, layout.SCHEMAS])
def test_damaged_documents_of_a_restore_point_with_warnings_are_a_finding(name: str, archive: Archive) -> None:
    topics = archive.restore_point("latest").topics
    commit_point(archive, 3, topics=topics, warnings=["w"], schemas=schemas(version("orders-value", 1, 7)))
    assert "damage" not in findings(status(archive))
    key = key_of(archive.store, 3, name)
    archive.store.put(key, archive.store.get(key)[:-9])
    (found,) = (f for f in status(open_archive(archive.store)).findings if f.subject == "damage")
    assert (found.level, found.command) == ("critical", f"kbackup verify --archive {archive.store.url}")
    assert key in found.message


def test_a_status_says_whether_there_are_schemas_and_what_is_not_mapped(archive: Archive) -> None:
    assert "restore point 2 is " in summary(status(archive))
    used = UsedSchemas(part="value", fields=9, framed=0, sure=0, ids={}, apicurio={"contentId 7": 9})
    topics = [
        msgspec.structs.replace(topic, schemas=(used,)) if topic.name == "orders" else topic
        for topic in archive.restore_point("latest").topics
    ]
    commit_point(archive, 3, topics=topics, warnings=["w"], schemas=schemas(version("orders-value", 1, 7)))
    found = status(archive)
    assert "restore point 3 with schemas is " in summary(found)
    (named,) = (each for each in found.findings if each.subject == "schemas")
    assert named.level == "warning"
    assert named.message.startswith("values of orders name their schemas by the header apicurio.value.contentId")
    assert "(9 records)" in named.message


@pytest.mark.parametrize("allow_loss", [False, True])
def test_deletions_that_no_backup_may_have_seen_are_a_warning(allow_loss: bool, archive: Archive) -> None:
    (orders,) = [topic for topic in archive.restore_point(2).topics if topic.name == "orders"]
    unseen = UnseenDeletions(offsets=7, since="2026-01-02T00:00:00.000Z")
    first = msgspec.structs.replace(orders.partitions[0], unseen=unseen)
    doubtful = msgspec.structs.replace(orders, partitions=(first, *orders.partitions[1:]))
    commit_point(archive, 3, topics=[doubtful], warnings=["deletions"])
    found = [f for f in status(archive, allow_loss=allow_loss).findings if f.subject == "deletions"]
    assert [(f.level, f.command) for f in found] == (
        [] if allow_loss else [("warning", f"kbackup backup --recheck-compacted --archive {archive.store.url}")]
    )
    assert all("topic orders: deletions may have been compacted away unseen: 7 offsets" in f.message for f in found)


@pytest.mark.parametrize(("hours", "named"), [(0.9, False), (1.1, True)])
def test_a_transaction_that_is_open_for_an_hour_is_a_warning(hours: float, named: bool, archive: Archive) -> None:
    last = ms_of("2026-01-03T00:00:00.000Z") - int(hours * 3_600_000)
    open_ = HangingTransaction(topic="orders", partition=2, producer_id=4, start=17, timestamp=last)
    unknown = msgspec.structs.replace(open_, producer_id=-1, timestamp=-1)
    told = Transactions(whole=False, why="1 transaction did not end", open=(open_, unknown))
    commit_point(archive, 3, warnings=["w"], transactions=told)
    found = [f for f in status(archive).findings if f.subject == "transactions"]
    assert [f.command.partition(" abort ")[2] for f in found] == (
        ["--topic orders --partition 2 --start-offset 17"] if named else []
    )
