"""Count the flows of a mirror for Prometheus, under MirrorMaker 2's names (`kbackup.metrics.registry`)."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping

from kbackup.metrics.registry import METRICS, counted
from kbackup.mirror.apply.pending import Applied
from kbackup.mirror.flow import AppliedPosition, Flow, RemoteTopic
from kbackup.mirror.status import FlowLag
from kbackup.types import TopicPartition

_BY_PARTITION = [name for name, metric in METRICS.items() if metric.labels[2:] == ("topic", "partition")]
_BY_GROUP = "kbackup_mirror_checkpoint_latency_seconds"
_HELD_BACK = "kbackup_mirror_topic_held_back"
INCIDENTS = ("lost", "recreated", "deleted")


def _add(flow: Flow, name: str, value: float, *labels: str) -> None:
    counted.add(f"kbackup_mirror_{name}", value, flow.source, flow.target, *labels)


def _put(flow: Flow, name: str, value: float, *labels: str) -> None:
    counted.put(f"kbackup_mirror_{name}", value, flow.source, flow.target, *labels)


def flow_begins(flow: Flow) -> None:
    """Counters are there from the start, so that the first incident is seen as an increase."""
    _add(flow, "duplicates_total", 0)
    for kind in INCIDENTS:
        _add(flow, "incidents_total", 0, kind)


def following_begins(flow: Flow) -> None:
    """Count the start of an apply half that runs until stopped. Alerts wait for its rounds, not for the rounds of
    `--once`."""
    _put(flow, "follow_start_timestamp_seconds", time.time())


def round_applied(
    flow: Flow,
    before: Mapping[TopicPartition, AppliedPosition],
    applied: Applied,
    held_back: Collection[str],
    topics: Iterable[RemoteTopic] = (),
) -> None:
    """Count a round that ended well now. Its lag: `lag_now`.

    `before` are the applied positions that the round began with; `held_back` are the remote topics that wait. Of
    partitions that are neither of `topics` nor among the applied ones, no metrics remain."""
    at = time.time()
    _count_partitions(flow, applied, at)
    _drop_partitions(flow, applied, topics)
    _add(flow, "duplicates_total", duplicates(before, applied))
    _add(flow, "incidents_total", len(applied.too_late), "lost")
    _add(flow, "incidents_total", len(applied.recreated), "recreated")
    _add(flow, "incidents_total", len(applied.deleted), "deleted")
    for unmapped in applied.unmapped:
        _add(flow, "unmapped_records_total", unmapped.records, unmapped.topic, unmapped.part)
    _add(flow, "rounds_total", 1, "applied")
    _put(flow, "restore_point", applied.point)
    _put(flow, "held_back_topics", len(held_back))
    for remote in held_back:
        _put(flow, "topic_held_back", 1, remote)
    # The metric of a topic that is no longer held back would stay at 1.
    counted.retain([_HELD_BACK], (flow.source, flow.target), {(remote,) for remote in held_back})
    _put(flow, "last_round_timestamp_seconds", at)


def _count_partitions(flow: Flow, applied: Applied, at: float) -> None:
    """Count the records of each partition, and how old the records are at the time of their commit."""
    for tp, part in applied.partitions.items():
        labels = (tp.topic, str(tp.partition))
        _add(flow, "record_count_total", part.records, *labels)
        _add(flow, "byte_count_total", part.bytes, *labels)
        # The oldest record has the longest latency.
        for bound, timestamp in (("max", part.oldest), ("min", part.newest)):
            if timestamp is not None:
                latency = at - timestamp / 1000
                _put(flow, f"record_age_seconds_{bound}", latency - applied.seconds, *labels)
                _put(flow, f"replication_latency_seconds_{bound}", latency, *labels)


def _drop_partitions(flow: Flow, applied: Applied, topics: Iterable[RemoteTopic]) -> None:
    """Drop the metrics of partitions that are neither of `topics` nor among the applied ones."""
    present = set(applied.partitions)
    for topic in topics:
        present.update(topic.remote_partitions)
    labels = {(tp.topic, str(tp.partition)) for tp in present}
    counted.retain(_BY_PARTITION, (flow.source, flow.target), labels)


def nothing_to_apply(flow: Flow) -> None:
    """Count a look at the archive that found no new restore point."""
    _add(flow, "rounds_total", 1, "unchanged")
    _put(flow, "last_round_timestamp_seconds", time.time())


def lag_now(flow: Flow, lag: FlowLag) -> None:
    """Count how far a flow is behind, whether its rounds end well or not."""
    if lag.records is not None:
        _put(flow, "records_behind", lag.records)
    _put(flow, "seconds_behind", lag.seconds)


def round_failed(flow: Flow) -> None:
    _add(flow, "rounds_total", 1, "failed")


def checkpoints_written(flow: Flow, groups: Iterable[str], captured_at: float, every: Iterable[str] = ()) -> None:
    """`captured_at` is when the archive took the groups' positions, in seconds since the epoch. `every` are all groups
    that have checkpoints: no metrics remain of others."""
    # Only of checkpoints that were written: the latency of an unchanged one would grow though nothing is late.
    written = frozenset(groups)
    latency = time.time() - captured_at
    for group in written:
        counted.put(_BY_GROUP, latency, flow.source, flow.target, group)
    present = written.union(every)
    counted.retain([_BY_GROUP], (flow.source, flow.target), {(group,) for group in present})


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
