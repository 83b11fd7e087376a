"""An archive of six restore points, its damage, its repair, and checks of the result."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NoReturn

from hypothesis import strategies as st

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.operations import label_point, pin_points
from kbackup.archive.catalog.retention import expire_points, expire_records, old_starts
from kbackup.archive.catalog.state import State
from kbackup.archive.models import TopicState
from kbackup.archive.reader import open_archive
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.writer import SegmentTarget
from kbackup.jobs.repair import RepairReport, repair
from kbackup.jobs.verify import VerifyReport, verify
from kbackup.metrics.registry import Silent
from kbackup.store.base import Store
from tests.support.archives import T0, commit_point, deletions_of, group_at, make_archive, topic_state, write
from tests.support.schemas import schemas, version

ORDERS = "topics/orders/segment_partition_000_from_offset_00000000"
LAST = 6
PartitionKey = tuple[str, int, int]
PointSegments = dict[int, dict[PartitionKey, list[str]]]


def no_spark() -> NoReturn:
    raise AssertionError("Spark was asked for")


def make(store: Store) -> None:
    """Six restore points, from the third on with schemas and deletions. At the fifth, topic orders comes back as
    another one. Restore point 5 is pinned, 4 has a label."""
    make_archive(store)
    more: list[Segment] = []
    for number in range(3, LAST + 1):
        archive = open_archive(store)
        head = archive.head
        assert head is not None
        new = write(
            store,
            SegmentTarget("more", 1, 0, 1000, "zstd" if number % 2 else "none"),
            range(number * 10, number * 10 + 9),
        )
        more += new
        states = {t.name: t for t in head.topics} | {
            "more": topic_state("more", [(0, number * 10 + 9, more)], captured=number)
        }
        if number == 5:
            again = write(store, SegmentTarget("orders", 2, 0, 1000, "none"), range(4))
            new = [*new, *again]
            state = topic_state("orders", [(0, 4, again)], captured=5)
            fields = {name: getattr(state, name) for name in state.__struct_fields__}
            states["orders"] = TopicState(**fields | {"incarnation": 2, "id": "another id"})
        groups = [group_at("billing", ("more", 0, number * 10))]
        known = schemas(version("more-value", number, number))
        topics = [states[name] for name in sorted(states)]
        deleted = deletions_of("more", (30, 31), (number * 10 + 2, number * 10 + 4))
        commit_point(archive, number, topics=topics, segments=new, groups=groups, schemas=known, deletions=deleted)
    do(store, lambda state: label_point(pin_points(state, [5], "2026-01-09"), "weekly", 4))


def do(store: Store, operation: Any) -> None:
    archive = open_archive(store)
    commit(store, archive.committed, operation, Author("expire", "", "test"))


def run(store: Store, confirm: bool = True, read_data: bool = True) -> RepairReport:
    return repair(store, confirm, read_data, 60, no_spark, Silent())


def verified(store: Store) -> VerifyReport:
    return verify(store, "all", False, lambda: None, Silent())  # type: ignore[arg-type, return-value]


def expire_some(store: Store, gone: Collection[int], cutoff: int | None = T0 + 8000) -> None:
    def operation(state: State) -> State:
        state = expire_points(state, gone)
        return state if cutoff is None else expire_records(state, old_starts(state, cutoff))

    do(store, operation)


def records(store: Store) -> dict[str, bytes]:
    return {e.key: store.get(e.key) for e in store.list(layout.TOPICS) if "_records" in e.key}


def listed_segments(store: Store) -> PointSegments:
    """Return the segments of each restore point, by partition."""
    archive = open_archive(store)
    points: PointSegments = {}
    for point in archive.restore_points:
        partitions = points.setdefault(point.number, {})
        for s in archive.segments(archive.manifest(point)):
            partitions.setdefault((s.topic, s.incarnation, s.partition), []).append(s.key)
    return points


def without_segments(points: PointSegments, keys: Collection[str]) -> PointSegments:
    """`points` without the segments `keys`."""
    return {
        number: {
            partition: kept
            for partition, segments in partitions.items()
            if (kept := [key for key in segments if key not in keys])
        }
        for number, partitions in points.items()
    }


def lacking(store: Store, number: int) -> list[str]:
    """The losses by damage that a restore point tells of."""
    archive = open_archive(store)
    return [loss.message for loss in archive.losses(archive.manifest(number)) if loss.kind == "damaged"]


def harm(store: Store, key: str, how: str) -> None:
    data = store.get(key)
    if how == "gone":
        store.delete([key])
    else:
        at = len(data) // 2
        store.put(key, data[:at] + (bytes([data[at] ^ 1]) + data[at + 1 :] if how == "flip" and data else b""))


def key_of(store: Store, number: int, name: str) -> str:
    """The key of a document of a restore point."""
    return next(e.key for e in store.list(f"{layout.POINTS}{number:010d}-") if e.key.endswith(name))


def catalogs(store: Store) -> list[str]:
    return [e.key for e in store.list(layout.CATALOG) if layout.parse_catalog_key(e.key) is not None]


def contents(store: Store) -> dict[str, bytes]:
    return {e.key: store.get(e.key) for e in store.list() if e.key != layout.LOCK}


def report_members(report: RepairReport) -> tuple[object, ...]:
    """Return the members of a report on the archive, which a dry run and a repair share."""
    return (report.catalog, report.restored, report.lost, report.mended, report.new_point, report.losses)


def check_healed(store: Store) -> None:
    """Verification finds nothing, and there is nothing left to repair."""
    assert verified(store).findings == ()
    before = contents(store)
    for confirm in (False, True):
        again = run(store, confirm)
        assert not again.changes, again
        assert contents(store) == before


def repaired(store: Store) -> RepairReport:
    """Repair, after a dry run that says the same and writes nothing; no whole object is deleted."""
    before = contents(store)
    shown = run(store, confirm=False)
    assert contents(store) == before
    done = run(store)
    assert report_members(done) == report_members(shown)
    after = contents(store)
    assert before.keys() <= after.keys()
    kept = [key for key in before if key.startswith(layout.POINTS) or "_records" in key]
    assert all(after[key] == before[key] for key in kept)
    check_healed(store)
    return done


def all_objects(store: Store) -> list[str]:
    return [entry.key for entry in store.list() if entry.key != layout.LOCK]


HOWS = st.sampled_from(["gone", "gone", "cut", "flip"])
