"""The check job: walks the path that a backup takes, for real but with next to nothing, and says of each step
whether it works. It leaves nothing behind, in the archive or in the clusters."""

from __future__ import annotations

import platform
import secrets
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from kbackup.archive import layout
from kbackup.archive.lease.hold import describe, holder
from kbackup.archive.query.selection import Selection
from kbackup.archive.reader import Archive, open_archive
from kbackup.config.models import Backup, Config
from kbackup.errors import LockedError, NoArchiveError, StoreError
from kbackup.jobs.backup.identity import check_cluster
from kbackup.jobs.capture import cluster as capture
from kbackup.jobs.capture.live import LiveTopic
from kbackup.jobs.capture.settings import capture_settings
from kbackup.jobs.check.steps import Step, Steps
from kbackup.jobs.metadata.read import sources_beside
from kbackup.kafka.admin.cluster import Cluster, Topic
from kbackup.kafka.consume.read import RangeReader
from kbackup.kafka.produce.produce import BlockProducer
from kbackup.metadata.sources import Sources
from kbackup.spark.progress import ProgressSender
from kbackup.spark.tasks import Spark, run_tasks
from kbackup.store.base import Store, encryption_of
from kbackup.store.probe import check_conditional_writes
from kbackup.types import OffsetRange, TopicPartition

_SKEW = 60.0  # s between two clocks; leases live about as long
_READ_TOPICS = 20  # topics of which a record is read: a consumer prefetches from each
_MENDABLE = ("denied", "failed")
_SCRATCH_BYTES = 256 << 10
_WRITES = (
    "archive: conditional writes",
    "archive: upload, read, list",
    "archive: clock",
    "archive: delete",
    "archive: lease",
)
_SOURCE = (
    "source: topics",
    "source: offsets",
    "source: configs",
    "source: read",
    "source: groups",
    "source: settings",
)
_TARGET = ("target: create topics", "target: transactions")


@dataclass(frozen=True)
class CheckReport:
    steps: tuple[Step, ...]
    exit_code: int


def check(
    config: Config,
    store: Callable[[], Store],
    show: Callable[[Step], None],
    target: bool = False,
    spark: Spark | None = None,
) -> CheckReport:
    """`store` gives the archive's store or says why it can't. `target` also checks what a restore needs, `spark`
    that a task runs."""
    steps = Steps(show)
    with steps.trying("configuration") as step:
        step.detail = "loaded"
    archive = _check_archive(steps, store)
    _check_source(steps, config, archive)
    _check_beside(steps, config.sources)
    if target:
        _check_target(steps, config.target, config.restore.transactions)
    if spark is not None:
        with steps.trying("spark: run a task") as step:
            step.detail = _run_a_task(spark)
    return CheckReport(tuple(steps.done), steps.exit_code)


def _check_archive(steps: Steps, named: Callable[[], Store]) -> Archive | None:
    """Returns the archive where there is one."""
    archive: Archive | None = None
    reached = False
    with steps.trying("archive: open") as step:
        store = named()
        try:
            opened = open_archive(store)
            reached = True
            head = opened.head
            newest = f"restore point {head.number} of {head.committed_at}" if head else "no restore point yet"
            step.detail = f"{store.url}: {newest}"
            archive = opened
        except NoArchiveError:
            reached = True
            step.detail = f"{store.url}: none there, the first backup makes it"
    if not reached:
        steps.skip(_WRITES, "the archive was not reached")
        return None
    if encryption_of(store) is not None:
        with steps.trying("archive: key") as step:
            from kbackup.jobs.keys.job import try_key

            step.detail = f"{try_key(store)} wraps and unwraps"
    scratch = f"{layout.SCRATCH}{uuid.uuid4().hex}"
    with steps.trying(_WRITES[0]) as step:
        check_conditional_writes(store, scratch)
        step.detail = "two writers can't overwrite each other"
    _check_writes(steps, store, f"{scratch}/object")
    with steps.trying(_WRITES[4]) as step:
        lease = holder(store)
        if lease is not None:
            raise LockedError(
                f"archive {store.url} is locked by {describe(lease)}", "a backup can begin when it ends"
            )
        step.detail = "free"
    return archive


def _check_writes(steps: Steps, store: Store, key: str) -> None:
    """Upload, read, list, look at the clock, delete: the object goes even where a step failed."""
    data = secrets.token_bytes(_SCRATCH_BYTES)
    began = time.time()
    with steps.trying(_WRITES[1]) as step:
        with store.upload(key) as upload:
            upload.write(data)
            upload.commit()
        half = len(data) // 2
        if store.get_range(key, half, 100) != data[half : half + 100]:
            raise StoreError(f"{store.url} gave other bytes than were written", "look for a cache in between")
        if key not in {entry.key for entry in store.list(key)}:
            raise StoreError(f"{store.url} does not list what was written", "look for a cache in between")
        step.detail = f"{len(data) >> 10} KiB"
    with steps.trying(_WRITES[2]) as step:
        step.detail = "agrees with this machine's"
        skew = store.stat(key).modified - (began + time.time()) / 2
        if abs(skew) > _SKEW:
            ahead = "ahead of" if skew > 0 else "behind"
            step.warn(
                f"the store's is {abs(skew):.0f} s {ahead} this machine's",
                "set both by NTP: leases go by the clocks of the machines that take them",
            )
    with steps.trying(_WRITES[3]) as step:
        for failed in store.delete([key]):
            raise failed.error
        if any(True for _ in store.list(key)):
            raise StoreError(f"{store.url} lists an object that was deleted", "look for a cache in between")
        step.detail = "nothing is left"


def _check_source(steps: Steps, config: Config, archive: Archive | None) -> None:
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
        step.detail = _read_some(source, options, live)
    _check_groups(steps, cluster, Selection.of(options.groups, options.exclude_groups), set(topics), archive)


def _check_groups(
    steps: Steps, cluster: Cluster, selection: Selection, topics: set[str], archive: Archive | None
) -> None:
    """And the cluster's settings, which groups are a part of."""
    names: list[str] = []
    with steps.trying(_SOURCE[4]) as step:
        before = archive.groups(archive.head) if archive is not None and archive.head is not None else None
        groups = capture.groups(cluster, selection, topics, before)
        names = [group.group for group in groups.groups]
        step.detail = f"{len(names)} with offsets of these topics"
        if groups.not_carried:
            said = "; ".join(f"{group}: {why}" for group, why in groups.not_carried.items())
            step.warn(f"{len(groups.not_carried)} can't be read: {said}", "give Describe on these groups")
    with steps.trying(_SOURCE[5]) as step:
        untold = [n for n in capture_settings(cluster, names).not_carried if n.reason in _MENDABLE]
        step.detail = "ACLs, SCRAM users, configs, quotas and tokens are told"
        if untold:
            said = "; ".join(f"{n.what}: {n.why}" for n in untold)
            step.warn(f"a restore point would not hold {said}", "give these rights, or do without")


def _check_beside(steps: Steps, sources: Sources) -> None:
    """The sources of metadata beside the brokers, as a backup reads them."""
    for asked in sources_beside(sources):
        with steps.trying(f"source: {asked.source}") as step:
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
        step.detail = f"cluster {cluster_id}, {brokers} broker(s)"
        check_id(cluster_id)
        return cluster
    return None


def _read_some(source: Mapping[str, str], options: Backup, live: list[LiveTopic]) -> str:
    """A record of one partition of each topic, of the first so many that hold any."""
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
        f"kbackup-backup-check-{uuid.uuid4().hex}",
        options.poll_timeout_seconds,
        len(ranges),
    )
    try:
        records = sum(len(block) for _, block in reader.read(ranges))
    finally:
        reader.close()
    return f"{records} record(s) from {len(ranges)} topic(s)"


def _check_target(steps: Steps, target: Mapping[str, str], transactions: bool) -> None:
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
        producer = BlockProducer(target, name, layout.progress_group(name))
        try:
            producer.start([TopicPartition(name, 0)])
        finally:
            producer.close()
        step.detail = "allowed"


def _run_a_task(spark: Spark) -> str:
    session = spark()
    (python,) = run_tasks(session, [0], _python_version)
    return f"Spark {session.version} on {session.sparkContext.master}, tasks run in Python {python}"


def _python_version(task: int, progress: ProgressSender) -> Iterator[str]:
    yield platform.python_version()
