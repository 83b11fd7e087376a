"""What is served: the topics, logs, groups and settings of an archive at a restore point or a moment."""

from __future__ import annotations

import base64
import logging
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count

import numpy as np

from kbackup.archive.models import SHARE, Manifest, Metadata, PartitionState
from kbackup.archive.query.content import ArchivedPartition, ArchivedTopic, Content, View, content_at, view_of
from kbackup.archive.query.java import JAVA, java_content, java_topics, readable
from kbackup.archive.query.overview import content_as_restored, java_as_restored
from kbackup.archive.query.selection import Selection, check_selection
from kbackup.archive.reader import Archive
from kbackup.archive.segments.table import Segment, chosen, rows_of
from kbackup.archive.segments.window import Window
from kbackup.kafka.batches import EpochStart
from kbackup.metadata.entities import INTERNAL_TOPICS
from kbackup.serve.protocol import ServedTopic
from kbackup.store.base import Store
from kbackup.types import CommittedOffset, Int64Array, TopicPartition
from kbackup.util.times import time_text

log = logging.getLogger(__name__)

UNKNOWN_EPOCH = -1
"""The leader epoch of a log whose archive has none."""

_HINT = "run 'kbackup ls' to list them"


@dataclass(frozen=True, eq=False)
class ServedLog:
    """The log of one partition: records with `start` <= offset < `end`, as far as `segments` and the `window` have
    them.

    With a moment, `end` is the end of the archived log: where the log ends at that moment is found when somebody asks
    (`SegmentReader.end_of`). `epochs` are the leader epochs that the archive knows."""

    tp: TopicPartition
    start: int
    end: int
    segments: Sequence[Segment]
    window: Window | None
    epochs: tuple[EpochStart, ...]
    selection: int = 0
    """A number of its own for each window: batches are known by it. 0: no window."""

    @cached_property
    def lasts(self) -> Int64Array:
        """The last offset of each segment, rising."""
        return np.array([last for (last,) in rows_of(self.segments, "last")], np.int64)

    @property
    def timed(self) -> bool:
        """Whether the log ends at a moment, and not where the archive does."""
        return self.window is not None and self.window.timed

    @property
    def leader_epoch(self) -> int:
        """The newest leader epoch that is known."""
        return self.epochs[-1].leader_epoch if self.epochs else UNKNOWN_EPOCH

    def segment_from(self, offset: int) -> int:
        """Return the number of the segment that has `offset` or the next record; the number of segments if none has."""
        return int(np.searchsorted(self.lasts, offset))


@dataclass(frozen=True, eq=False)
class ServedArchive:
    """An archive at a restore point or a moment. `source` is the store that records are read from."""

    source: Store
    url: str
    restore_point: int | None
    committed_at: str | None
    to_time: int | None
    cluster_id: str
    topics: Mapping[str, ServedTopic]
    logs: Mapping[TopicPartition, ServedLog]
    groups: Mapping[str, Sequence[CommittedOffset]]
    configs: Mapping[str, Mapping[str, str]]
    """The non-default configs of each topic, as far as they are known."""
    metadata: Metadata | None
    warnings: tuple[str, ...]
    by_id: Mapping[uuid.UUID, str] = field(default_factory=dict)

    @cached_property
    def committed_epochs(self) -> dict[str, dict[int, int]]:
        """The newest leader epoch among the committed offsets of archived groups, by topic and partition."""
        newest: dict[str, dict[int, int]] = defaultdict(dict)
        for offsets in self.groups.values():
            for each in offsets:
                known = newest[each.tp.topic]
                epoch = UNKNOWN_EPOCH if each.leader_epoch is None else each.leader_epoch
                known[each.tp.partition] = max(known.get(each.tp.partition, UNKNOWN_EPOCH), epoch)
        return newest

    @property
    def as_of(self) -> str:
        """The restore point or the moment in words."""
        if self.to_time is not None:
            return time_text(self.to_time)
        if self.restore_point is not None:
            return f"restore point {self.restore_point}"
        return "the folder as it is"

    def logs_of(self, topic: str) -> Iterator[ServedLog]:
        """Yield the logs of a served topic in order of partitions."""
        for partition in range(self.topics[topic].partitions):
            yield self.logs[TopicPartition(topic, partition)]


@dataclass(frozen=True, slots=True)
class Choosing:
    """What to serve of an archive: `restore_point` is a number, a label, or 'latest'; `to_time` is a moment in ms since
    the epoch.

    With `follow`, logs end where nothing is held back: a reader that follows gets the held records later."""

    selection: Selection
    restore_point: str = "latest"
    to_time: int | None = None
    follow: bool = False


def served_archive(store: Store, archive: Archive | None, choosing: Choosing) -> ServedArchive:
    """Return what to serve of an opened archive; `archive` is None for a folder of the Java tool.

    Raises `UsageError` for an unknown restore point, or a topic that is not there."""
    if archive is None:
        return _folder(store, choosing)
    moment = choosing.to_time
    view = view_of(archive, choosing.restore_point, Window(to_time=moment))
    known = {topic.name: topic for topic in view.topics}
    for name in choosing.selection.names & view.others.keys():
        known[name] = view.others[name]
    check_selection(choosing.selection, "topic", known, f"in {_place(archive, view, moment)}", _HINT)
    selected = [known[name] for name in choosing.selection.topics(known)]
    if moment is None:
        content = content_at(archive, view, selected)
    else:
        content = content_as_restored(archive, view, selected, moment)
    ids = {topic.name: topic.id for topic in selected}
    states: dict[TopicPartition, PartitionState] = {}
    for topic in selected:
        for partition in topic.partitions:
            states[TopicPartition(topic.name, partition.partition)] = partition
    manifest = archive.restore_point(content.restore_point)
    return _served(
        source=readable(store, archive.info.id),
        url=store.url,
        manifest=manifest,
        content=content,
        ids=ids,
        states=states,
        choosing=choosing,
        metadata=archive.metadata(manifest),
    )


def _place(archive: Archive, view: View, moment: int | None) -> str:
    if moment is not None:
        return f"{archive.store.url} as of {time_text(moment)}"
    return f"restore point {view.upto.number}"


def _folder(store: Store, choosing: Choosing) -> ServedArchive:
    names = java_topics(store)
    check_selection(choosing.selection, "topic", names, f"in {store.url}", _HINT)
    content = java_content(store, choosing.selection.topics(names))
    if choosing.to_time is not None:
        content = java_as_restored(content, choosing.to_time)
    return _served(
        source=readable(store, JAVA),
        url=store.url,
        manifest=None,
        content=content,
        ids={},
        states={},
        choosing=choosing,
        metadata=None,
    )


def _served(
    *,
    source: Store,
    url: str,
    manifest: Manifest | None,
    content: Content,
    ids: Mapping[str, str],
    states: Mapping[TopicPartition, PartitionState],
    choosing: Choosing,
    metadata: Metadata | None,
) -> ServedArchive:
    topics: dict[str, ServedTopic] = {}
    logs: dict[TopicPartition, ServedLog] = {}
    configs: dict[str, Mapping[str, str]] = {}
    for topic in content.topics:
        if topic.name in INTERNAL_TOPICS:
            # Clients take them for the server's own, and read groups and transactions out of them.
            continue
        topic_id = _topic_id(content.archive_id, topic, ids.get(topic.name, ""))
        topics[topic.name] = ServedTopic(topic.name, topic_id, len(topic.partitions))
        configs[topic.name] = topic.configs or {}
        for partition in topic.partitions:
            tp = TopicPartition(topic.name, partition.partition)
            logs[tp] = _log(tp, partition, states.get(tp), follow=choosing.follow)
    groups: dict[str, list[CommittedOffset]] = {}
    for name, group in content.groups.items():
        if group.type == SHARE:
            # It has start offsets. Consumers and MirrorMaker would take them for committed ones.
            continue
        committed = groups.setdefault(name, [])
        for each in group.offsets:
            tp = TopicPartition(each.topic, each.partition)
            if tp in logs:
                committed.append(CommittedOffset(tp, each.offset, each.leader_epoch, each.metadata))
    # A folder of the Java tool has no restore points, and does not say of which cluster it is.
    number: int | None = None
    committed_at: str | None = None
    cluster_id = ""
    if manifest is not None:
        number, committed_at, cluster_id = manifest.number, manifest.committed_at, manifest.cluster_id
    # How far the archive does not reach, where a moment was asked for.
    not_reached = content.choice.left_out if content.choice is not None else ()
    return ServedArchive(
        source=source,
        url=url,
        restore_point=number,
        committed_at=committed_at,
        to_time=choosing.to_time,
        cluster_id=cluster_id,
        topics=topics,
        logs=logs,
        groups=groups,
        configs=configs,
        metadata=metadata,
        warnings=(*content.warnings, *not_reached),
        by_id={topic.topic_id: topic.name for topic in topics.values()},
    )


def _topic_id(archive_id: str, topic: ArchivedTopic, known: str) -> uuid.UUID:
    """Return the id that the topic had, or one of its own where brokers gave none: later versions of Fetch name topics
    by id alone."""
    if known:
        try:
            # As Kafka writes it: base64 for URLs, without padding.
            return uuid.UUID(bytes=base64.urlsafe_b64decode(known + "=="))
        except ValueError:
            log.debug("topic %s has an id that is none of Kafka's: %s", topic.name, known)
    return uuid.uuid5(uuid.NAMESPACE_URL, f"kbackup:{archive_id}/{topic.name}@{topic.incarnation}")


def _log(tp: TopicPartition, partition: ArchivedPartition, state: PartitionState | None, *, follow: bool) -> ServedLog:
    end = partition.end
    segments = partition.segments
    if follow and state is not None and state.held:
        end = min(end, max(partition.start, state.unbroken))
        # Segments begin and end where held ranges do.
        segments = chosen(segments, lambda segment: segment.first < end)
    return ServedLog(
        tp=tp,
        start=partition.start,
        end=end,
        segments=segments,
        window=partition.window,
        epochs=_epochs(partition.start, state),
        selection=0 if partition.window is None else next(_SELECTIONS),
    )


_SELECTIONS = count(1)


def _epochs(start: int, state: PartitionState | None) -> tuple[EpochStart, ...]:
    """Return the leader epochs of a log. Of each epoch the archive has the last record that is known to be of it: the
    next epoch begins behind it."""
    if state is None:
        return ()
    ends = [(epoch.leader_epoch, epoch.offset) for epoch in state.epochs]
    if state.last is not None and state.last.leader_epoch is not None:
        ends.append((state.last.leader_epoch, state.last.offset))
    found: list[EpochStart] = []
    begin = start
    for epoch, last in ends:
        if epoch < 0 or (found and epoch <= found[-1].leader_epoch):
            continue
        found.append(EpochStart(begin, epoch))
        begin = max(begin, last + 1)
    return tuple(found)
