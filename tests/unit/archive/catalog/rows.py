"""Rows of a catalog for tests of the pure state."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.catalog.documents import IsolationLevel, OpenRun
from kbackup.archive.catalog.operations import add_point, begin_run
from kbackup.archive.catalog.state import PointRow, State
from kbackup.archive.models import Capture, DocumentRef, Manifest, TopicState
from kbackup.archive.run import totals_of
from kbackup.archive.segments.table import Segment, to_batch
from kbackup.types import Incarnation
from tests.support.made_segments import a_segment

AT = "2026-01-01T00:00:00.000Z"
ARCHIVE = "a" * 32


def open_run(run: str, level: IsolationLevel = "read_committed") -> OpenRun:
    return OpenRun(run=run, command="backup", host="host", started_at=AT, isolation_level=level)


def table(segments: Sequence[Segment]) -> pa.Table:
    return pa.Table.from_batches([to_batch(segments)])


def point(number: int, run: str = "r", documents: Sequence[str] = ()) -> PointRow:
    own = (layout.point_key(number, run, layout.MANIFEST), *documents)
    return PointRow(
        number, run, "cluster", AT, AT, "source", "read_committed",
        1, 1, 1, 1, 10, 10, 0, 0, 0, f"sha256:{number:064x}", own,
    )  # fmt: skip


def new_point(
    number: int,
    segments: Sequence[Segment],
    incarnations: dict[Incarnation, str],
    run: str = "r",
    documents: Sequence[str] = (),
) -> tuple[Manifest, pa.Table]:
    """The manifest of a restore point that needs `documents`, and the table of its segments."""
    refs = [DocumentRef(key=key, size=0, sha256="") for key in documents]
    topics = [
        TopicState(name=name, id=topic_id, incarnation=incarnation, captured=number, state="present", partitions=())
        for (name, incarnation), topic_id in incarnations.items()
    ]
    manifest = Manifest(
        checksum=f"sha256:{number:064x}",
        archive_id=ARCHIVE,
        number=number,
        run=run,
        previous=None,
        tool="test",
        started_at=AT,
        committed_at=AT,
        totals=totals_of(segments, topics=1, partitions=1, groups=0),
        captures=tuple(Capture(number=number, started_at=AT, groups=ref, metadata=ref) for ref in refs),
        topics=tuple(topics),
    )
    return manifest, table(segments)


def grown(points: int, run: str = "r") -> State:
    """Topic t with ten records a restore point."""
    state = begin_run(State(ARCHIVE), open_run(run))
    for number in range(1, points + 1):
        manifest, added = new_point(number, [a_segment("t", 10 * number - 10, 10 * number - 1)], {("t", 1): "id"}, run)
        state = add_point(state, manifest, added)
    return state


def keys_of(state: State, number: int, incarnations: Sequence[Incarnation] = (("t", 1),)) -> set[str]:
    """The keys of the segments that restore point `number` has, whose manifest has `incarnations`."""
    columns = state.segments.columns("topic", "incarnation", "point", "key")
    return {
        key
        for topic, incarnation, added, key in zip(*columns, strict=True)
        if added <= number and (topic, incarnation) in incarnations
    }
