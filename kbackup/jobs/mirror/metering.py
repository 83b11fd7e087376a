"""Count the flows of a mirror for Prometheus, under MirrorMaker 2's names (`kbackup.metrics.registry`)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from kbackup.jobs.mirror.apply.pending import Applied
from kbackup.jobs.mirror.flow import AppliedPosition, Flow, RemoteTopic
from kbackup.jobs.mirror.status import FlowLag
from kbackup.metrics.registry import METRICS, counted
from kbackup.types import TopicPartition

_BY_PARTITION = [name for name, metric in METRICS.items() if metric.labels[2:] == ("topic", "partition")]
_BY_GROUP = "kbackup_mirror_checkpoint_latency_seconds"
INCIDENTS = ("lost", "recreated", "deleted")


def flow_begins(flow: Flow) -> None:
    """Counters are there from the start, so that the first incident is seen as an increase."""
    names = flow.source, flow.target
    counted.add("kbackup_mirror_duplicates_total", 0, *names)
    for kind in INCIDENTS:
        counted.add("kbackup_mirror_incidents_total", 0, *names, kind)


def following_begins(flow: Flow, at: float | None = None) -> None:
    """Count the start of an apply half that runs until stopped. Alerts wait for its rounds, not for the rounds of
    `--once`."""
    began = time.time() if at is None else at
    counted.put("kbackup_mirror_follow_start_timestamp_seconds", began, flow.source, flow.target)


def round_applied(
    flow: Flow,
    before: Mapping[TopicPartition, AppliedPosition],
    applied: Applied,
    held_back: int,
    topics: Iterable[RemoteTopic] = (),
    at: float | None = None,
) -> None:
    """Count a round that ended well at a time (seconds since the epoch; default: now). Its lag: `lag_now`.

    `before` are the applied positions that the round began with; `held_back` is the number of topics that wait. Of
    partitions that are neither of `topics` nor among the applied ones, no metrics remain."""
    names = flow.source, flow.target
    at = time.time() if at is None else at
    _count_partitions(names, applied, at)
    present = {*applied.partitions, *(tp for topic in topics for tp in topic.remote_partitions)}
    counted.retain(_BY_PARTITION, names, {(tp.topic, str(tp.partition)) for tp in present})
    counted.add("kbackup_mirror_duplicates_total", duplicates(before, applied), *names)
    counted.add("kbackup_mirror_incidents_total", len(applied.too_late), *names, "lost")
    counted.add("kbackup_mirror_incidents_total", len(applied.recreated), *names, "recreated")
    counted.add("kbackup_mirror_incidents_total", len(applied.deleted), *names, "deleted")
    counted.add("kbackup_mirror_rounds_total", 1, *names, "applied")
    counted.put("kbackup_mirror_restore_point", applied.point, *names)
    counted.put("kbackup_mirror_held_back_topics", held_back, *names)
    counted.put("kbackup_mirror_last_round_timestamp_seconds", at, *names)


def nothing_to_apply(flow: Flow, at: float | None = None) -> None:
    """Count a look at the archive that found no new restore point."""
    names = flow.source, flow.target
    counted.add("kbackup_mirror_rounds_total", 1, *names, "unchanged")
    counted.put("kbackup_mirror_last_round_timestamp_seconds", time.time() if at is None else at, *names)


def lag_now(flow: Flow, lag: FlowLag) -> None:
    """Count how far a flow is behind, whether its rounds end well or not."""
    names = flow.source, flow.target
    if lag.records is not None:
        counted.put("kbackup_mirror_records_behind", lag.records, *names)
    counted.put("kbackup_mirror_seconds_behind", lag.seconds, *names)


def round_failed(flow: Flow) -> None:
    counted.add("kbackup_mirror_rounds_total", 1, flow.source, flow.target, "failed")


def checkpoints_written(
    flow: Flow, groups: Iterable[str], captured_at: float, every: Iterable[str] = (), at: float | None = None
) -> None:
    """`captured_at` is when the archive took the groups' positions, in seconds since the epoch. `every` are all groups
    that have checkpoints: no metrics remain of others."""
    written = frozenset(groups)
    latency = (time.time() if at is None else at) - captured_at
    for group in written:
        counted.put(_BY_GROUP, latency, flow.source, flow.target, group)
    counted.retain([_BY_GROUP], (flow.source, flow.target), {(group,) for group in {*written, *every}})


def duplicates(before: Mapping[TopicPartition, AppliedPosition], applied: Applied) -> int:
    """Return the records of a round that were applied before it: source offsets below the position it began with. A
    remote topic that was deleted began with none."""
    total = 0
    deleted = {each.remote for each in applied.deleted}
    columns = (applied.runs.column(n).to_pylist() for n in ("topic", "partition", "incarnation", "source", "count"))
    for topic, partition, incarnation, source, count in zip(*columns, strict=True):
        position = before.get(TopicPartition(topic, partition))
        if position is not None and position.incarnation == incarnation and topic not in deleted:
            total += min(max(position.next - source, 0), count)
    return total


def _count_partitions(names: tuple[str, str], applied: Applied, at: float) -> None:
    began = at - applied.seconds
    for tp, part in applied.partitions.items():
        labels = (*names, tp.topic, str(tp.partition))
        counted.add("kbackup_mirror_record_count_total", part.records, *labels)
        counted.add("kbackup_mirror_byte_count_total", part.bytes, *labels)
        for bound, timestamp in (("max", part.oldest), ("min", part.newest)):
            if timestamp is not None:
                counted.put(f"kbackup_mirror_record_age_seconds_{bound}", began - timestamp / 1000, *labels)
                counted.put(f"kbackup_mirror_replication_latency_seconds_{bound}", at - timestamp / 1000, *labels)
