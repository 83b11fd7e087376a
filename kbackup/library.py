"""kbackup for programs: what `import kbackup` gives, and what the command line itself opens archives and runs jobs by.

Configuration is that of the command line: a `kbackup.toml` by its path, or the same tables as a mapping; `None` is
`./kbackup.toml` where there is one. Variables of the environment count as well. Nothing is printed and no handler of a
signal or of logs is set. Errors are those of `kbackup.errors`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from kbackup.archive import layout
from kbackup.archive.catalog.commit import SeenCatalog
from kbackup.archive.identity import check_archive_id
from kbackup.archive.query import browse, overview
from kbackup.archive.query.content import group_offsets
from kbackup.archive.query.java import JAVA, java_content, java_topics, open_archive_or_folder, readable
from kbackup.archive.reader import Archive
from kbackup.archive.reader import open_archive as open_newest_archive
from kbackup.archive.segments.parallel import plan_reads, read_unit
from kbackup.archive.segments.rows import SCHEMA
from kbackup.archive.segments.window import Window
from kbackup.config import Config, ConfigFiles, Setting, SettingOrigin, load
from kbackup.config.values import flatten
from kbackup.config.windows import moment_of
from kbackup.errors import KbackupError, UnreachableError, UsageError, suggest_name
from kbackup.metrics.registry import ProgressListener, Silent, counted
from kbackup.store import Store, open_store
from kbackup.types import TopicPartition
from kbackup.util.system import cache_folder

if TYPE_CHECKING:
    import pyarrow as pa

    from kbackup.archive.restores.plan import RestorePlan
    from kbackup.jobs.backup.job import BackupReport
    from kbackup.jobs.backup.plan import Plan
    from kbackup.jobs.export.job import ExportReport
    from kbackup.jobs.restore.report import RestoreReport
    from kbackup.jobs.settings.plan import SettingsReport
    from kbackup.jobs.status import ArchiveStatus
    from kbackup.jobs.verify import VerifyReport
    from kbackup.spark.session import SparkSession, Starting

Configuration = str | os.PathLike[str] | Mapping[str, Any] | Config | None
Time = str | int | datetime
"""A time: RFC 3339 with its zone or '2h ago', milliseconds since 1970, or a datetime with a zone."""

log = logging.getLogger(__name__)


def configured(config: Configuration, section: str = "", settings: Mapping[str, Any] | None = None) -> Config:
    """Return the configuration with `settings`, keys of its `section`, in place of what it says. Raises `UsageError`
    for a key or a value that can't be used."""
    given = {name: _plain(value) for name, value in (settings or {}).items() if value is not None}
    if isinstance(config, Config):
        if given:
            raise UsageError(f"{', '.join(given)}: a finished configuration takes no settings", "set them in it")
        return config
    tables = config if isinstance(config, Mapping) else {}
    values = [*flatten(tables), *flatten({section: given})]
    file = os.devnull if isinstance(config, Mapping) else os.fspath(config) if config is not None else None
    origin = SettingOrigin("argument")
    return load((Setting(path, value, origin) for path, value in values), ConfigFiles(file)).config


def _plain(value: object) -> object:
    """Return a value as a file would have it."""
    if isinstance(value, datetime):
        return str(moment_of("a time", value))
    return list(value) if isinstance(value, tuple | set | frozenset) else value


# Stores of archives, as every command opens them.


def archive_store(
    config: Config,
    address: str | None = None,
    *,
    cached: bool = False,
    lost: bool = False,
    accept_rollback: bool = False,
) -> tuple[Store, Callable[[], None]]:
    """Open the store of the configured archive, or of the one at `address`, and compare its newest catalog with the
    newest that this machine has read. Also return what remembers the newest one, for those who commit to call at their
    end.

    `cached` keeps its metadata on this machine; `lost` accepts an archive without its archive.json. Raises
    `MismatchError` if the archive has another id than `archive_id`, or went back."""
    address = address or config.archive
    if not address:
        raise UsageError("no archive is named", "give its URL, set KBACKUP_ARCHIVE, or archive in the configuration")
    folder = cache_folder() if config.metadata_cache else None
    metadata = folder / "archives" if cached and folder is not None else None
    key = config.encryption.key or ""
    store = open_store(address, config.s3, key, metadata, config.archive_id, key_class=layout.key_class)
    counted.archive(store.url)
    check_archive_id(store, config.archive_id, lost=lost)
    if folder is None:
        return store, lambda: None
    seen = SeenCatalog(store, folder / "seen")
    seen.check(accept_rollback)

    def remember() -> None:
        try:
            seen.remember()
        except KbackupError as error:
            log.info("can't read the number of the newest catalog: %s", error)

    return store, remember


@contextmanager
def opened(config: Config) -> Iterator[Store]:
    """Open the store of the configured archive for a job that may commit to it."""
    store, remember = archive_store(config)
    try:
        yield store
    finally:
        remember()


def state_store(config: Config, store: Store | None) -> Store:
    """Open the store for plans, offset maps and reports of restores and flows: unless set, the archive's `store`."""
    if not config.restore.state:
        return store if store is not None else archive_store(config)[0]
    return open_store(config.restore.state, config.s3, config.encryption.key or "", key_class=layout.key_class)


# Reading an archive.


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """A restore point. Counts and bytes are what it added to those before; `losses` counts what was gone before it
    could be archived."""

    number: int
    committed_at: datetime
    labels: tuple[str, ...]
    pinned: bool
    records: int
    bytes: int
    losses: int
    _archive: Archive = field(repr=False, compare=False)

    @property
    def topics(self) -> tuple[str, ...]:
        """The names of the topics that a restore of it brings back."""
        return tuple(t.name for t in self._archive.manifest(self.number).topics if t.state != "deleted")


class ArchiveReader:
    """An archive, or a folder of the Java tool, as of one restore point or moment. It needs neither Spark nor a JVM.

    It stays as it was when it was opened: open it again to see later restore points. Compressed and encrypted archives
    read like others."""

    def __init__(self, store: Store, restore_point: str | int = "latest", at: int | None = None) -> None:
        self._store = store
        self._point, self._at = str(restore_point), at
        self._archive = open_archive_or_folder(store)
        if self._archive is not None:
            found = self._archive.find_point(self._point)
            self._point = self._point if at is not None else str(found.number)

    def __repr__(self) -> str:
        return f"<kbackup archive {self.url}>"

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def id(self) -> str:
        """The archive's id; 'java' for a folder of the Java tool."""
        return self._archive.info.id if self._archive is not None else JAVA

    @cached_property
    def restore_points(self) -> tuple[RestorePoint, ...]:
        """Every restore point, oldest first; none of a folder of the Java tool."""
        if self._archive is None:
            return ()
        return tuple(
            RestorePoint(
                *(p.number, datetime.fromisoformat(p.committed_at), p.labels, p.pinned, p.records, p.bytes, p.losses),
                self._archive,
            )
            for p in overview.list_points(self._archive)
        )

    def at(self, *, restore_point: str | int = "latest", to_time: Time | None = None) -> ArchiveReader:
        """Return the archive as of a restore point (number or label) or as a restore of a moment would bring it back;
        the moment is included."""
        return ArchiveReader(self._store, restore_point, moment_of("to_time", to_time))

    @cached_property
    def topics(self) -> tuple[str, ...]:
        """The names of the topics that a restore would bring back, in order."""
        if self._archive is None:
            return tuple(sorted(java_topics(self._store)))
        if self._at is None:
            states = self._archive.restore_point(self._point).topics
            return tuple(sorted(t.name for t in states if t.state != "deleted"))
        return tuple(sorted(t.name for t in overview.view_as_restored(self._archive, self._point, self._at, None)[1]))

    @cached_property
    def _groups(self) -> Mapping[str, Iterable[Any]]:
        if self._archive is None:
            return java_content(self._store, java_topics(self._store)).groups
        if self._at is None:
            return group_offsets(self._archive, self._archive.restore_point(self._point).topics)[0]
        view, topics = overview.view_as_restored(self._archive, self._point, self._at, None)
        return overview.content_as_restored(self._archive, view, topics, self._at).groups

    @property
    def group_names(self) -> tuple[str, ...]:
        """The names of the consumer groups."""
        return tuple(self._groups)

    def groups(self, name: str) -> dict[TopicPartition, int]:
        """Return the offsets of a consumer group: of each partition the next one to read. Raises `UsageError` for an
        unknown group."""
        if name not in self._groups:
            known = suggest_name(name, self._groups, "see group_names")
            raise UsageError(f"there is no group {name} in {self.url}", known)
        return {TopicPartition(o.topic, o.partition): o.offset for o in self._groups[name]}

    def records(
        self,
        topic: str,
        partition: int | None = None,
        *,
        from_time: Time | None = None,
        to_time: Time | None = None,
        from_offset: int | None = None,
        to_offset: int | None = None,
        columns: Sequence[str] = ("topic", "partition", "offset", "timestamp", "key", "value", "headers"),
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of a topic, or of one of its partitions, in batches of a few MiB, partition by partition
        in order of offsets.

        Times are included on both sides, `to_offset` is excluded. Columns are those of Spark's Kafka source; there are
        also `timestampType` and `segment`, the key of the object that a record is from. Every record is checked:
        `CorruptError` for damage, which may come after the last batch of a segment. `UsageError` for an unknown topic,
        partition or column."""
        if unknown := [name for name in columns if name not in SCHEMA.names]:
            raise UsageError(f"records have no column {unknown[0]}", f"use {', '.join(SCHEMA.names)}")
        upto = moment_of("to_time", to_time)
        bounds = [bound for bound in (upto, self._at) if bound is not None]
        window = Window(from_time=moment_of("from_time", from_time, up=True), to_time=min(bounds, default=None))
        window = window.at_offsets(from_offset, to_offset)
        if self._archive is None:
            found = browse.catalogue(self._store, topic=topic, at=self._at)
        else:
            found = browse.catalogue_in(self._archive, self._point, topic, self._at)
        held = [found.partition(topic, partition)] if partition is not None else found.topics[0].partitions
        store = readable(self._store, self.id)
        for unit in plan_reads((s for p in held for s in p.segments), lambda segment: window):
            yield from read_unit(store, unit, columns)

    def overview(self) -> overview.ArchiveOverview:
        """Return what `kbackup info` shows: sums of records, bytes and times by topic and partition, and losses."""
        return overview.overview(self._store, self._point, self._at)


def open_archive(
    url: str | None = None,
    *,
    config: Configuration = None,
    restore_point: str | int = "latest",
    to_time: Time | None = None,
) -> ArchiveReader:
    """Open an archive to read: the one at `url`, or the configured one, as of its newest restore point, another one
    (number or label), or a moment. The configuration says how to log in and the key of an encrypted archive:
    `config={"encryption": {"key": "file:/run/secrets/key"}}`.

    Raises `NoArchiveError` if there is none, and `UnreachableError` or `DeniedError` for its store."""
    settings = configured(config)
    store, _ = archive_store(settings, url, cached=True)
    return ArchiveReader(store, restore_point, moment_of("to_time", to_time))


# Jobs. Each opens what it needs, starts Spark where it has to, and returns the report that its command prints with
# --json; `to_dict` makes the same document of it.


def start_spark(config: Config) -> Starting:
    """Begin to start the configured Spark session."""
    from kbackup.spark.session import ALLOW_PLAIN_SECRETS, Starting

    conf = config.spark.conf
    if config.spark.allow_plain_secrets:
        conf = {**conf, ALLOW_PLAIN_SECRETS: "true"}
    return Starting(config.spark.master, conf, config.spark.task_attempts)


@contextmanager
def spark_of(config: Config, session: SparkSession | None) -> Iterator[Callable[[], SparkSession]]:
    """Provide the function that returns the session to use: the one given, the active one of this process, or one that
    starts at the first call and stops at the end."""
    from kbackup.spark.session import active_session

    session = session or active_session()
    if session is not None:
        yield lambda: session
        return
    started: list[Starting] = []

    def start() -> SparkSession:
        if not started:
            started.append(start_spark(config))
        return started[0]()

    try:
        yield start
    finally:
        for starting in started:
            starting.leave()


def backup(
    config: Configuration = None,
    *,
    label: str = "",
    spark: SparkSession | None = None,
    listener: ProgressListener | None = None,
    **settings: Any,
) -> BackupReport:
    """Back up a cluster into one new restore point, as `kbackup backup` does, and write the Delta tables of
    `export.delta` where it is set.

    `settings` are keys of the section `backup`, such as `topics=["orders"]`. A report with `losses` or `damage` is a
    backup that ended with exit code 3 on the command line."""
    chosen = configured(config, "backup", settings)
    tables = delta_config(chosen, chosen.export.delta)
    with spark_of(tables, spark) as for_tables, spark_of(chosen, spark) as without_tables, opened(chosen) as store:
        return run_backup(chosen, store, for_tables, without_tables, listener or Silent(), label)


def run_backup(
    config: Config,
    store: Store,
    for_tables: Callable[[], SparkSession],
    without_tables: Callable[[], SparkSession],
    listener: ProgressListener,
    label: str = "",
    show_plan: Callable[[Plan], None] = lambda _plan: None,
    show_report: Callable[[BackupReport], None] = lambda _report: None,
    show_export: Callable[[ExportReport], None] = lambda _export: None,
) -> BackupReport:
    """Back up, and write the restore point to the Delta tables of `export.delta` where it is set: in the session
    `for_tables`, with their jars. An error of the tables leaves the restore point in the archive."""
    from kbackup.jobs.backup.job import backup as run

    url = config.export.delta

    def spark() -> SparkSession:
        """Return a session; without the jars of tables if Spark can't start with them, so that the backup runs."""
        try:
            return for_tables()
        except UnreachableError:
            if not url:
                raise
            return without_tables()

    report = run(config.backup, config.source, store, spark, listener, show_plan, label)
    show_report(report)
    if not url:
        return report
    from kbackup.jobs.export.job import ExportJob, export_delta

    try:
        lease = config.backup.lease_seconds
        exported = export_delta(ExportJob(config.export, url, store, config.s3, for_tables, listener, lease))
    except KbackupError as error:
        raise type(error)(
            f"restore point {report.restore_point} is committed, but an export to the Delta tables at {url} failed: "
            f"{error.message}",
            f"run 'kbackup export --delta {url}' to resume; {error.hint}",
        ) from error
    show_export(exported)
    return report


def delta_config(config: Config, url: str | None) -> Config:
    """Return the configuration with Spark's settings for Delta tables at `url`; unchanged without tables."""
    if not url:
        return config
    from kbackup.spark.delta import session_conf

    spark = msgspec.structs.replace(config.spark, conf=session_conf(config.spark.conf, (url,)))
    return msgspec.structs.replace(config, spark=spark)


def restore(
    config: Configuration = None,
    *,
    dry_run: bool = False,
    spark: SparkSession | None = None,
    listener: ProgressListener | None = None,
    **settings: Any,
) -> RestoreReport:
    """Restore records, group offsets and settings into the target cluster, as `kbackup restore` does; with `dry_run`
    check everything, write nothing, and return the plan.

    `settings` are keys of the section `restore`: `topics=["orders"]`, `to_time=datetime.now(UTC)`,
    `map={"orders": "orders-restored"}`, `restore_id` to resume. `missing` in the report names what could not be done:
    exit code 3 on the command line."""
    chosen = configured(config, "restore", settings)
    with spark_of(chosen, spark) as session, opened(chosen) as store:
        return run_restore(chosen, store, session, listener or Silent(), dry_run)


def run_restore(
    config: Config,
    store: Store,
    spark: Callable[[], SparkSession],
    listener: ProgressListener,
    dry_run: bool,
    show_plan: Callable[[RestorePlan, list[str]], None] = lambda _plan, _warnings: None,
    show_settings: Callable[[SettingsReport], None] = lambda _settings: None,
    count: bool = False,
) -> RestoreReport:
    """Restore by the configuration; with `count`, records in windows are counted first. The callbacks get the plan with
    its warnings, and the changes of settings, before anything is written."""
    from kbackup.jobs.restore.job import restore as run

    return run(
        *(config.restore, config.target, store, state_store(config, store), spark, listener),
        dry_run=dry_run,
        show_plan=show_plan,
        show_settings=show_settings,
        count=count,
    )


def verify(
    config: Configuration = None,
    *,
    restore_point: str | int = "all",
    quick: bool = False,
    spark: SparkSession | None = None,
    listener: ProgressListener | None = None,
) -> VerifyReport:
    """Verify an archive's objects, as `kbackup verify` does, and record the result in the archive where it may write.
    `quick` reads no records. `findings` in the report are exit code 13 on the command line."""
    chosen = configured(config)
    with spark_of(chosen, spark) as session, opened(chosen) as store:
        return run_verify(store, str(restore_point), quick, session, listener or Silent())


def run_verify(
    store: Store,
    restore_point: str,
    quick: bool,
    spark: Callable[[], SparkSession],
    listener: ProgressListener,
    unrecorded: Callable[[KbackupError], None] = lambda _error: None,
) -> VerifyReport:
    """Verify and record the result; `unrecorded` gets the error of an archive where nothing can be written."""
    from kbackup.jobs.verify import record_verification
    from kbackup.jobs.verify import verify as run
    from kbackup.util.times import now

    started_at = now()
    report = run(store, restore_point, quick, spark, listener)
    try:
        record_verification(store, report, started_at, partial=restore_point != "all")
    except KbackupError as error:
        unrecorded(error)
    return report


def status(config: Configuration = None, **settings: Any) -> ArchiveStatus:
    """Return whether an archive is well, as `kbackup status` says: a `level` and `findings`. `settings` are keys of the
    section `backup`, such as `max_age="26h"`."""
    from kbackup.jobs.status import archive_status

    chosen = configured(config, "backup", settings)
    store, _ = archive_store(chosen, cached=True)
    return archive_status(open_newest_archive(store), chosen.backup, reports=state_store(chosen, store))


def to_dict(report: object) -> dict[str, Any]:
    """Return a report as the document that its command prints with --json, without `exit_code`."""
    made: dict[str, Any] = msgspec.to_builtins(report, str_keys=True)
    return made
