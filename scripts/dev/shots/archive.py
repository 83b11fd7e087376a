"""Make an archive with something on every page: hostile names, many topics, losses, expired records, drills."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from kbackup.archive.reader import open_archive
from kbackup.jobs.points import label, pin
from kbackup.jobs.retention import Expiry, Policy, expire
from kbackup.jobs.verify.job import verify
from kbackup.jobs.verify.report import record_verification
from kbackup.metadata.entities import Znode
from kbackup.metrics.registry import Silent
from kbackup.store.base import Store
from kbackup.util.times import now
from tests.support.archives import commit_point
from tests.support.drill_reports import EVIL, comparison, store_drill
from tests.support.rich_archive import make_rich
from tests.support.verifications import no_spark

NIGHTS = 24
SERVICES = 95


def make_shot_archive(store: Store) -> None:
    """Write some hundred topics, 20 restore points and more, and let the oldest records expire."""
    archive = make_rich(store, nights=NIGHTS, services=SERVICES, each=30)
    head = archive.head
    assert head is not None
    at = datetime.fromisoformat(head.committed_at)
    znodes = [
        Znode(path="/controller", content='{"brokerid": 3000, "kraftControllerEpoch": 5}'),
        Znode(path="/migration", content='{"kraft_metadata_offset": 99}'),
    ]
    later = (at + timedelta(days=1)).astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    groups = archive.groups(head).groups
    commit_point(archive, head.number + 1, head.topics, [], groups, at=later, znodes=znodes)
    label(store, "3", "before-the-migration")
    age = timedelta(days=15)  # before the newest restore point
    expire(store, Expiry(Policy(last=21), age, timedelta(0)), 60, Silent(), confirm=True)
    pin(store, "20")
    verified_at = now()
    verified = verify(store, "all", True, no_spark, Silent())
    record_verification(store, verified, verified_at, partial=False)
    newest = open_archive(store).restore_points[-1].number
    store_drill(store, "drill-2026-10-09-00000001", result="failed", findings=(EVIL, "1 group differs"))
    store_drill(store, "drill-2026-10-16-00000002", result="interrupted", comparison=None)
    store_drill(store, "drill-2026-10-23-00000003", restore_point=newest, comparison=comparison())
