"""Check before a run: each step is tried and reported, and a failed one does not end the check."""

from __future__ import annotations

import platform
import secrets
import socket
import ssl
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from kbackup import __version__
from kbackup.archive import layout
from kbackup.archive.lease import describe, holder
from kbackup.archive.query.selection import Selection, is_internal
from kbackup.archive.reader import Archive, open_archive
from kbackup.config.models import Backup, Config
from kbackup.errors import EXIT_OK, KbackupError, LockedError, NoArchiveError, StoreError, UnreachableError
from kbackup.jobs import capture
from kbackup.jobs.backup.job import check_cluster
from kbackup.jobs.capture import LiveTopic, capture_settings, offline_partitions
from kbackup.jobs.schemas.plan import open_registry
from kbackup.kafka.client import Properties, librdkafka_version
from kbackup.kafka.consume import RangeReader
from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.control.topics import Topic, TopicToCreate
from kbackup.kafka.control.unavailable import Unavailable
from kbackup.kafka.produce import BlockProducer
from kbackup.kafka.record_clients import open_message_sink
from kbackup.kafka.transactions import begin_cut
from kbackup.metadata.entities import Reading, source_name
from kbackup.schemas.base import RegistryOptions
from kbackup.spark.tasks import ProgressSender, Spark, run_tasks
from kbackup.spark.workers import check_protection, is_local
from kbackup.store import open_store
from kbackup.store.base import Store, check_conditional_writes, encryption_of
from kbackup.systems import metadata_sources
from kbackup.types import OffsetRange, TopicPartition
from kbackup.util.text import join_names, plural, words_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Status = Literal["ok", "warning", "failed", "skipped"]


@dataclass(slots=True)
class CheckStep:
    """A step of a check, and how it ended. `exit_code` is the exit code of its error, 0 if the step succeeded."""

    name: str
    status: Status
    detail: str
    hint: str = ""
    exit_code: int = EXIT_OK

    def warn(self, detail: str, hint: str) -> None:
        self.status = "warning"
        self.detail = detail
        self.hint = hint


@dataclass
class Steps:
    """The steps of a check. `show` is called with each step as it ends."""

    show: Callable[[CheckStep], None]
    done: list[CheckStep] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """The exit code of the first failed step; 0 if none failed."""
        for step in self.done:
            if step.status == "failed":
                return step.exit_code
        return EXIT_OK

    @contextmanager
    def trying(self, name: str) -> Iterator[CheckStep]:
        """Do a step in a block. A `KbackupError` ends the block, and is the step's failure; the check goes on."""
        step = CheckStep(name, "ok", "")
        try:
            yield step
        except KbackupError as error:
            self.fail(name, error)
        else:
            self._end(step)

    def fail(self, name: str, error: KbackupError) -> None:
        """End a step that failed."""
        self._end(CheckStep(name, "failed", error.message, error.hint, error.exit_code))

    def skip(self, names: tuple[str, ...], why: str) -> None:
        for name in names:
            self._end(CheckStep(name, "skipped", why))

    def _end(self, step: CheckStep) -> None:
        self.done.append(step)
        self.show(step)


# Check that the archive can be read and written as a backup does.


_SKEW = 60.0  # s between two clocks; leases live about as long
_SCRATCH_BYTES = 256 << 10
_WRITES = ("conditional writes", "upload, read, list", "clock", "delete", "lease")
_CACHE = "remove the cache between kbackup and the store"


def check_archive(steps: Steps, named: Callable[[], Store]) -> Archive | None:
    """Check that the archive can be opened and written. Return the archive if there is one."""
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
        steps.skip(tuple(f"archive: {name}" for name in _WRITES), "the archive was not reached")
        return None
    if encryption_of(store) is not None:
        with steps.trying("archive: key") as step:
            from kbackup.jobs.keys import try_key

            step.detail = f"{try_key(store)} wraps and unwraps"
    scratch = f"{layout.SCRATCH}{uuid.uuid4().hex}"
    with steps.trying("archive: conditional writes") as step:
        check_conditional_writes(store, scratch, racing=True)
        step.detail = "two writers can't overwrite each other"
    try:
        _check_writes(steps, store, f"{scratch}/object")
    except BaseException:  # an interrupt between upload and delete
        store.delete([f"{scratch}/object"])
        raise
    with steps.trying("archive: lease") as step:
        lease = holder(store)
        if lease is not None:
            raise LockedError(
                f"archive {store.url} is locked by {describe(lease)}", "wait until it ends: then a backup can begin"
            )
        step.detail = "free"
    return archive


def _check_writes(steps: Steps, store: Store, key: str) -> None:
    """Upload, read, list and delete an object, and read the store's clock; delete it even where a step failed."""
    data = secrets.token_bytes(_SCRATCH_BYTES)
    began = time.time()
    with steps.trying("archive: upload, read, list") as step:
        with store.upload(key) as upload:
            upload.write(data)
            upload.commit()
        half = len(data) // 2
        if store.get_range(key, half, 100) != data[half : half + 100]:
            raise StoreError(f"{store.url} returned other bytes than were written", _CACHE)
        if key not in {entry.key for entry in store.list(key)}:
            raise StoreError(f"{store.url} does not list what was written", _CACHE)
        step.detail = f"{len(data) >> 10} KiB"
    with steps.trying("archive: clock") as step:
        step.detail = "agrees with this machine's"
        # The object was made at some time between: the middle is off by half of the requests' time at most.
        middle = (began + time.time()) / 2
        skew = store.stat(key).modified - middle
        if abs(skew) > _SKEW:
            ahead = "ahead of" if skew > 0 else "behind"
            step.warn(
                f"the store's is {abs(skew):.0f} s {ahead} this machine's",
                "set both by NTP: leases go by the clocks of the machines that take them",
            )
    with steps.trying("archive: delete") as step:
        for failed in store.delete([key]):
            raise failed.error
        if any(True for _ in store.list(key)):
            raise StoreError(f"{store.url} lists an object that was deleted", _CACHE)
        step.detail = "nothing is left"


# Check that the clusters answer what a backup and a restore ask.


_READ_TOPICS = 20  # topics of which a record is read: a consumer prefetches from each
_SHOWN_TOPICS = 10
_MENDABLE = ("denied", "failed")

_TOPICS = "source: topics"
_OFFSETS = "source: offsets"
_CONFIGS = "source: configs"
_READ = "source: read"
_GROUPS = "source: groups"
_SETTINGS = "source: settings"
_TRANSACTIONS = "source: transactions"
_OF_TOPICS = (_OFFSETS, _CONFIGS, _READ, _GROUPS, _SETTINGS, _TRANSACTIONS)
"""The steps that need the topics."""
_CREATE_TOPICS = "target: create topics"
_TARGET_TRANSACTIONS = "target: transactions"


def check_source(steps: Steps, config: Config, archive: Archive | None) -> None:
    """Check that the source answers all that a backup asks."""
    options = config.backup
    head = archive.head if archive is not None else None

    def belongs(cluster_id: str) -> None:
        check_cluster(head, cluster_id, config.archive or "", options.adopt_cluster)

    cluster = _reach(steps, config.source, "source", belongs)
    if cluster is None:
        steps.skip((_TOPICS, *_OF_TOPICS), "the source was not reached")
        return
    topics: dict[str, Topic] | None = None
    with steps.trying(_TOPICS) as step:
        selection = Selection.of(options.topics, options.exclude_topics)
        topics, existing = capture.discover(cluster, selection, head)
        step.detail = f"{len(topics)} of {len(existing)} selected"
        if not topics:
            step.warn(
                f"none of {len(existing)} selected: a backup would hold no record",
                "check backup.topics, and whether this user may describe the topics",
            )
    if topics is None:
        steps.skip(_OF_TOPICS, "the topics are not known")
        return
    live: list[LiveTopic] = []
    with steps.trying(_OFFSETS) as step:
        live = capture.live_topics(cluster, topics, options.isolation_level)
        step.detail = f"{sum(len(topic.partitions) for topic in live)} partitions"
        offline = offline_partitions(live)
        if offline:
            step.warn(f"{len(offline)} without a leader: {join_names(offline, 5)}", "start their brokers")
    with steps.trying(_CONFIGS) as step:
        cluster.topic_configs(topics)
        step.detail = "readable"
    with steps.trying(_READ) as step:
        step.detail = _read_samples(config.source, options, live)
    groups = Selection.of(options.groups, options.exclude_groups)
    _check_groups(steps, cluster, groups, set(topics), archive)
    if options.transactions == "partition":
        steps.skip((_TRANSACTIONS,), "backup.transactions is partition")
        return
    with steps.trying(_TRANSACTIONS) as step:
        step.detail = "a restore point has them whole"
        begun = begin_cut(cluster)
        if isinstance(begun, Unavailable):
            step.warn(
                f"a restore point may have them incomplete: {begun.why}",
                "give Read on these topics, or set backup.transactions to partition",
            )


def _check_groups(
    steps: Steps, cluster: Cluster, selection: Selection, topics: set[str], archive: Archive | None
) -> None:
    """Check that groups can be captured, and the cluster's settings with them."""
    names: list[str] = []
    with steps.trying(_GROUPS) as step:
        before = archive.groups(archive.head) if archive is not None and archive.head is not None else None
        groups = capture.groups(cluster, selection, topics, before)
        names = [group.group for group in groups.groups]
        step.detail = f"{len(names)} with offsets of these topics"
        if groups.not_carried:
            reasons = "; ".join(f"{group}: {why}" for group, why in groups.not_carried.items())
            step.warn(f"{len(groups.not_carried)} can't be read: {reasons}", "give Describe on these groups")
    with steps.trying(_SETTINGS) as step:
        step.detail = "ACLs, SCRAM users, configs, quotas and tokens are readable"
        reading = capture_settings(cluster, names)
        _warn_of_missing_settings(step, reading, "give these rights, or do without")


def _warn_of_missing_settings(step: CheckStep, reading: Reading, hint: str) -> None:
    """Warn of settings that a right or another try would give; what a cluster does not have is no reason to warn."""
    missing = [f"{entry.what}: {entry.why}" for entry in reading.not_carried if entry.reason in _MENDABLE]
    if missing:
        step.warn(f"a restore point would not hold {'; '.join(missing)}", hint)


def _reach(
    steps: Steps, properties: Mapping[str, str], role: str, check_id: Callable[[str], None] | None = None
) -> Cluster | None:
    """Connect to a cluster; return None if that failed, or if `check_id` refuses the cluster's id."""
    with steps.trying(f"{role}: reach") as step:
        cluster = Cluster(properties, role)
        cluster_id, brokers = cluster.connect()
        step.detail = f"cluster {cluster_id}, {plural(brokers, 'broker')}"
        if check_id is not None:
            check_id(cluster_id)
        return cluster
    return None


def _read_samples(source: Mapping[str, str], options: Backup, live: Sequence[LiveTopic]) -> str:
    """Read the first record of one partition of each topic, of the first topics that have records."""
    firsts = [_first_record(topic) for topic in live]
    ranges = [first for first in firsts if first is not None][:_READ_TOPICS]
    if not ranges:
        return "nothing to read: every partition is empty"
    group = layout.reader_group("backup", f"check-{uuid.uuid4().hex}")
    reader = RangeReader(source, options.isolation_level, group, options.poll_timeout_seconds, len(ranges))
    try:
        records = sum(len(block) for _, block in reader.read(ranges))
    finally:
        reader.close()
    return f"{plural(records, 'record')} from {plural(len(ranges), 'topic')}"


def _first_record(topic: LiveTopic) -> OffsetRange | None:
    """Return the offset of the first record of the topic's first partition with records."""
    for number, partition in sorted(topic.partitions.items()):
        if partition.start < partition.end:
            return OffsetRange(topic.name, number, partition.start, partition.start + 1)
    return None


def check_target(steps: Steps, target: Mapping[str, str], transactions: bool) -> None:
    """Check that a restore may create topics, and write in transactions if it is to."""
    cluster = _reach(steps, target, "target")
    if cluster is None:
        steps.skip((_CREATE_TOPICS, _TARGET_TRANSACTIONS), "the target was not reached")
        return
    name = f"kbackup-check-{uuid.uuid4().hex}"
    with steps.trying(_CREATE_TOPICS) as step:
        topic = TopicToCreate(name, 1, -1)
        for error in cluster.topic_admin.create([topic], dry_run=True).values():
            raise error
        step.detail = "allowed"
    if not transactions:
        steps.skip((_TARGET_TRANSACTIONS,), "restore.transactions is off")
        return
    with steps.trying(_TARGET_TRANSACTIONS) as step:
        producer = BlockProducer(target, name, layout.progress_group(name), sink=open_message_sink)
        try:
            producer.start([TopicPartition(name, 0)])
        finally:
            producer.close()
        step.detail = "allowed"


# Try parts of a configuration that is being written, as a check does; leave nothing behind.


Configured = Callable[[], Config]
"""Returns the configuration. Raises `KbackupError` for an invalid value."""


def try_cluster(steps: Steps, configured: Configured) -> None:
    """Connect to the cluster and list its topics, before any is selected."""
    config = _load(steps, configured)
    cluster = _reach(steps, config.source, "source") if config is not None else None
    if cluster is None:
        return
    with steps.trying("source: list topics") as step:
        names = sorted(name for name in cluster.topic_names() if not is_internal(name))
        shown = names[:_SHOWN_TOPICS]
        if len(names) > _SHOWN_TOPICS:
            shown.append("…")
        step.detail = f"{len(names)}: {', '.join(shown)}" if names else "none, or none that this user may see"


def speaks_tls(servers: str, seconds: float = 2.0) -> bool | None:
    """Return whether the first of `servers` (host:port, with commas between) that accepts a connection speaks TLS; None
    if none accepts one, or gives no answer in time. Nothing but a TLS hello is sent."""
    context = ssl.create_default_context()
    # No secret goes over this connection: whether the certificate is right is found out by the client later.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    for server in words_of(servers):
        host, _, port = server.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), seconds) as plain:
                return _answers_hello(context, plain, host)
        except (OSError, ValueError):
            continue
    return None


def _answers_hello(context: ssl.SSLContext, plain: socket.socket, host: str) -> bool:
    try:
        context.wrap_socket(plain, server_hostname=host).close()
    except (ssl.SSLEOFError, ConnectionError):
        return False
    except ssl.SSLError as error:  # else an alert of TLS, for instance because we show no certificate
        return error.reason != "WRONG_VERSION_NUMBER"
    return True


def try_archive(steps: Steps, configured: Configured) -> None:
    """Write, read, list and delete in the archive's store."""
    config = _load(steps, configured)
    if config is None:
        return
    address = config.archive or ""
    key = config.encryption.key or ""
    stores = config.stores
    check_archive(steps, lambda: open_store(address, stores, key, key_class=layout.key_class))


def try_selection(steps: Steps, configured: Configured) -> None:
    """Read what a backup of the selected topics and groups reads first."""
    config = _load(steps, configured)
    if config is not None:
        check_source(steps, config, None)


def try_registry(steps: Steps, configured: Configured) -> None:
    """Read the source's schema registry, if there is one."""
    config = _load(steps, configured)
    if config is not None:
        check_registry(steps, config.schema_registry, "schema_registry")


def _load(steps: Steps, configured: Configured) -> Config | None:
    """Return the configuration; after an invalid value None, and a failed step."""
    try:
        return configured()
    except KbackupError as error:
        steps.fail("configuration", error)
        return None


# The check job: it walks the path that a backup takes, for real but with next to nothing, and reports of each step
# whether it works. It leaves nothing behind, in the archive or in the clusters.


_VISIT_SECONDS = 0.5


def check_registry(steps: Steps, options: RegistryOptions, section: str) -> None:
    """Read a schema registry, if the configuration names one. Nothing is written."""
    if not options.url:
        return
    with steps.trying(section.replace("_", " ")) as step:
        registry = open_registry(options, section)
        active = registry.subjects()
        deleted = len(registry.subjects(deleted=True)) - len(active)
        settings = registry.settings("")
        level = (settings.config or {}).get("compatibilityLevel", "unknown")
        subjects = plural(len(active), "subject")
        if deleted > 0:
            subjects += f", {deleted} deleted"
        step.detail = f"{registry.url}: {subjects}; compatibility {level}"
        if settings.mode == "READONLY" and section.startswith("target"):
            step.warn(f"{step.detail}; mode READONLY", "set the mode READWRITE or IMPORT before a restore")


@dataclass(frozen=True)
class CheckReport:
    steps: tuple[CheckStep, ...]
    exit_code: int


def check(
    config: Config,
    store: Callable[[], Store],
    show: Callable[[CheckStep], None],
    target: bool = False,
    spark: Spark | None = None,
) -> CheckReport:
    """Try what a backup needs; with `target` also what a restore needs, with `spark` also that a task runs. `store`
    returns the archive's store, or raises the error with which it can't be opened."""
    steps = Steps(show)
    with steps.trying("configuration") as step:
        step.detail = "loaded"
    archive = check_archive(steps, store)
    check_source(steps, config, archive)
    for asked in metadata_sources(config.sources):  # the additional sources of metadata, as a backup reads them
        with steps.trying(f"source: {source_name(asked.source)}") as step:
            reading = asked.read()
            step.detail = f"{asked.name}, cluster {reading.cluster_id or 'unknown'}"
            if reading.outdated:
                step.detail += f"; not used: {reading.outdated}"
            _warn_of_missing_settings(step, reading, "log in as a user that may read them")
    if config.backup.schemas != "none":
        check_registry(steps, config.schema_registry, "schema_registry")
    if target:
        check_target(steps, config.target, config.restore.transactions)
        check_registry(steps, config.target_schema_registry, "target_schema_registry")
    if spark is not None:
        _check_spark(steps, config, spark)
    return CheckReport(tuple(steps.done), steps.exit_code)


class Worker(NamedTuple):
    """An executor: its host and its working directory, what its tasks run with, and what they failed to reach."""

    host: str
    folder: str
    python: str
    librdkafka: str
    failure: str


@dataclass(frozen=True)
class Visit:
    """The function of tasks that return their worker. They try to reach the first of `stores`, and `source`. All of
    `stores` go to the worker, which must have the directories among them."""

    stores: tuple[Store, ...]
    source: Properties
    seconds: float

    def __call__(self, task: int, progress: ProgressSender) -> Iterator[Worker]:
        time.sleep(self.seconds)  # so that every worker gets a task
        try:
            for store in self.stores[:1]:
                next(store.list(layout.SCRATCH), None)
            if self.source:
                Cluster(self.source, "source").connect()
            yield _this_worker()
        except KbackupError as error:
            yield _this_worker(error.message)


def _this_worker(failure: str = "") -> Worker:
    return Worker(socket.gethostname(), str(Path.cwd()), platform.python_version(), librdkafka_version(), failure)


def _check_spark(steps: Steps, config: Config, spark: Spark) -> None:
    """Run tasks on every executor, with the stores of all jobs. `run_tasks` refuses a worker with another kbackup or
    with directories of its own."""
    with steps.trying("spark: run a task") as step:
        session = spark()
        addresses = (config.archive, config.restore.state, config.export.delta, config.export.parquet)
        stores = tuple(open_store(address, config.stores) for address in addresses if address)
        encrypted = open_store(config.archive or "", config.stores, config.encryption.key or "")
        check_protection(session, config.source, config.target, encrypted)
        workers = _visit_workers(session, stores, config.source)
        failures = {f"worker {worker.host}: {worker.failure}" for worker in workers if worker.failure}
        if failures:
            reasons = "; ".join(sorted(failures))
            raise UnreachableError(reasons, "open the way there from every worker, see spark.md")
        pythons = ", ".join(sorted({worker.python for worker in workers}))
        step.detail = f"Spark {session.version} on {session.sparkContext.master}, tasks run in Python {pythons}"
        if not is_local(session):
            step.detail += f", on {plural(len(workers), 'executor')} with kbackup {__version__}"
        _warn_of_other_versions(step, workers)


def _warn_of_other_versions(step: CheckStep, workers: Sequence[Worker]) -> None:
    """Warn of workers that run with another Python or librdkafka than the driver."""
    here = _this_worker()
    versions: set[str] = set()
    for worker in workers:
        if (worker.python, worker.librdkafka) != (here.python, here.librdkafka):
            versions.add(f"worker {worker.host} has Python {worker.python}, librdkafka {worker.librdkafka}")
    if versions:
        step.warn(
            f"{'; '.join(sorted(versions))}; the driver has Python {here.python}, librdkafka {here.librdkafka}",
            "give workers the driver's environment: PYSPARK_PYTHON and spark.archives, see spark.md",
        )


def _visit_workers(session: SparkSession, stores: tuple[Store, ...], source: Properties) -> list[Worker]:
    """Return one worker for each executor. Executors come one after the other: until a round finds no more."""
    if is_local(session):
        return run_tasks(session, [0], Visit((), {}, 0.0))
    workers: set[Worker] = set()
    visit = Visit(stores, source, _VISIT_SECONDS)
    while True:
        slots = max(session.sparkContext.defaultParallelism, 2)
        # Twice as many tasks as slots: each executor gets one, even if Spark sends two to some of them.
        seen = set(run_tasks(session, range(2 * slots), visit))
        if seen <= workers or any(worker.failure for worker in seen):
            return sorted(seen | workers)
        workers |= seen
