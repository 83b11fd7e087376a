"""The backup job: take the lease, capture the cluster, archive its records, commit one restore point.

Readers see nothing of a restore point before the catalog version that adds it, which is the commit. `follow` runs the
same phases repeatedly.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

from kbackup.archive import layout
from kbackup.archive.catalog import operations
from kbackup.archive.catalog.documents import IsolationLevel
from kbackup.archive.catalog.labels import check_label
from kbackup.archive.catalog.state import State
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import (
    Capture,
    Deletions,
    DocumentRef,
    Groups,
    Loss,
    Manifest,
    Metadata,
    Schemas,
    TopicState,
    Totals,
    Transactions,
)
from kbackup.archive.query.selection import Selection, Selections
from kbackup.archive.reader import refuse_if_swept
from kbackup.archive.restores.target_topics import TopicRestore, find_restores
from kbackup.archive.run import TOOL, WritingRun, begin_writing, check_written, open_or_create, put_manifest, totals_of
from kbackup.archive.secrets import as_archived
from kbackup.archive.segments.table import in_table
from kbackup.config.models import Backup
from kbackup.errors import ClusterError, KbackupError, MismatchError, RefusedError
from kbackup.formats.schema_ids import merge
from kbackup.jobs import capture
from kbackup.jobs.backup import plan as planning
from kbackup.jobs.backup import transactions
from kbackup.jobs.backup.adoption import adopt
from kbackup.jobs.backup.compaction import CheckedDeletions, CompactionCheck
from kbackup.jobs.backup.log_check import compare_logs, is_compacted, truncated_partitions
from kbackup.jobs.backup.plan import Plan
from kbackup.jobs.backup.schemas import BackupSchemas, TakenSchemas
from kbackup.jobs.backup.task import BackupWork, Read, make_tasks, read_records, recover, without, write_by_tasks
from kbackup.jobs.backup.transactions import Begun, WholeEnds
from kbackup.jobs.capture import BackupSession, LiveTopic, SourceCluster, connect, settings_warnings
from kbackup.jobs.metadata import with_sources
from kbackup.kafka.client import Properties, fetch_size_factor
from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.control.topics import Topic
from kbackup.kafka.transactions import OffsetsTopicCreatedError
from kbackup.metrics.registry import LOSSES, Phases, ProgressListener, counted
from kbackup.schemas.base import RegistryOptions
from kbackup.spark.tasks import Spark
from kbackup.store.base import Store
from kbackup.systems import metadata_sources
from kbackup.types import Incarnation, OffsetRange, TopicPartition
from kbackup.util.text import join_names, plural
from kbackup.util.times import now

_SMALL_BYTES = 16 << 20
"""A follower's round of no more bytes is read in this process: Spark would take longer to begin. So is a backup, if
`backup.small_without_spark` asks for that."""


@dataclass(frozen=True)
class BackupReport:
    """Report of a backup.

    `new_records` are by topic, `seconds` by step; `held_back` counts the partitions whose new records wait. `damage`
    names sources of metadata that are corrupt, a schema registry that can't be read, and 'schema ids' where records
    carry more than are listed. `unseen_deletions` counts offsets of compacted topics that may have been deletions.
    `deleted_records` counts the archived records that restores leave out from now on, since their keys were deleted.
    """

    restore_point: int
    parent: int | None
    committed_at: str
    archive: str
    totals: Totals
    topics: tuple[TopicState, ...]
    losses: tuple[Loss, ...]
    warnings: tuple[str, ...]
    held_back: int = 0
    damage: tuple[str, ...] = ()
    offline: tuple[str, ...] = ()  # partitions without a leader: the restore point has nothing new of them
    transactions: Transactions | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    new_records: Mapping[str, int] = field(default_factory=dict)
    note: str = ""
    unseen_deletions: int = 0
    deleted_records: int = 0


@dataclass(frozen=True)
class ClusterSnapshot:
    """What the cluster showed: where its logs end, the names of all topics, and the settings.

    `damage` names the corrupt sources of metadata. `begun` and `asked` are transactions and groups as they were before
    the ends of the logs: a later capture of the ends starts from them again.
    """

    started_at: str
    ends: WholeEnds
    existing: Sequence[str]
    settings: Metadata
    begun: Begun
    asked: Groups
    warnings: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()

    @property
    def topics(self) -> Sequence[LiveTopic]:
        return self.ends.topics

    @property
    def groups(self) -> Groups:
        """The groups' committed offsets."""
        return self.ends.groups


@dataclass(frozen=True)
class PointContent:
    """What a restore point consists of, as the phases before its commit found it."""

    snapshot: ClusterSnapshot
    plan: Plan
    read: Read
    checked: CheckedDeletions
    taken: TakenSchemas

    @property
    def losses(self) -> tuple[Loss, ...]:
        vanished = planning.vanished_losses(self.plan, self.read.vanished)
        return (*self.plan.losses, *vanished)

    @property
    def warnings(self) -> tuple[str, ...]:
        warnings = list(self.plan.warnings)
        for group, why in self.snapshot.groups.not_carried.items():
            warnings.append(f"group {group} is not in this restore point: {why}")
        warnings += settings_warnings(self.snapshot.settings)
        warnings += self.taken.warnings
        warnings += self.checked.warnings
        return tuple(warnings)

    @property
    def totals(self) -> Totals:
        topics = self.plan.topics
        partitions = sum(len(topic.partitions) for topic in topics)
        groups = len(self.snapshot.groups.groups)
        return totals_of(self.read.segments, topics=len(topics), partitions=partitions, groups=groups)


def backup(
    options: Backup,
    properties: Properties,
    store: Store,
    spark: Spark,
    listener: ProgressListener,
    show_plan: Callable[[Plan], None] = lambda plan: None,
    label: str = "",
    registry: RegistryOptions | None = None,
) -> BackupReport:
    """Take one restore point of the cluster and of its schema registry, with `label`.
    Raises a `KbackupError` if no restore point was taken."""
    backup_begins()
    if label:
        check_label(label)  # The commit checks the label as well, but then hours of reading would be lost.
    schemas = BackupSchemas(registry or RegistryOptions(), options.schemas)
    schemas.check()
    phases = Phases(listener)
    started_at = now()
    # The source first: if it can't be reached, no archive is made.
    with phases.step("connect"):
        source = connect(properties, options)
        open_or_create(store)
    wait = time.sleep if options.wait else None
    with HeldLease(store, "kbackup backup", options.lease_seconds, wait) as lease:
        with phases.step("connect"):
            session = begin(store, lease, source, options.adopt_cluster)
        # A rewrite and a sweep go on beside a backup: the catalog that it has opened may be gone when it is read.
        with refuse_if_swept(session.archive):
            snapshot = capture_cluster(source, session, selections_of(options), phases, started_at)
            plan = plan_records(source, session, snapshot, phases, options.adopt_topics, options.adopt_cluster)
            show_plan(plan)
            read = archive_records(source, session, plan, options, spark, phases, here=options.small_without_spark)
            recheck = CompactionCheck(source, session, options, spark, phases, options.recheck_compacted)
            checked = check_deletions(recheck, snapshot, plan, read)
            # After the records: every id that they carry is in the registry by now.
            with phases.step("capture schemas"):
                taken = schemas.take(checked.topics, session.schemas)
            content = PointContent(snapshot, plan, read, checked, taken)
            with phases.step("commit"):
                manifest = commit(source, session, content, label)
        # Counted before the derived files: the restore point is committed, whatever becomes of them.
        report = report_of(manifest, content, store.url, phases)
        backed_up(report)
        refresh(session.run, spark, phases)
    return report


def selections_of(options: Backup) -> Selections:
    """Return the topics and groups that `options` select. `UsageError` for an invalid regular expression."""
    topics = Selection.of(options.topics, options.exclude_topics)
    groups = Selection.of(options.groups, options.exclude_groups)
    return Selections(topics, groups)


def begin(store: Store, lease: HeldLease, source: SourceCluster, adopt_cluster: bool) -> BackupSession:
    """Fence off every other run, and read the newest restore point."""
    run = begin_point(store, lease, source.id, adopt_cluster, source.isolation_level)
    archive = run.archive
    head = archive.head
    if head is None:
        return BackupSession(run)
    return BackupSession(
        run=run,
        head=head,
        groups=archive.groups(head),
        settings=archive.metadata(head),
        schemas=archive.schemas(head),
        deletions=archive.deletions(head),
    )


def begin_point(
    store: Store, lease: HeldLease, cluster_id: str, adopt_cluster: bool, isolation_level: IsolationLevel
) -> WritingRun:
    """Fence off every other run. `RefusedError` for a copy, `MismatchError` for an archive of another cluster."""
    archive = open_or_create(store)
    if archive.state.origin is not None:
        raise RefusedError(
            f"archive {store.url} is a copy of {archive.state.origin.archive}",
            "back up to its source, or run 'kbackup promote' to make the copy an archive of its own",
        )
    check_cluster(archive.head, cluster_id, store.url, adopt_cluster)
    return begin_writing(store, lease, "backup", isolation_level)


def capture_cluster(
    source: SourceCluster,
    session: BackupSession,
    selections: Selections,
    phases: Phases,
    started_at: str,
    later: bool = False,
    offline: Collection[TopicPartition] = (),
) -> ClusterSnapshot:
    """Capture topics, groups and settings of the cluster.

    With `later`, selected groups, and topics that regular expressions select, may be created later. Partitions in
    `offline` had no leader before: they get no time for an election.
    """
    cluster = source.cluster
    with phases.step("discover"):
        topics, existing = capture.discover(cluster, selections.topics, session.head, later, offline)

    def begin_with_groups(offsets_topic_exists: bool) -> tuple[Begun, Groups]:
        with phases.step("capture groups"):
            begun = transactions.begin(source, offsets_topic_exists=offsets_topic_exists)
            # Groups come before the end offsets, so that no group points past what is archived.
            asked = capture.groups(cluster, selections.groups, set(topics), session.groups, later)
        return begun, asked

    begun, asked = begin_with_groups(offsets_topic_exists=False)
    try:
        ends = capture_logs(source, session, topics, begun, asked, selections, phases)
    except OffsetsTopicCreatedError:
        # A cluster that never had a group has no such topic, until somebody asks for a group's coordinator: most often
        # this very capture. What was begun did not look at the topic, so groups and logs are captured once more.
        begun, asked = begin_with_groups(offsets_topic_exists=True)
        ends = capture_logs(source, session, topics, begun, asked, selections, phases)
    with phases.step("resolve ranges"):
        reading = capture.read_brokers(cluster, topics, source.id, [group.group for group in asked.groups])
        merged = with_sources(reading, source.brokers, metadata_sources(source.sources))
    # The next run compares its settings with these as the archive has them.
    settings = as_archived(merged.metadata, session.archive.info)
    return ClusterSnapshot(
        started_at=started_at,
        ends=ends,
        existing=existing,
        settings=settings,
        begun=begun,
        asked=asked,
        warnings=merged.warnings,
        damage=merged.damage,
    )


def capture_logs(
    source: SourceCluster,
    session: BackupSession,
    topics: Mapping[str, Topic],
    begun: Begun,
    asked: Groups,
    selections: Selections,
    phases: Phases,
) -> WholeEnds:
    """Capture where the logs end, and the groups as of those ends: `asked`, moved on by the transactions since then.
    Raises `OffsetsTopicCreatedError` as `CutBegun.close` does."""
    with phases.step("resolve ranges"):
        live = capture.live_topics(source.cluster, topics, source.isolation_level)
    with phases.step("end transactions"):
        is_captured = partial(capture.is_captured, selections.groups)
        return transactions.whole_ends(source, begun, live, asked, is_captured, session.given_up)


def capture_ends(
    source: SourceCluster, session: BackupSession, selections: Selections, phases: Phases, snapshot: ClusterSnapshot
) -> ClusterSnapshot | None:
    """Capture the ends of the logs anew, with the groups and settings of an earlier capture.

    Return None if topics or partitions have come or gone since then, `__consumer_offsets` included: the caller then
    captures everything anew.
    """
    started_at = now()
    # Partitions without a leader then: no time is given to an election that did not come in the round before.
    offline: set[TopicPartition] = set()
    for topic in snapshot.topics:
        offline.update(TopicPartition(topic.name, number) for number in topic.offline)
    with phases.step("discover"):
        topics, existing = capture.discover(source.cluster, selections.topics, session.head, True, offline)
    before: dict[str, tuple[str, set[int]]] = {}
    for captured in snapshot.topics:
        partitions = set(captured.partitions)
        partitions.update(captured.offline)
        before[captured.name] = (captured.id, partitions)
    present = {topic.name: (topic.id, set(topic.partitions)) for topic in topics.values()}
    if present != before:
        return None
    try:
        ends = capture_logs(source, session, topics, snapshot.begun, snapshot.asked, selections, phases)
    except OffsetsTopicCreatedError:
        return None
    return replace(snapshot, started_at=started_at, ends=ends, existing=existing)


def plan_records(
    source: SourceCluster,
    session: BackupSession,
    snapshot: ClusterSnapshot,
    phases: Phases,
    adopt_topics: bool,
    adopt_cluster: bool = False,
) -> Plan:
    """Plan what to archive. A topic whose log was cut begins a new incarnation."""
    with phases.step("compare logs"):
        check_identity(session.head, snapshot.topics, adopt_topics)
        adopted = adopt(source, session, snapshot.topics) if adopt_cluster or adopt_topics else []
        diverged, log_warnings = compare_logs(source, session, snapshot.topics)
    with phases.step("plan"):
        numbers = partial(operations.next_incarnation, session.archive.state)
        restores, unread = restores_of_recreated(source, session, snapshot.topics)
        plan = planning.make_plan(session.head, snapshot.topics, snapshot.existing, numbers, diverged, restores)
    warnings = [*adopted, *plan.warnings, *unread, *log_warnings, *snapshot.ends.warnings, *snapshot.warnings]
    return replace(plan, warnings=tuple(warnings))


def restores_of_recreated(
    source: SourceCluster, session: BackupSession, topics: Sequence[LiveTopic]
) -> tuple[Mapping[str, TopicRestore], list[str]]:
    """Return the restores of this archive that topics which were created again come from, by the topics' ids; and
    warnings of documents of restores that can't be read, if one of them may name such a topic."""
    recreated = planning.recreated_topics(session.head, topics)
    archive = session.archive
    found = find_restores(archive.store, archive.info.id, source.id, recreated.values())
    unexplained = [name for name, topic_id in sorted(recreated.items()) if topic_id not in found.by_topic_id]
    if not unexplained:
        return found.by_topic_id, []
    names = join_names(unexplained, 5)
    warnings = [f"whether a restore has created {names} again is not known: {why}" for why in found.problems]
    return found.by_topic_id, warnings


def archive_records(
    source: SourceCluster,
    session: BackupSession,
    plan: Plan,
    options: Backup,
    spark: Spark,
    phases: Phases,
    here: bool = False,
) -> Read:
    """Write the segments of the plan, by tasks on Spark, and check that each of them is in the store. With `here`, a
    small round is read in this process instead."""
    run = session.run
    with phases.step("plan"):
        reserve(run, plan)
    with phases.step("run"):
        # What an interrupted run has written is taken over, and not read again. It was read from the same logs, unless
        # they were cut since: these partitions are compared first.
        read = salvaged = recover(run, plan, spark, partial(truncated_partitions, source, session))
        taken = [OffsetRange(s.topic, s.partition, s.first, s.last + 1) for s in salvaged.segments]
        ranges = without(plan.ranges, taken)
        tasks = make_tasks(ranges, options.split_records, options.pack_records)
        if tasks:
            work = _work_of(source, session, plan, options, ranges)
            reader: Spark | None = spark
            if here and _is_small(plan, options.pack_records):
                reader = None
            else:
                # The farther away the cluster is, the more the tasks ask for at once.
                round_trip = source.cluster.round_trip(ranges[0].topic)
                work = replace(work, far=fetch_size_factor(round_trip))
            read = read_records(work, tasks, reader, phases.listener)
            segments = [*salvaged.segments, *read.segments]
            schemas = merge([*salvaged.schemas, *read.schemas])
            read = replace(read, segments=segments, schemas=schemas)
        # The driver asks the store itself: a worker may have written to a directory of its own.
        check_written(run.store, read.segments)
    return read


def _work_of(
    source: SourceCluster, session: BackupSession, plan: Plan, options: Backup, ranges: Iterable[OffsetRange]
) -> BackupWork:
    """Return the function of the tasks that read `ranges`."""
    run = session.run
    # Each task gets all of this. A round may read a few topics out of many, so the others are left out.
    topics = {offsets.topic for offsets in ranges}
    incarnations = {topic.name: topic.incarnation for topic in plan.topics if topic.name in topics}
    may_salvage = operations.may_salvage(run.archive.state)
    return BackupWork(
        source=source.properties,
        store=run.plain.for_writing(),  # with the one data key that encrypts: tasks read nothing else
        isolation=source.isolation_level,
        group=session.group,
        segment_bytes=options.segment_bytes,
        compression=options.compression,
        poll_timeout=source.poll_timeout,
        incarnations=incarnations,
        since=run.since,
        salvage=may_salvage,
        skips=plan.skips,
    )


def _is_small(plan: Plan, pack_records: int) -> bool:
    """Return whether a plan has few new bytes, and no more than `pack_records` new offsets."""
    size = 0.0
    offsets = 0
    for partition in planning.waiting(plan).values():
        new = partition.end - partition.start
        if new > 0:
            size += planning.new_bytes(new, partition.before)
            offsets += new
    return size <= _SMALL_BYTES and offsets <= pack_records


def reserve(run: WritingRun, plan: Plan) -> None:
    """Give new incarnations their numbers before the first segment is written in their folders."""
    lives = run.archive.state.lives
    new: dict[Incarnation, str] = {}
    for topic in plan.topics:
        key = (topic.name, topic.incarnation)
        if key not in lives:
            new[key] = topic.id
    if new:
        # By a commit of its own: if this run is killed, no later topic gets the folder that its segments lie in.
        summary = f"backup found {plural(len(new), 'new topic')}"
        run.commit(lambda state: operations.reserve_incarnations(state, run.run, new), "begin", summary)


def has_news(session: BackupSession, snapshot: ClusterSnapshot, plan: Plan) -> bool:
    """Return whether a restore point of this capture would differ from the newest one."""
    if planning.says_more(plan, session.head) or session.groups is None or session.settings is None:
        return True
    # A group that has only moved on among records that are held back is none the better for a restore point.
    groups = planning.clamp(snapshot.groups, plan)
    former_groups = planning.clamp(session.groups, plan)
    if not planning.same_groups(groups, former_groups):
        return True
    return not planning.same_settings(snapshot.settings, session.settings)


def next_topics(session: BackupSession, snapshot: ClusterSnapshot, plan: Plan, read: Read) -> tuple[TopicState, ...]:
    """Return the topics of the restore point that is about to be committed."""
    compacted = _compacted_topics(snapshot.settings)
    # Compaction may have taken records of a topic before it was switched off: a missing record is no sign of a cut.
    before = _compacted_topics(session.settings) if session.settings is not None else set[str]()
    no_longer_compacted = before - compacted
    return planning.next_states(
        session.run.next_point,
        plan,
        read.segments,
        lasts=read.lasts,
        compacted=compacted,
        schemas=read.schemas,
        earlier=read.earlier,
        forgetting=no_longer_compacted,
    )


def _compacted_topics(settings: Metadata) -> set[str]:
    return {topic.name for topic in settings.topics if is_compacted(topic.configs.get("cleanup.policy"))}


def check_deletions(check: CompactionCheck, snapshot: ClusterSnapshot, plan: Plan, read: Read) -> CheckedDeletions:
    """Return the topics of the restore point that is about to be committed, with what is known of deletions that
    compaction removed before they could be read."""
    topics = next_topics(check.session, snapshot, plan, read)
    return check.run(snapshot.settings, snapshot.started_at, plan, read, topics)


def commit(
    source: SourceCluster, session: BackupSession, content: PointContent, label: str = "", last: bool = True
) -> Manifest:
    """Commit the restore point, and move `session` on to it. The run ends with its `last` restore point.

    Raises `ClusterError` if a topic was created anew while its records were read.
    """
    # Asked last: a topic that is created anew after this has other records than the ones that were read.
    check_same_topics(source.cluster, content.plan)
    run = session.run
    number = run.next_point
    manifest = _put_documents_and_manifest(source, session, content)
    segments = in_table(content.read.segments)

    def operation(state: State) -> State:
        state = operations.add_point(state, manifest, segments)
        if label:
            state = operations.label_point(state, label, number)
        if last:
            state = operations.end_run(state, run.run)
        return state

    summary = f"restore point {number}: {plural(manifest.totals.records, 'record')} added"
    before = session.head
    if before is not None and before.cluster_id and manifest.cluster_id not in ("", before.cluster_id):
        summary += f"; of cluster {manifest.cluster_id}, before of {before.cluster_id}"
    run.commit(operation, "backup", summary)
    session.head = manifest
    session.groups = content.snapshot.groups
    session.settings = content.snapshot.settings
    session.schemas = content.taken.schemas
    session.deletions = content.checked.deletions
    run.interrupted = False
    return manifest


def _put_documents_and_manifest(source: SourceCluster, session: BackupSession, content: PointContent) -> Manifest:
    """Write the documents of the restore point, and then the manifest that refers to them."""
    run = session.run
    snapshot = content.snapshot
    topics = content.checked.topics
    committed_at = now()
    # All documents before the manifest, which has their sizes and checksums.
    captures = _older_captures(session.head, topics, run.next_point)
    captures.append(put_documents(session, snapshot))
    schemas = put_schemas(session, content.taken.schemas)
    deletions = put_deletions(session, content.checked.deletions)
    manifest = Manifest(
        archive_id=run.archive_id,
        number=run.next_point,
        run=run.run,
        previous=run.previous,
        tool=TOOL,
        started_at=snapshot.started_at,
        committed_at=committed_at,
        cluster_id=source.id,
        isolation_level=source.isolation_level,
        losses=content.losses,
        warnings=content.warnings,
        totals=content.totals,
        captures=tuple(captures),
        schemas=schemas,
        transactions=snapshot.ends.transactions,
        deletions=deletions,
        topics=topics,
    )
    return put_manifest(run, manifest)


def _older_captures(head: Manifest | None, topics: Iterable[TopicState], number: int) -> list[Capture]:
    """Return the earlier captures that restore point `number` still needs: it carries over topics of theirs."""
    if head is None:
        return []
    needed = {topic.captured for topic in topics if topic.captured != number}
    return [capture for capture in head.captures if capture.number in needed]


def put_documents(session: BackupSession, snapshot: ClusterSnapshot) -> Capture:
    """Write the groups and the settings. A document that equals the newest restore point's is not written again."""
    run = session.run
    number = run.next_point
    # A follower may commit every few seconds: groups and settings that did not change would be most of what it writes.
    old = _own_capture(session.head)
    if old is not None and session.groups is not None and planning.same_groups(session.groups, snapshot.groups):
        groups = old.groups
    else:
        groups = run.put_document(number, layout.GROUPS, snapshot.groups)
    if old is not None and session.settings is not None and planning.same_settings(session.settings, snapshot.settings):
        metadata = old.metadata
    else:
        metadata = run.put_document(number, layout.METADATA, snapshot.settings)
    return Capture(number=number, started_at=snapshot.started_at, groups=groups, metadata=metadata)


def _own_capture(head: Manifest | None) -> Capture | None:
    """Return the capture that a restore point made itself; its other captures are of earlier restore points."""
    if head is None:
        return None
    for candidate in head.captures:
        if candidate.number == head.number:
            return candidate
    return None


def put_schemas(session: BackupSession, schemas: Schemas | None) -> DocumentRef | None:
    """Write the schemas of a registry, if they differ from the schemas of the newest restore point. Without `schemas`,
    the restore point refers to the same document as the newest one."""
    if session.head is not None and (schemas is None or schemas is session.schemas):
        return session.head.schemas
    if schemas is None:
        return None
    return session.run.put_document(session.run.next_point, layout.SCHEMAS, schemas)


def put_deletions(session: BackupSession, deletions: Deletions | None) -> DocumentRef | None:
    """Write the records that a restore leaves out, if they differ from what the newest restore point leaves out."""
    if deletions is None:
        return None
    if session.head is not None and deletions is session.deletions:
        return session.head.deletions
    return session.run.put_document(session.run.next_point, layout.DELETIONS, deletions)


def refresh(run: WritingRun, spark: Spark, phases: Phases) -> None:
    """Write the derived files of the restore point just taken. An error says that the restore point is committed."""
    try:
        with phases.step("refresh derived files"):
            run.refresh_derived(partial(write_by_tasks, run, spark))
    except KbackupError as error:
        newest = run.next_point - 1
        raise type(error)(
            f"restore point {newest} is committed, but not all derived files are written: {error.message}",
            f"the next backup writes them; {error.hint}",
        ) from error


def report_of(manifest: Manifest, content: PointContent, archive: str, phases: Phases) -> BackupReport:
    """Return the report of the restore point that `manifest` describes."""
    taken = content.taken
    checked = content.checked
    new_records = Counter[str]()
    for segment in content.read.segments:
        new_records[segment.topic] += segment.count
    damage = list(content.snapshot.damage)
    if taken.failed:
        damage.append("schema registry")
    if taken.unlisted:
        damage.append("schema ids")
    held_back = planning.held_back(content.plan)
    notes = [text for text in (taken.note, checked.note) if text]
    return BackupReport(
        restore_point=manifest.number,
        parent=manifest.previous,
        committed_at=manifest.committed_at,
        archive=archive,
        totals=manifest.totals,
        topics=manifest.topics,
        losses=manifest.losses,
        warnings=manifest.warnings,
        held_back=len(held_back),
        damage=tuple(damage),
        note=". ".join(notes),
        unseen_deletions=checked.unseen,
        deleted_records=checked.records,
        offline=capture.offline_partitions(content.snapshot.topics),
        transactions=manifest.transactions,
        seconds=phases.seconds,
        new_records=dict(new_records),
    )


# Check that an archive belongs to the cluster and the topics that a backup is about to add.


def check_cluster(head: Manifest | None, cluster_id: str, archive: str, adopt: bool) -> None:
    """Raise `MismatchError` if the newest restore point is of another cluster than `cluster_id`. An unknown id ('')
    fits every cluster: an adopted folder and some sources have none."""
    if head is None or adopt or not head.cluster_id or not cluster_id or head.cluster_id == cluster_id:
        return
    raise MismatchError(
        f"archive {archive} is of cluster {head.cluster_id}, the source is cluster {cluster_id}",
        "check bootstrap.servers, or back up this cluster to an address of its own; "
        "where it is the same cluster, rebuilt, run one backup with --adopt-cluster",
    )


def check_identity(head: Manifest | None, selected: Sequence[LiveTopic], adopt: bool) -> None:
    """Raise `RefusedError` if the archive has a topic without an id and the cluster has a topic of that name with one.

    The archive lacks ids after an adoption, or after a repair without the cluster. The topic of the cluster may be
    another one: its records would then follow those of the archived topic.
    """
    if head is None or adopt:
        return
    without_id = {topic.name for topic in head.topics if not topic.id}
    unidentified = [topic.name for topic in selected if topic.id and topic.name in without_id]
    if unidentified:
        raise RefusedError(
            f"the archive has no id of topic {join_names(unidentified, 5)}: the source's topic of that name may be "
            "another one than the topic that it has records of",
            "compare them with 'kbackup verify --against source'; where they are the same, run one backup with "
            "--adopt-topics",
        )


def check_same_topics(cluster: Cluster, plan: Plan) -> None:
    """Raise `ClusterError` if a topic was created anew during the read: its records may be of either topic."""
    now_there = cluster.topics(t.name for t in plan.topics)
    for topic in plan.topics:
        present = now_there.get(topic.name)
        if present is not None and present.id != topic.id:
            raise ClusterError(
                f"topic {topic.name} was deleted and created again while it was backed up",
                "run the backup once more: it archives the topic as a new incarnation; nothing is committed",
            )


# Count backups for Prometheus: what was added, the losses, and the lag behind the cluster.


_FROM_THE_START = (
    "kbackup_records_total",
    "kbackup_bytes_total",
    "kbackup_stored_bytes_total",
    "kbackup_segments_total",
    "kbackup_restore_points_total",
    "kbackup_retries_total",
    "kbackup_lost_offsets_total",
)


def backup_begins() -> None:
    """Set the counters to 0 at the start, so that the first loss is seen as an increase."""
    for name in _FROM_THE_START:
        counted.add(name, 0)
    for kind in LOSSES:
        counted.add("kbackup_losses_total", 0, kind)


def backed_up(report: BackupReport) -> None:
    """Count a restore point that was committed."""
    totals = report.totals
    counted.add("kbackup_restore_points_total")
    counted.add("kbackup_records_total", totals.records)
    counted.add("kbackup_bytes_total", totals.bytes)
    counted.add("kbackup_stored_bytes_total", totals.stored_bytes)
    counted.add("kbackup_segments_total", totals.segments)
    counted.put("kbackup_restore_point", report.restore_point)
    committed = datetime.fromisoformat(report.committed_at).timestamp()
    counted.put("kbackup_restore_point_timestamp_seconds", committed)
    counted.put("kbackup_topics", totals.topics)
    counted.put("kbackup_partitions", totals.partitions)
    counted.put("kbackup_groups", totals.groups)
    counted.put("kbackup_held_back_partitions", report.held_back)
    counted.put("kbackup_unseen_deletions_offsets", report.unseen_deletions)
    for loss in report.losses:
        counted.add("kbackup_losses_total", 1, loss.kind)
        if loss.start is not None and loss.end is not None:
            counted.add("kbackup_lost_offsets_total", loss.end - loss.start)
    lag(lag_of(report.topics))


def lag_of(topics: Iterable[TopicState]) -> dict[str, list[int]]:
    """Return the offsets that each partition's log had beyond the archive at the last capture, by topic. Topics that
    are no longer captured are left out."""
    lags: dict[str, list[int]] = {}
    for topic in topics:
        if topic.state == "present":
            lags[topic.name] = [max(0, p.log_end - p.end) for p in topic.partitions]
    return lags


def lag(by_topic: Mapping[str, Iterable[int]]) -> None:
    """Set the lag of the whole archive, and the lag of the partition that is farthest behind."""
    every: list[int] = []
    for offsets in by_topic.values():
        every += offsets
    counted.put("kbackup_lag_offsets", sum(every))
    counted.put("kbackup_lag_max_offsets", max(every, default=0))


def topic_lag(by_topic: Mapping[str, Iterable[int]]) -> None:
    """Set the lag of each topic; topics that are not in `by_topic` any more lose theirs."""
    counted.replace("kbackup_topic_lag_offsets", {name: sum(lags) for name, lags in by_topic.items()})
