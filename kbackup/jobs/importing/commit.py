"""Commit the restore point of an import."""

from __future__ import annotations

from collections.abc import Sequence

from kbackup.archive.catalog.operations import add_point, end_run, skip_numbers
from kbackup.archive.catalog.state import State
from kbackup.archive.models import Groups, Metadata, PartitionState, TopicState
from kbackup.archive.new_point import Draft, check_written, new_point, put_capture, put_manifest
from kbackup.archive.run import WritingRun
from kbackup.archive.segments.table import Segment
from kbackup.jobs.importing.rows import TableRange
from kbackup.util.times import now


def commit_import(writing: WritingRun, ranges: Sequence[TableRange], segments: Sequence[Segment]) -> None:
    """Commit one restore point with the records of the tables, under the number of their newest restore point."""
    at, number = now(), max(h.restore_point for h in ranges)
    check_written(writing.store, segments)
    topics = [_state(name, ranges, segments, number) for name in sorted({h.topic for h in ranges})]
    metadata = Metadata(captured_at=at, cluster_id="", brokers=0, topics=())
    groups = Groups(captured_at=at, groups=())
    draft = Draft(
        number=number,
        started_at=at,
        committed_at=at,
        origin="tables",
        topics=topics,
        segments=segments,
        captures=[put_capture(writing, number, at, groups, metadata)],
        groups=0,
        captured_topics=len(topics),
        captured_partitions=sum(len(t.partitions) for t in topics),
    )
    manifest, ref = put_manifest(writing, draft)
    new = new_point(manifest, ref, segments)

    def operation(state: State) -> State:
        return end_run(add_point(skip_numbers(state, number), writing.run, new), writing.run)

    writing.commit(operation, "import", f"restore point {number} of Delta tables")
    writing.refresh_derived()


def _state(topic: str, ranges: Sequence[TableRange], segments: Sequence[Segment], number: int) -> TopicState:
    ours = [h for h in ranges if h.topic == topic]
    count = max(max(h.partitions, h.partition + 1) for h in ours)
    by_number = {h.partition: h for h in ours}
    return TopicState(
        name=topic,
        id="",
        incarnation=1,
        captured=number,
        state="present",
        partitions=tuple(_partition(n, by_number.get(n), topic, segments) for n in range(count)),
    )


def _partition(
    number: int, ranges: TableRange | None, topic: str, segments: Sequence[Segment]
) -> PartitionState:
    start, end = (ranges.first, ranges.last + 1) if ranges is not None else (0, 0)
    ours = [s for s in segments if (s.topic, s.partition) == (topic, number)]
    return PartitionState(
        partition=number,
        start=start,
        end=end,
        log_start=start,
        log_end=end,
        records=sum(s.count for s in ours),
        bytes=sum(s.bytes for s in ours),
    )
