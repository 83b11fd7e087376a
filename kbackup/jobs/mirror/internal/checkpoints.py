"""Checkpoints: positions of the source's groups, translated to the target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kbackup.archive.models import GroupOffset, Manifest
from kbackup.archive.query.content import group_offsets
from kbackup.archive.reader import Archive
from kbackup.jobs.mirror.flow import AppliedPosition, Flow, RemoteTopic
from kbackup.jobs.mirror.internal.topics import InternalTopics
from kbackup.jobs.mirror.positions.translation import Maps, Translate, exact_translation
from kbackup.kafka.mirror_records import Checkpoint
from kbackup.kafka.mirror_records.codec import fits
from kbackup.types import TopicPartition


class Emitted(NamedTuple):
    """`current` are the checkpoints of now, whether written or not; `written` are those that were due."""

    current: list[Checkpoint]
    written: list[Checkpoint]


def emit_checkpoints(
    flow: Flow,
    target: InternalTopics,
    archive: Archive,
    point: Manifest,
    topics: Sequence[RemoteTopic],
    positions: Mapping[TopicPartition, AppliedPosition],
    maps: Maps,
) -> Emitted:
    """Write the checkpoints of a restore point's groups that are due. `current` is for `positions.sync_group_offsets`;
    by MirrorMaker 2's rule, it has the last one written of each group and partition.

    `positions` and `maps` are by remote partition. Call `emit_offset_syncs` before: `kbackup.checkpoints = mm2`
    translates by its records.
    """
    remote = {topic.source: topic.remote for topic in topics}
    states = [state for state in point.topics if state.name in remote]
    groups = {g: offsets for g, offsets in group_offsets(archive, states)[0].items() if flow.groups(g)}
    if flow.checkpoint_rule == "mm2":
        translate: Translate = target.sync_journal.store().translate
    else:
        incarnations = {state.name: state.incarnation for state in states}
        translate = exact_translation(remote, incarnations, positions, maps)
    current = list(checkpoints(groups, remote, translate))
    if not current or not flow.emit_checkpoints.enabled:
        return Emitted(current, [])
    journal = target.checkpoint_journal
    last = journal.last()
    exact = flow.checkpoint_rule == "exact"
    written = [c for c in current if is_due(c, last.get(c.key), exact)]
    journal.append(written)
    return Emitted(current if exact else [last[c.key] for c in current], written)


def checkpoints(
    groups: Mapping[str, Sequence[GroupOffset]], remote: Mapping[str, str], translate: Translate
) -> Iterator[Checkpoint]:
    """Yield the checkpoint of each group and partition whose position is known. `remote` are the names of the source's
    topics in the target."""
    for group, offsets in groups.items():
        for o in offsets:
            offset = translate(TopicPartition(o.topic, o.partition), o.offset)
            if offset is not None and offset >= 0:
                tp = TopicPartition(remote[o.topic], o.partition)
                yield Checkpoint(group, tp, o.offset, offset, o.metadata if fits(o.metadata) else "")


def is_due(checkpoint: Checkpoint, last: Checkpoint | None, exact: bool) -> bool:
    """Return whether a checkpoint is written: the first, one that went back in the source, or one that advanced in the
    target. An `exact` one also where it went back in the target: the remote topic was recreated."""
    if last is None or checkpoint.upstream < last.upstream or checkpoint.offset > last.offset:
        return True
    return exact and checkpoint.offset < last.offset
