"""kbackup for programs: the functions of `import kbackup`. Commands open archives and run jobs by them, too.

The configuration is the one of the command line: the path of a `kbackup.toml`, or the same tables as a mapping; `None`
is `./kbackup.toml` if there is one. Variables of the environment count as well. The functions print nothing, and set no
handlers of signals or logs. They raise the errors of `kbackup.errors`.

Functions that read are in `kbackup.library.reading`: its imports take time that a command uses better while Spark
starts.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from kbackup.archive import layout
from kbackup.archive.catalog.commit import SeenCatalog
from kbackup.archive.identity import check_archive_id
from kbackup.archive.restores.proof import with_proof
from kbackup.config import Config, ConfigFiles, Setting, SettingOrigin, load
from kbackup.config.times import moment_of
from kbackup.config.values import flatten
from kbackup.errors import KbackupError, UnreachableError, UsageError
from kbackup.library.settings import BackupSettings as BackupSettings
from kbackup.library.settings import RestoreSettings as RestoreSettings
from kbackup.metrics.registry import ProgressListener, Silent, counted
from kbackup.store import Store, open_store
from kbackup.util.system import cache_folder

if TYPE_CHECKING:
    from kbackup.jobs.backup.job import BackupReport
    from kbackup.jobs.backup.plan import Plan
    from kbackup.jobs.export.job import ExportReport
    from kbackup.jobs.restore.job import RestoreScreen
    from kbackup.jobs.restore.report import RestoreReport
    from kbackup.jobs.status.report import ArchiveStatus
    from kbackup.jobs.verify import VerifyReport
    from kbackup.spark.session import SparkSession, Starting

Configuration = str | os.PathLike[str] | Mapping[str, Any] | Config | None

log = logging.getLogger(__name__)


def configured(config: Configuration, section: str = "", settings: Mapping[str, object] | None = None) -> Config:
    """Return the configuration, with `settings` in the place of its values of the same keys in `section`.

    Raises `UsageError` for a key or a value that can't be used."""
    given = {}
    for name, value in (settings or {}).items():
        if value is not None:
            given[name] = _plain(value)
    if isinstance(config, Config):
        if given:
            raise UsageError(f"{', '.join(given)}: a finished configuration takes no settings", "set them in it")
        return config
    file: str | None = None
    values: list[tuple[str, object]] = []
    if isinstance(config, Mapping):
        # Tables stand for a whole file: ./kbackup.toml is not read beside them.
        file = os.devnull
        values += flatten(config)
    elif config is not None:
        file = os.fspath(config)
    values += flatten({section: given})
    origin = SettingOrigin("argument")
    arguments = [Setting(path, value, origin) for path, value in values]
    return load(arguments, ConfigFiles(file)).config


def _plain(value: object) -> object:
    """Return a value as a file would have it."""
    if isinstance(value, datetime):
        return str(moment_of("a time", value))
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    return value


# Stores of archives, as every command opens them.


def archive_store(
    config: Config,
    address: str | None = None,
    *,
    cached: bool = False,
    lost: bool = False,
    accept_rollback: bool = False,
) -> tuple[Store, Callable[[], None]]:
    """Open the store of the configured archive, or of the archive at `address`, and compare its newest catalog with the
    newest one that this machine has read.

    Also return a function that remembers the newest catalog: whoever commits to the archive calls it at the end.

    `cached` keeps the archive's metadata on this machine; `lost` accepts an archive without its archive.json. Raises
    `MismatchError` if the archive has another id than `archive_id`, or went back."""
    address = address or config.archive
    if not address:
        raise UsageError("no archive is named", "give its URL, set KBACKUP_ARCHIVE, or archive in the configuration")
    folder = cache_folder() if config.metadata_cache else None
    metadata = folder / "archives" if cached and folder is not None else None
    key = config.encryption.key or ""
    store = open_store(
        address, config.stores, key, metadata, config.archive_id, key_class=layout.key_class, rate=config.limit_rate
    )
    counted.archive(store.url)
    check_archive_id(store, config.archive_id, lost=lost)
    if folder is None:
        return store, _remember_nothing
    seen = SeenCatalog(store, folder / "seen")
    seen.check(accept_rollback)

    def remember() -> None:
        try:
            seen.remember()
        except KbackupError as error:
            log.info("can't read the number of the newest catalog: %s", error)

    return store, remember


def _remember_nothing() -> None:
    """Keep no number of a catalog: the configuration allows no files on this machine."""


@contextmanager
def opened(config: Config) -> Iterator[Store]:
    """Open the store of the configured archive for a job that may commit to it."""
    store, remember = archive_store(config)
    try:
        yield store
    finally:
        remember()


def state_store(config: Config, store: Store | None) -> Store:
    """Open the store for plans, offset maps and reports of restores and flows: unless set, the archive's `store`.

    The store knows which documents of restores this machine has written."""
    if config.restore.state:
        state = open_store(
            config.restore.state,
            config.stores,
            config.encryption.key or "",
            key_class=layout.key_class,
            rate=config.limit_rate,
        )
    elif store is not None:
        state = store
    else:
        state, _ = archive_store(config)
    folder = cache_folder() if config.metadata_cache else None
    proofs = folder / "restores" if folder is not None else None
    return with_proof(state, proofs)


# Jobs. Each opens what it needs, starts Spark if it has to, and returns the report that its command prints with --json;
# `to_dict` makes the same document of the report.


@contextmanager
def spark_of(config: Config, session: SparkSession | None) -> Iterator[Callable[[], SparkSession]]:
    """Provide a function that returns the session to use: the given session, the active session of this process, or a
    session that starts at the first call and stops at the end."""
    from kbackup.spark.session import active_session, start_spark

    found = session or active_session()
    if found is not None:
        # Jobs reach the JVM of their session, which a client of Spark Connect has not.
        if not hasattr(found, "_jvm"):
            raise UsageError("jobs don't run over Spark Connect", "give them a session that has a master, see spark.md")

        def running() -> SparkSession:
            return found

        yield running
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


def _ignore(_report: object) -> None:
    """Show nothing."""


def backup(
    config: Configuration = None,
    *,
    label: str = "",
    spark: SparkSession | None = None,
    listener: ProgressListener | None = None,
    **settings: Unpack[BackupSettings],
) -> BackupReport:
    """Back up a cluster into one new restore point, as `kbackup backup` does, and write the Delta tables of
    `export.delta` if it is set.

    `settings` are keys of the section `backup`, such as `topics=["orders"]`. On the command line, the exit code is 3 if
    the report has `losses`, `offline` or `damage`, or if its `transactions` are not whole although the configuration
    asks for whole ones."""
    from kbackup.spark.delta import delta_config

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
    show_plan: Callable[[Plan], None] = _ignore,
    show_report: Callable[[BackupReport], None] = _ignore,
    show_export: Callable[[ExportReport], None] = _ignore,
) -> BackupReport:
    """Back up, and write the restore point to the Delta tables of `export.delta` if it is set: in the session
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

    report = run(config.backup, config.source, store, spark, listener, show_plan, label, config.schema_registry)
    show_report(report)
    if not url:
        return report
    from kbackup.jobs.export.job import ExportJob, export_delta

    try:
        lease, registry = config.backup.lease_seconds, config.schema_registry
        job = ExportJob(
            options=config.export,
            url=url,
            store=store,
            stores=config.stores,
            spark=for_tables,
            listener=listener,
            lease_seconds=lease,
            registry=registry,
        )
        exported = export_delta(job)
    except KbackupError as error:
        raise type(error)(
            f"restore point {report.restore_point} is committed, but an export to the Delta tables at {url} failed: "
            f"{error.message}",
            f"run 'kbackup export --delta {url}' to resume; {error.hint}",
        ) from error
    show_export(exported)
    return report


def restore(
    config: Configuration = None,
    *,
    dry_run: bool = False,
    count: bool = False,
    spark: SparkSession | None = None,
    listener: ProgressListener | None = None,
    **settings: Unpack[RestoreSettings],
) -> RestoreReport:
    """Restore records, group offsets and settings into the target cluster, as `kbackup restore` does.

    With `dry_run`, check everything, write nothing, and return the plan, whose counts of a window are exact with
    `count`. `settings` are keys of the section `restore`: `topics=["orders"]`, `to_time=datetime.now(UTC)`,
    `map={"orders": "orders-restored"}`, `restore_id` to resume.

    `missing` in the report names what could not be done: exit code 3 on the command line. If the report has topics in
    `failed`, the restore is not done, and its id resumes it."""
    chosen = configured(config, "restore", settings)
    with spark_of(chosen, spark) as session, opened(chosen) as store:
        return run_restore(chosen, store, session, listener or Silent(), dry_run=dry_run, count=count)


def run_restore(
    config: Config,
    store: Store,
    spark: Callable[[], SparkSession],
    listener: ProgressListener,
    screen: RestoreScreen | None = None,
    *,
    dry_run: bool = False,
    count: bool = False,
) -> RestoreReport:
    """Restore by the configuration; with `count`, records in windows are counted first. The `screen` gets the plan with
    its warnings, and the changes of settings and schemas, before anything is written."""
    from kbackup.jobs.restore.job import RestoreResources
    from kbackup.jobs.restore.job import restore as run
    from kbackup.jobs.restore.request import RestoreRequest

    request = RestoreRequest.of(config.restore)
    state = state_store(config, store)
    resources = RestoreResources(config.target, store, state, spark, listener, config.target_schema_registry)
    return run(request, resources, screen, dry_run=dry_run, count=count)


def verify(
    config: Configuration = None,
    *,
    restore_point: str | int = "all",
    quick: bool = False,
    spark: SparkSession | None = None,
    listener: ProgressListener | None = None,
) -> VerifyReport:
    """Verify an archive's objects, as `kbackup verify` does, and record the result in the archive if it may write.

    `quick` reads no records. With `findings` in the report, the exit code is 13 on the command line."""
    chosen = configured(config)
    with spark_of(chosen, spark) as session, opened(chosen) as store:
        return run_verify(store, str(restore_point), quick, session, listener or Silent())


def run_verify(
    store: Store,
    restore_point: str,
    quick: bool,
    spark: Callable[[], SparkSession],
    listener: ProgressListener,
    unrecorded: Callable[[KbackupError], None] = _ignore,
) -> VerifyReport:
    """Verify and record the result; `unrecorded` gets the error of an archive in which nothing can be written."""
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


def status(config: Configuration = None, **settings: Unpack[BackupSettings]) -> ArchiveStatus:
    """Return whether an archive is well, as `kbackup status` does: a `level` and `findings`.

    `settings` are keys of the section `backup`, such as `max_age="26h"`."""
    from kbackup.archive.reader import open_archive
    from kbackup.jobs.status.job import archive_status

    chosen = configured(config, "backup", settings)
    store, _ = archive_store(chosen, cached=True)
    return archive_status(open_archive(store), chosen.backup, reports=state_store(chosen, store))


def to_dict(report: object) -> dict[str, Any]:
    """Return a report as the document that its command prints with --json, without `exit_code`."""
    made: dict[str, Any] = msgspec.to_builtins(report, str_keys=True)
    return made
