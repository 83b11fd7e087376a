"""The backup job: take the lease, capture the cluster, archive its records, commit one restore point.

Readers see nothing of it before the new catalog version, which is the commit. `follow` runs the same phases repeatedly.
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
from kbackup.archive.run import TOOL, WritingRun, begin_writing, check_written, open_or_create, put_manifest, totals_of
from kbackup.archive.secrets import as_archived
from kbackup.archive.segments.table import in_table
from kbackup.config.models import Backup
from kbackup.errors import ClusterError, KbackupError, MismatchError, RefusedError
from kbackup.formats.schema_ids import merge
from kbackup.jobs import capture
from kbackup.jobs.backup import plan as planning
from kbackup.jobs.backup import transactions
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
from kbackup.types import OffsetRange, TopicPartition
from kbackup.util.text import join_names
from kbackup.util.times import now

_SMALL_BYTES = 16 << 20  # of a follower's round that is done in this process: Spark would take longer to begin


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
    """What the cluster showed: where its logs end, names of all topics, and settings. `damage` names the corrupt
    sources of metadata. The ends were found by what was `begun` before, and by groups as `asked` for before."""

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
        check_label(label)  # the commit checks it as well; hours of reading would be lost then
    schemas = BackupSchemas(registry or RegistryOptions(), options.schemas)
    schemas.check()
    phases = Phases(listener)
    started_at = now()
    with phases.step("connect"):
        source = connect(properties, options)
        open_or_create(store)
    with HeldLease(store, "kbackup backup", options.lease_seconds, time.sleep if options.wait else None) as lease:
        with phases.step("connect"):
            session = begin(store, lease, source, options.adopt_cluster)
        snapshot = capture_cluster(source, session, selections_of(options), phases, started_at)
        plan = plan_records(source, session, snapshot, phases, options.adopt_topics)
        show_plan(plan)
        read = archive_records(source, session, plan, options, spark, phases)
        recheck = CompactionCheck(source, session, options, spark, phases, options.recheck_compacted)
        checked = check_deletions(recheck, snapshot, plan, read)
        with phases.step("capture schemas"):
            taken = schemas.take(checked.topics, session.schemas)
        with phases.step("commit"):
            manifest = commit(source, session, snapshot, plan, read, checked, taken, label)
        report = report_of(manifest, snapshot, plan, read, checked, taken, store.url, phases)
        backed_up(report)
        refresh(session.run, spark, phases)
    return report


def selections_of(options: Backup) -> Selections:
    """Return the topics and groups that `options` select. `UsageError` for an invalid regular expression."""
    return Selections(
        Selection.of(options.topics, options.exclude_topics), Selection.of(options.groups, options.exclude_groups)
    )


def begin(store: Store, lease: HeldLease, source: SourceCluster, adopt_cluster: bool) -> BackupSession:
    """Fence off every other run, and read the newest restore point."""
    run = begin_point(store, lease, source.id, adopt_cluster, source.isolation_level)
    head = run.archive.head
    if head is None:
        return BackupSession(run)
    archive = run.archive
    deletions = archive.deletions(head)
    return BackupSession(
        run, head, archive.groups(head), archive.metadata(head), archive.schemas(head), deletions=deletions
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
    """Capture topics, groups and settings of the cluster. `later`: selected groups, and topics that regular expressions
    select, may be created later. `offline`: partitions that need no time for an election."""
    cluster = source.cluster
    with phases.step("discover"):
        topics, existing = capture.discover(cluster, selections.topics, session.head, later, offline)

    def begin_with_groups(offsets_topic_exists: bool) -> tuple[Begun, Groups]:
        with phases.step("capture groups"):
            begun = transactions.begin(source, offsets_topic_exists=offsets_topic_exists)
            # before the end offsets, so that no group points past what is archived
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
        merged = with_sources(reading, source.brokers, source.sources)
    settings = as_archived(merged.metadata, session.archive.info)  # which is what the next run compares with
    return ClusterSnapshot(started_at, ends, existing, settings, begun, asked, merged.warnings, merged.damage)


def capture_logs(
    source: SourceCluster,
    session: BackupSession,
    topics: Mapping[str, Topic],
    begun: Begun,
    asked: Groups,
    selections: Selections,
    phases: Phases,
) -> WholeEnds:
    """Capture where the logs end, and the groups as of there: `asked` and the transactions since.
    `OffsetsTopicCreatedError` as in `CutBegun.close`."""
    with phases.step("resolve ranges"):
        live = capture.live_topics(source.cluster, topics, source.isolation_level)
    with phases.step("end transactions"):
        snapshot = partial(capture.is_captured, selections.groups)
        return transactions.whole_ends(source, begun, live, asked, snapshot, session.given_up)


def capture_ends(
    source: SourceCluster, session: BackupSession, selections: Selections, phases: Phases, snapshot: ClusterSnapshot
) -> ClusterSnapshot | None:
    """Capture the ends of the logs anew, with the groups and settings of an earlier capture. None if topics or
    partitions have come or gone since, `__consumer_offsets` included: then all is captured anew."""
    started_at, offline = now(), {TopicPartition(t.name, p) for t in snapshot.topics for p in t.offline}
    with phases.step("discover"):
        topics, existing = capture.discover(source.cluster, selections.topics, session.head, True, offline)
    before = {t.name: (t.id, {*t.partitions, *t.offline}) for t in snapshot.topics}
    if {t.name: (t.id, {*t.partitions}) for t in topics.values()} != before:
        return None
    try:
        ends = capture_logs(source, session, topics, snapshot.begun, snapshot.asked, selections, phases)
    except OffsetsTopicCreatedError:
        return None
    return replace(snapshot, started_at=started_at, ends=ends, existing=existing)


def plan_records(
    source: SourceCluster, session: BackupSession, snapshot: ClusterSnapshot, phases: Phases, adopt_topics: bool
) -> Plan:
    """Plan what to archive. Topics whose log was cut begin anew."""
    with phases.step("compare logs"):
        check_identity(session.head, snapshot.topics, adopt_topics)
        diverged, warnings = compare_logs(source, session, snapshot.topics)
    with phases.step("plan"):
        numbers = partial(operations.next_incarnation, session.archive.state)
        plan = planning.make_plan(session.head, snapshot.topics, snapshot.existing, numbers, diverged)
    return replace(plan, warnings=(*plan.warnings, *warnings, *snapshot.ends.warnings, *snapshot.warnings))


def archive_records(
    source: SourceCluster,
    session: BackupSession,
    plan: Plan,
    options: Backup,
    spark: Spark,
    phases: Phases,
    here: bool = False,
) -> Read:
    """Write the segments of the plan, by tasks on Spark, and look at each of them. `here`: a small round is done in
    this process."""
    run = session.run
    with phases.step("plan"):
        reserve(run, plan)
    with phases.step("run"):
        read = salvaged = recover(run, plan, spark, partial(truncated_partitions, source, session))
        taken = [OffsetRange(s.topic, s.partition, s.first, s.last + 1) for s in salvaged.segments]
        ranges = without(plan.ranges, taken)
        if tasks := make_tasks(ranges, options.split_records, options.pack_records):
            topics = {r.topic for r in ranges}  # of many, a round may read a few: all tasks get them
            work = BackupWork(
                source=source.properties,
                store=run.plain.for_writing(),
                isolation=source.isolation_level,
                group=session.group,
                segment_bytes=options.segment_bytes,
                compression=options.compression,
                poll_timeout=source.poll_timeout,
                incarnations={t.name: t.incarnation for t in plan.topics if t.name in topics},
                since=run.since,
                salvage=operations.may_salvage(run.archive.state),
                skips=plan.skips,
            )
            expected = [p for p in planning.waiting(plan).values() if p.end > p.start]
            size = sum(planning.new_bytes(p.end - p.start, p.before) for p in expected)
            here = here and size <= _SMALL_BYTES and sum(p.end - p.start for p in expected) <= options.pack_records
            far = 1 if here else fetch_size_factor(source.cluster.round_trip(ranges[0].topic))
            read = read_records(replace(work, far=far), tasks, None if here else spark, phases.listener)
            schemas = merge([*salvaged.schemas, *read.schemas])
            read = replace(read, segments=[*salvaged.segments, *read.segments], schemas=schemas)
        check_written(run.store, read.segments)
    return read


def reserve(run: WritingRun, plan: Plan) -> None:
    """Give new incarnations their numbers before the first segment is written in their folders."""
    lives = run.archive.state.lives
    new = {(t.name, t.incarnation): t.id for t in plan.topics if (t.name, t.incarnation) not in lives}
    if new:
        summary = f"backup found {len(new)} new topics"
        run.commit(lambda state: operations.reserve_incarnations(state, run.run, new), "begin", summary)


def has_news(session: BackupSession, snapshot: ClusterSnapshot, plan: Plan) -> bool:
    """Return whether a restore point of this capture would differ from the newest one."""
    if planning.says_more(plan, session.head) or session.groups is None or session.settings is None:
        return True
    # a group that moves on in what is held back is none the better for a restore point
    groups = planning.clamp(snapshot.groups, plan), planning.clamp(session.groups, plan)
    return not (planning.same_groups(*groups) and planning.same_settings(snapshot.settings, session.settings))


def next_topics(session: BackupSession, snapshot: ClusterSnapshot, plan: Plan, read: Read) -> tuple[TopicState, ...]:
    """Return the topics of the restore point that is about to be committed."""
    compacted = {t.name for t in snapshot.settings.topics if is_compacted(t.configs.get("cleanup.policy"))}
    before = session.settings.topics if session.settings is not None else ()
    # Compaction may have taken records of these before it was switched off: one that is missing is no sign of a cut.
    was_compacted = {t.name for t in before if is_compacted(t.configs.get("cleanup.policy"))} - compacted
    return planning.next_states(
        session.run.next_point, plan, read.segments, read.lasts, compacted, read.schemas, read.earlier, was_compacted
    )


def check_deletions(check: CompactionCheck, snapshot: ClusterSnapshot, plan: Plan, read: Read) -> CheckedDeletions:
    """Return the topics of the restore point that is about to be committed, with what is known of deletions that
    compaction removed before they could be read."""
    topics = next_topics(check.session, snapshot, plan, read)
    return check.run(snapshot.settings, snapshot.started_at, plan, read, topics)


def commit(
    source: SourceCluster,
    session: BackupSession,
    snapshot: ClusterSnapshot,
    plan: Plan,
    read: Read,
    checked: CheckedDeletions,
    taken: TakenSchemas,
    label: str = "",
    last: bool = True,
) -> Manifest:
    """Commit the restore point, and move `session` on to it. The run ends with its `last` restore point. `ClusterError`
    for a topic that was created anew meanwhile."""
    check_same_topics(source.cluster, plan)
    run, number, groups, settings = session.run, session.run.next_point, snapshot.groups, snapshot.settings
    not_carried = [f"group {group} is not in this restore point: {why}" for group, why in groups.not_carried.items()]
    older = {t.captured for t in checked.topics} - {number}
    earlier = session.head.captures if session.head is not None else ()
    warnings = (*plan.warnings, *not_carried, *settings_warnings(settings), *taken.warnings, *checked.warnings)
    needed = tuple(capture for capture in earlier if capture.number in older)
    totals = totals_of(
        read.segments,
        topics=len(plan.topics),
        partitions=sum(len(topic.partitions) for topic in plan.topics),
        groups=len(groups.groups),
    )
    manifest = Manifest(
        archive_id=run.archive_id,
        number=number,
        run=run.run,
        previous=run.previous,
        tool=TOOL,
        started_at=snapshot.started_at,
        committed_at=now(),
        cluster_id=source.id,
        isolation_level=source.isolation_level,
        losses=(*plan.losses, *planning.vanished_losses(plan, read.vanished)),
        warnings=warnings,
        totals=totals,
        captures=(*needed, put_documents(session, snapshot)),
        schemas=put_schemas(session, taken.schemas),
        transactions=snapshot.ends.transactions,
        deletions=put_deletions(session, checked.deletions),
        topics=tuple(checked.topics),
    )
    manifest = put_manifest(run, manifest)
    segments = in_table(read.segments)

    def operation(state: State) -> State:
        added = operations.add_point(state, manifest, segments)
        added = operations.label_point(added, label, number) if label else added
        return operations.end_run(added, run.run) if last else added

    run.commit(operation, "backup", f"restore point {number}: {manifest.totals.records} records added")
    session.head, session.groups, session.settings, session.schemas = manifest, groups, settings, taken.schemas
    session.deletions = checked.deletions
    run.interrupted = False
    return manifest


def put_documents(session: BackupSession, snapshot: ClusterSnapshot) -> Capture:
    """Write the documents of the capture. A document that equals the newest restore point's is not written again."""
    run, number, head = session.run, session.run.next_point, session.head
    old = next((c for c in head.captures if c.number == head.number), None) if head is not None else None
    if old is not None and session.groups is not None and planning.same_groups(session.groups, snapshot.groups):
        groups = old.groups
    else:
        groups = run.put_document(number, layout.GROUPS, snapshot.groups)
    if old is not None and session.settings is not None and planning.same_settings(session.settings, snapshot.settings):
        metadata = old.metadata
    else:
        metadata = run.put_document(number, layout.METADATA, snapshot.settings)
    return Capture(number=number, started_at=snapshot.started_at, groups=groups, metadata=metadata)


def put_schemas(session: BackupSession, schemas: Schemas | None) -> DocumentRef | None:
    """Write what a restore point has of a registry, if it differs from the newest restore point's."""
    if schemas is None or (session.head is not None and schemas is session.schemas):
        return session.head.schemas if session.head is not None else None
    return session.run.put_document(session.run.next_point, layout.SCHEMAS, schemas)


def put_deletions(session: BackupSession, deletions: Deletions | None) -> DocumentRef | None:
    """Write the records that a restore leaves out, if they differ from those of the newest restore point."""
    if deletions is None:
        return None
    if session.head is not None and deletions is session.deletions:
        return session.head.deletions
    return session.run.put_document(session.run.next_point, layout.DELETIONS, deletions)


def refresh(run: WritingRun, spark: Spark, phases: Phases) -> None:
    """Write what follows from the restore point just taken."""
    try:
        with phases.step("refresh derived files"):
            run.refresh_derived(partial(write_by_tasks, run, spark))
    except KbackupError as error:
        newest = run.next_point - 1
        raise type(error)(
            f"restore point {newest} is committed, but not all derived files are written: {error.message}",
            f"the next backup writes them; {error.hint}",
        ) from error


def report_of(
    manifest: Manifest,
    snapshot: ClusterSnapshot,
    plan: Plan,
    read: Read,
    checked: CheckedDeletions,
    taken: TakenSchemas,
    archive: str,
    phases: Phases,
) -> BackupReport:
    new_records = Counter[str]()
    for segment in read.segments:
        new_records[segment.topic] += segment.count
    damage = list(snapshot.damage)
    if taken.failed:
        damage.append("schema registry")
    if taken.unlisted:
        damage.append("schema ids")
    return BackupReport(
        restore_point=manifest.number,
        parent=manifest.previous,
        committed_at=manifest.committed_at,
        archive=archive,
        totals=manifest.totals,
        topics=manifest.topics,
        losses=manifest.losses,
        warnings=manifest.warnings,
        held_back=len(planning.held_back(plan)),
        damage=tuple(damage),
        note=". ".join(text for text in (taken.note, checked.note) if text),
        unseen_deletions=checked.unseen,
        deleted_records=checked.records,
        offline=capture.offline_partitions(snapshot.topics),
        transactions=manifest.transactions,
        seconds=phases.seconds,
        new_records=dict(new_records),
    )


# Check that an archive belongs to the cluster and the topics that a backup would go on with.


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
    """Raise `RefusedError` if the archive has a topic without an id (after an adoption, or a repair without it) and
    the cluster has the topic with an id: records of another topic of that name would follow."""
    if head is None or adopt:
        return
    unknown = {t.name for t in head.topics if not t.id}
    if unidentified := [t.name for t in selected if t.id and t.name in unknown]:
        raise RefusedError(
            f"nothing in the archive tells whether topic {join_names(unidentified, 5)} of the source is "
            "the one that it has records of",
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
    """Return, by topic, the records that each of its partitions lacked at its last capture; only topics that are
    captured."""
    return {t.name: [max(0, p.log_end - p.end) for p in t.partitions] for t in topics if t.state == "present"}


def lag(by_topic: Mapping[str, Iterable[int]]) -> None:
    every = [n for partitions in by_topic.values() for n in partitions]
    counted.put("kbackup_lag_offsets", sum(every))
    counted.put("kbackup_lag_max_offsets", max(every, default=0))


def topic_lag(by_topic: Mapping[str, Iterable[int]]) -> None:
    counted.replace("kbackup_topic_lag_offsets", {name: sum(lags) for name, lags in by_topic.items()})
