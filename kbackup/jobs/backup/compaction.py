"""The phase of a backup that looks for deletions which compaction removed before the backup could read them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from kbackup.archive.catalog.operations import may_salvage
from kbackup.archive.catalog.state import LogStart
from kbackup.archive.deletions import unseen_partitions, unseen_warnings
from kbackup.archive.models import DeletedRecords, Deletions, Metadata, PartitionState, TopicState, UnseenDeletions
from kbackup.archive.segments.table import Segment, in_order, sum_of
from kbackup.archive.segments.window import joined, without
from kbackup.config.models import Backup
from kbackup.jobs.backup.deletions import DEFAULT_RETENTION, late_looks, looks_of, with_looks
from kbackup.jobs.backup.gaps import MOST_MISSING, MOST_RECORDS, left_by_transactions, missing_ranges, read_ranges
from kbackup.jobs.backup.log_check import is_compacted
from kbackup.jobs.backup.plan import Plan
from kbackup.jobs.backup.recheck import CheckedPartition, DeletedKeys, RecheckWork
from kbackup.jobs.backup.task import Read
from kbackup.jobs.capture import BackupSession, SourceCluster
from kbackup.metrics.registry import Phases
from kbackup.spark.tasks import Spark, run_counted
from kbackup.types import IncarnationPartition, Offsets, TopicPartition
from kbackup.util.text import plural
from kbackup.util.times import now

_RETENTION = "delete.retention.ms"
_POLICY = "cleanup.policy"


@dataclass(frozen=True)
class CheckedDeletions:
    """What a restore point knows of deletions: its topics, the records that a restore leaves out, and warnings.

    `records` counts what this run added to `deletions`. `unseen` counts the missing offsets of partitions that were
    not rechecked.
    """

    topics: tuple[TopicState, ...]
    deletions: Deletions | None
    warnings: tuple[str, ...] = ()
    records: int = 0
    unseen: int = 0

    @property
    def note(self) -> str:
        """What this run has found, in words; empty if nothing."""
        if not self.records:
            return ""
        return (
            f"restores leave out {plural(self.records, 'archived record')} of compacted topics: their keys were "
            "deleted at the source, and no backup saw that"
        )


def explicitly_compacted(*settings: Metadata | None) -> set[str]:
    """Return the topics that one of the captures shows to be compacted."""
    names: set[str] = set()
    for metadata in settings:
        for topic in metadata.topics if metadata is not None else ():
            if is_compacted(topic.configs.get(_POLICY)):
                names.add(topic.name)
    return names


@dataclass(frozen=True)
class CompactionCheck:
    """Looks for deletions that compaction removed, for the backup that goes on from `session`.

    Partitions that may lack deletions are rechecked, as far as `options.recheck_bytes` allows. With `recheck_all`,
    every compacted partition is rechecked.
    """

    source: SourceCluster
    session: BackupSession
    options: Backup
    spark: Spark
    phases: Phases
    recheck_all: bool

    def run(
        self, settings: Metadata, started_at: str, plan: Plan, read: Read, topics: Sequence[TopicState]
    ) -> CheckedDeletions:
        """Return what the restore point of `topics` knows of deletions. `settings` are the settings of its capture,
        which began at `started_at`; `read` has the records of `plan`."""
        read_at = now()
        session = self.session
        looks = looks_of(plan, read.segments, read.vanished, session.looks, session.head, started_at)
        # Without a missing offset every record was read, deletions included: such topics need no request.
        gaps = {tp.topic for tp, look in looks.items() if look.missing}
        configs = self._configs(gaps)
        compacted = explicitly_compacted(settings, session.settings)
        for name in gaps:
            # the policy may be a default of the brokers, which a capture does not have
            if is_compacted(configs[name].get(_POLICY)):
                compacted.add(name)
        retention = _least_retention(gaps & compacted, configs, settings, session.settings)
        looks = {tp: look for tp, look in looks.items() if tp.topic in compacted}
        late = late_looks(looks, retention, read_at)
        for tp in self._left_by_transactions(plan, read, late):
            del late[tp]
        marked = with_looks(topics, looks, late, started_at)
        for tp, look in looks.items():
            if look.complete:
                session.looks[tp] = started_at
        found = self._recheck(plan, read, marked, compacted, late)
        checked = {each.tp for each in found if not each.failure}
        failures = [f"the log of {each.tp} was not rechecked: {each.failure}" for each in found if each.failure]
        marked = _without_unseen(marked, checked)
        kept = still_archived(session.deletions, marked, session.archive.state.starts)
        deletions, records = merge_deletions(kept, found)
        return CheckedDeletions(
            topics=marked,
            deletions=deletions,
            warnings=(*unseen_warnings(marked), *failures),
            records=records,
            unseen=sum(unseen.offsets for unseen in unseen_partitions(marked).values()),
        )

    def _configs(self, topics: Collection[str]) -> dict[str, dict[str, str]]:
        """Return the configs of topics, defaults included; none of a topic that was deleted meanwhile."""
        configs: dict[str, dict[str, str]] = {name: {} for name in topics}
        if topics:
            present = self.source.cluster.topics(topics)
            configs |= self.source.cluster.all_topic_configs(present)
        return configs

    def _left_by_transactions(
        self, plan: Plan, read: Read, late: Mapping[TopicPartition, UnseenDeletions]
    ) -> set[TopicPartition]:
        """Return the `late` partitions in which transactions alone left gaps, as far as a few requests tell."""
        segments: dict[TopicPartition, list[Segment]] = defaultdict(list)
        for segment in read.segments:
            segments[TopicPartition(segment.topic, segment.partition)].append(segment)
        missing: dict[TopicPartition, Offsets] = {}
        for topic in plan.topics:
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.partition)
                few = tp in late and late[tp].offsets <= MOST_MISSING
                if few and sum_of(segments[tp], "count") <= MOST_RECORDS:
                    own = [gone for gone in read.vanished if gone.tp == tp]
                    vanished = [(gone.start, gone.end) for gone in own]
                    ranges = read_ranges(partition, vanished)
                    missing[tp] = missing_ranges(self.session.run.plain, segments[tp], ranges)
        return left_by_transactions(self.source, missing)

    def _recheck(
        self,
        plan: Plan,
        read: Read,
        topics: Sequence[TopicState],
        compacted: Collection[str],
        late: Collection[TopicPartition],
    ) -> list[DeletedKeys]:
        """Compare the logs of the partitions that are due with the archive. Of the partitions in `late`, this run may
        have missed deletions; of others, an earlier run may have."""
        captured: set[TopicPartition] = set()
        for planned in plan.topics:
            captured.update(TopicPartition(planned.name, each.partition) for each in planned.partitions)
        due: list[CheckedPartition] = []
        room = self.options.recheck_bytes
        # small partitions first: as many as possible get an answer
        for topic, state in sorted(_partitions(topics), key=_size):
            tp = TopicPartition(topic.name, state.partition)
            if tp not in captured or not state.records:
                continue
            # a follower does not try again each round what has failed
            is_due = state.unseen is not None and (tp in late or tp not in self.session.rechecked)
            if is_due and state.bytes <= room:
                room -= state.bytes
            elif not (self.recheck_all and topic.name in compacted):
                continue
            due.append(self._checked_partition(topic, state, read))
            self.session.rechecked.add(tp)
        if not due:
            return []
        work = RecheckWork(
            source=self.source.properties,
            store=self.session.run.plain,
            isolation=self.source.isolation_level,
            group=self.session.group,
            poll_timeout=self.source.poll_timeout,
            exact=may_salvage(self.session.archive.state),
        )
        expected = sum(2 * sum_of(each.segments, "count") for each in due)
        with self.phases.step("recheck compacted topics"):
            return run_counted(self.spark, due, work, self.phases.listener, expected)

    def _checked_partition(self, topic: TopicState, state: PartitionState, read: Read) -> CheckedPartition:
        archive, head = self.session.archive, self.session.head
        segments: list[Segment] = []
        if head is not None:
            archived = archive.partitions(head, [topic])
            segments += archived.get((topic.name, topic.incarnation), {}).get(state.partition, ())
        # Those of this run are not committed yet: the archive has none of them.
        segments += [s for s in read.segments if (s.topic, s.partition) == (topic.name, state.partition)]
        place = (topic.name, topic.incarnation, state.partition)
        retained = archive.state.starts.get(place)
        start = state.start if retained is None else max(state.start, retained.start)
        absent = [*state.held, *archive.state.erased_offsets(place)]
        return CheckedPartition(
            tp=TopicPartition(topic.name, state.partition),
            incarnation=topic.incarnation,
            segments=tuple(sorted(segments, key=in_order)),
            start=start,
            end=state.end,
            held=joined(absent),
        )


def _partitions(topics: Sequence[TopicState]) -> list[tuple[TopicState, PartitionState]]:
    places: list[tuple[TopicState, PartitionState]] = []
    for topic in topics:
        places += [(topic, state) for state in topic.partitions]
    return places


def _size(place: tuple[TopicState, PartitionState]) -> int:
    return place[1].bytes


def _least_retention(
    topics: Collection[str], configs: Mapping[str, Mapping[str, str]], *settings: Metadata | None
) -> dict[str, int]:
    """Return the least delete.retention.ms that each of `topics` is known to have had: by its `configs` now, and as it
    was captured."""
    # A topic's setting may have been lower when the deletions were written: compaction went by the setting of its time.
    least: dict[str, int] = {}
    for name in topics:
        least[name] = int(configs[name].get(_RETENTION, DEFAULT_RETENTION))
    for metadata in settings:
        for topic in metadata.topics if metadata is not None else ():
            captured = topic.configs.get(_RETENTION)
            if topic.name in least and captured is not None:
                least[topic.name] = min(least[topic.name], int(captured))
    return least


def _without_unseen(topics: Sequence[TopicState], checked: Collection[TopicPartition]) -> tuple[TopicState, ...]:
    """Return the topics, with nothing unseen in the partitions that were `checked`."""
    result: list[TopicState] = []
    for topic in topics:
        partitions: list[PartitionState] = []
        for state in topic.partitions:
            if TopicPartition(topic.name, state.partition) in checked:
                state = msgspec.structs.replace(state, unseen=None)
            partitions.append(state)
        result.append(msgspec.structs.replace(topic, partitions=tuple(partitions)))
    return tuple(result)


def still_archived(
    deletions: Deletions | None, topics: Sequence[TopicState], starts: Mapping[IncarnationPartition, LogStart]
) -> Deletions | None:
    """Return `deletions` without incarnations that `topics` lack, and without records that have expired."""
    if deletions is None:
        return None
    living = {(topic.name, topic.incarnation) for topic in topics}
    kept: list[DeletedRecords] = []
    for each in deletions.partitions:
        retained = starts.get((each.topic, each.incarnation, each.partition))
        offsets = each.offsets if retained is None else without(each.offsets, ((0, retained.start),))
        if offsets and (each.topic, each.incarnation) in living:
            kept.append(msgspec.structs.replace(each, offsets=offsets))
    return _changed(deletions, kept)


def merge_deletions(before: Deletions | None, found: Sequence[DeletedKeys]) -> tuple[Deletions | None, int]:
    """Return `before` with what was found, and how many records that adds."""
    partitions: dict[IncarnationPartition, DeletedRecords] = {}
    for each in before.partitions if before is not None else ():
        partitions[each.topic, each.incarnation, each.partition] = each
    # A recheck may find again what an earlier one has found: only what is new is counted.
    added = 0
    for deleted in found:
        if not deleted.offsets:
            continue
        place = (deleted.tp.topic, deleted.incarnation, deleted.tp.partition)
        known = partitions[place].offsets if place in partitions else ()
        offsets = joined((*known, *deleted.offsets))
        added += _count(offsets) - _count(known)
        partitions[place] = DeletedRecords(topic=place[0], incarnation=place[1], partition=place[2], offsets=offsets)
    ordered = [partitions[place] for place in sorted(partitions)]
    return _changed(before, ordered), added


def _count(ranges: Offsets) -> int:
    return sum(end - start for start, end in ranges)


def _changed(before: Deletions | None, partitions: Sequence[DeletedRecords]) -> Deletions | None:
    """Return a document of `partitions`: `before` where it has the same, None without any."""
    if before is not None and before.partitions == tuple(partitions):
        return before
    if not partitions:
        return None
    return Deletions(found_at=now(), partitions=tuple(partitions))
