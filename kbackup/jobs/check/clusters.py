"""Check that the clusters answer what a backup and a restore ask."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping

from kbackup.archive import layout
from kbackup.archive.query.selection import Selection, is_internal
from kbackup.archive.reader import Archive
from kbackup.config.jobs import Backup
from kbackup.config.models import Config
from kbackup.jobs.backup.identity import check_cluster
from kbackup.jobs.capture import cluster as capture
from kbackup.jobs.capture.live import LiveTopic
from kbackup.jobs.capture.settings import capture_settings
from kbackup.jobs.check.steps import Steps
from kbackup.jobs.metadata.read import sources_beside
from kbackup.kafka.admin.cluster import Cluster, Topic
from kbackup.kafka.consume.read import RangeReader
from kbackup.kafka.kernel import message_outlet
from kbackup.kafka.produce.produce import BlockProducer
from kbackup.metadata.entities import source_name
from kbackup.metadata.sources import Sources
from kbackup.types import OffsetRange, TopicPartition
from kbackup.util.text import plural

_READ_TOPICS = 20  # topics of which a record is read: a consumer prefetches from each
_SHOWN_TOPICS = 10
_MENDABLE = ("denied", "failed")


_SOURCE = (
    "source: topics",
    "source: offsets",
    "source: configs",
    "source: read",
    "source: groups",
    "source: settings",
)


_TARGET = ("target: create topics", "target: transactions")


def check_topic_names(steps: Steps, source: Mapping[str, str]) -> None:
    """Connect to the source and list its topics, before any is selected."""
    cluster = _reach(steps, source, "source")
    if cluster is None:
        return
    with steps.trying("source: list topics") as step:
        names = sorted(name for name in cluster.topic_names() if not is_internal(name))
        more = ", …" if len(names) > _SHOWN_TOPICS else ""
        step.detail = f"{len(names)}: {', '.join(names[:_SHOWN_TOPICS])}{more}" if names else "none yet"


def check_source(steps: Steps, config: Config, archive: Archive | None) -> None:
    source, options = config.source, config.backup
    head = archive.head if archive is not None else None

    def belongs(cluster_id: str) -> None:
        check_cluster(head, cluster_id, config.archive or "", options.adopt_cluster)

    cluster = _reach(steps, source, "source", belongs)
    if cluster is None:
        steps.skip(_SOURCE, "the source was not reached")
        return
    topics: dict[str, Topic] | None = None
    with steps.trying(_SOURCE[0]) as step:
        selection = Selection.of(options.topics, options.exclude_topics)
        topics, existing = capture.discover(cluster, selection, head)
        step.detail = f"{len(topics)} of {len(existing)} selected"
        if not topics:
            step.warn(
                f"none of {len(existing)} selected: a backup would hold no record",
                "check backup.topics, and whether this user may describe the topics",
            )
    if topics is None:
        steps.skip(_SOURCE[1:], "the topics are not known")
        return
    live: list[LiveTopic] = []
    with steps.trying(_SOURCE[1]) as step:
        live = capture.live_topics(cluster, topics, options.isolation_level)
        step.detail = f"{sum(len(t.partitions) for t in live)} partitions"
    with steps.trying(_SOURCE[2]) as step:
        cluster.topic_configs(topics)
        step.detail = "readable"
    with steps.trying(_SOURCE[3]) as step:
        step.detail = _read_samples(source, options, live)
    _check_groups(steps, cluster, Selection.of(options.groups, options.exclude_groups), set(topics), archive)


def _check_groups(
    steps: Steps, cluster: Cluster, selection: Selection, topics: set[str], archive: Archive | None
) -> None:
    """Check that groups can be captured, and the cluster's settings with them."""
    names: list[str] = []
    with steps.trying(_SOURCE[4]) as step:
        before = archive.groups(archive.head) if archive is not None and archive.head is not None else None
        groups = capture.groups(cluster, selection, topics, before)
        names = [group.group for group in groups.groups]
        step.detail = f"{len(names)} with offsets of these topics"
        if groups.not_carried:
            reasons = "; ".join(f"{group}: {why}" for group, why in groups.not_carried.items())
            step.warn(f"{len(groups.not_carried)} can't be read: {reasons}", "give Describe on these groups")
    with steps.trying(_SOURCE[5]) as step:
        untold = [n for n in capture_settings(cluster, names).not_carried if n.reason in _MENDABLE]
        step.detail = "ACLs, SCRAM users, configs, quotas and tokens are readable"
        if untold:
            reasons = "; ".join(f"{n.what}: {n.why}" for n in untold)
            step.warn(f"a restore point would not hold {reasons}", "give these rights, or do without")


def check_beside(steps: Steps, sources: Sources) -> None:
    """Read the additional sources of metadata, as a backup does."""
    for asked in sources_beside(sources):
        with steps.trying(f"source: {source_name(asked.source)}") as step:
            reading = asked.read()
            step.detail = f"{asked.name}, cluster {reading.cluster_id or 'unknown'}"
            if reading.outdated:
                step.detail += f"; not used: {reading.outdated}"
            if untold := [n for n in reading.not_carried if n.reason in _MENDABLE]:
                said = "; ".join(f"{n.what}: {n.why}" for n in untold)
                step.warn(f"a restore point would not hold {said}", "log in as a user that may read them")


def _reach(
    steps: Steps,
    properties: Mapping[str, str],
    role: str,
    check_id: Callable[[str], None] = lambda cluster_id: None,
) -> Cluster | None:
    with steps.trying(f"{role}: reach") as step:
        cluster = Cluster(properties, role)
        cluster_id, brokers = cluster.connect()
        step.detail = f"cluster {cluster_id}, {plural(brokers, 'broker')}"
        check_id(cluster_id)
        return cluster
    return None


def _read_samples(source: Mapping[str, str], options: Backup, live: list[LiveTopic]) -> str:
    """Read a record of one partition of each topic, of the first topics that have records."""
    filled = [
        OffsetRange(t.name, number, p.start, p.start + 1)
        for t in live
        for number, p in sorted(t.partitions.items())
        if p.start < p.end
    ]
    ranges = list({r.topic: r for r in reversed(filled)}.values())[-_READ_TOPICS:]
    if not ranges:
        return "nothing to read: every partition is empty"
    reader = RangeReader(
        source,
        options.isolation_level,
        layout.reader_group("backup", f"check-{uuid.uuid4().hex}"),
        options.poll_timeout_seconds,
        len(ranges),
    )
    try:
        records = sum(len(block) for _, block in reader.read(ranges))
    finally:
        reader.close()
    return f"{plural(records, 'record')} from {plural(len(ranges), 'topic')}"


def check_target(steps: Steps, target: Mapping[str, str], transactions: bool) -> None:
    cluster = _reach(steps, target, "target")
    if cluster is None:
        steps.skip(_TARGET, "the target was not reached")
        return
    name = f"kbackup-check-{uuid.uuid4().hex}"
    with steps.trying(_TARGET[0]) as step:
        cluster.create_topic(name, 1, -1, {}, dry_run=True)
        step.detail = "allowed"
    if not transactions:
        steps.skip(_TARGET[1:], "restore.transactions is off")
        return
    with steps.trying(_TARGET[1]) as step:
        producer = BlockProducer(target, name, layout.progress_group(name), outlet=message_outlet)
        try:
            producer.start([TopicPartition(name, 0)])
        finally:
            producer.close()
        step.detail = "allowed"
