"""Records of Delta tables as an archive: the first half of a restore from them.

The archive is made beside the tables, in `_kbackup/restores/<restore id>/`, with one restore point. All that a restore
does (plan, windows, checks, transactions, going on after a crash) works on it, and the tables may change meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kbackup.archive import layout
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import Document, dump
from kbackup.archive.query.selection import Selection, check_selection
from kbackup.archive.run import WritingRun, begin_writing, open_or_create
from kbackup.config import parse_range
from kbackup.config.models import Backup, Restore
from kbackup.errors import KbackupError, NoArchiveError, NotFoundError, UsageError
from kbackup.jobs.export.destination import FOLDER, Destination
from kbackup.jobs.export.tables import DeltaTable
from kbackup.jobs.importing.commit import commit_import
from kbackup.jobs.importing.rows import TableRows
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.client import Properties
from kbackup.metrics.registry import Listener, Phases
from kbackup.spark.delta import delta_session, hadoop_options
from kbackup.spark.tasks import Spark
from kbackup.store.base import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_IMPORT = "import.json"


class Import(Document, frozen=True, kw_only=True):
    """import.json beside the archive that is made: which rows of the tables it has."""

    format: Literal["kbackup-import"] = "kbackup-import"
    topics: tuple[str, ...]
    exclude_topics: tuple[str, ...]
    backup: str


@dataclass(frozen=True)
class DeltaImport:
    """An import from the tables at `tables`, and options of its segments; `key` encrypts them as an archive."""

    tables: Destination
    options: Restore
    segments: Backup
    key: str
    restore_id: str

    @property
    def staging(self) -> Store:
        """Return the store of the archive that is made."""
        layout.restore_key(self.restore_id, layout.PLAN)  # refuses what is no name
        return self.tables.sub(f"{FOLDER}/restores/{self.restore_id}", self.key)

    @property
    def asked(self) -> Import:
        ranged = sorted({parse_range(text).topic for text in self.options.range})
        return Import(
            topics=tuple(ranged) or self.options.topics,
            exclude_topics=self.options.exclude_topics,
            backup=str(self.options.restore_point),
        )

    def _asked_before(self) -> bool:
        """Return whether the attempt before this one had the same selection."""
        try:
            return self.staging.get(_IMPORT) == dump(self.asked)
        except NotFoundError:
            return False

    def run(self, target: Properties, state: Store, spark: Spark, listener: Listener) -> None:
        """Make the archive, unless an attempt before this has, for the same selection, or the restore has ended. An
        archive that can't be finished is removed; none is begun while the target can't be reached."""
        phases = Phases(listener)
        staging = self.staging
        if self._has(state, layout.REPORT):
            return
        with phases.step("connect"):
            Cluster(target, "target").connect()
        with (
            phases.step("import"),
            HeldLease(staging, "kbackup restore", self.segments.lease_seconds) as lease,
        ):
            begun = self._has(state, layout.PLAN)  # then that is gone on with, whatever is asked now
            if open_or_create(staging).restore_points and (begun or self._asked_before()):
                return
            clear(staging)
            staging.put(_IMPORT, dump(self.asked))
            try:
                open_or_create(staging)
                self._fill(begin_writing(staging, lease, "import"), delta_session(spark()))
            except BaseException:
                clear(staging)
                raise

    @contextmanager
    def leaving(self, state: Store) -> Iterator[None]:
        """Around the restore, whose plan and report are in `state`: what was read goes when it has served, but stays
        for a restore that was begun and has not ended."""
        try:
            yield
        except BaseException:
            with suppress(KbackupError):  # what it failed with is to be told
                self._leave(state)
            raise
        self._leave(state)

    def _leave(self, state: Store) -> None:
        if not self._has(state, layout.PLAN):
            remove(self.staging, "")
        elif self._has(state, layout.REPORT):
            clear(self.staging)

    def _has(self, state: Store, name: str) -> bool:
        try:
            state.stat(layout.restore_key(self.restore_id, name))
        except NotFoundError:
            return False
        return True

    def _fill(self, writing: WritingRun, session: SparkSession) -> None:
        rows = self._rows(session)
        ranges = rows.ranges()
        if not ranges:
            raise UsageError(
                f"the Delta tables at {self.tables.url} have no record that matches",
                "see --topic, --exclude-topic and --restore-point",
            )
        segments = rows.write(writing.plain, self.segments, ranges)
        commit_import(writing, ranges, segments)

    def _rows(self, session: SparkSession) -> TableRows:
        url, selection = self.tables.url, Selection.of(self.asked.topics, self.asked.exclude_topics)
        urls, topics = [url], []
        if not self._is_table(""):
            names = [name for name in self.tables.store.list_dirs() if self._is_table(f"{name}/")]
            if not names:
                raise NoArchiveError(
                    f"there are no Delta tables at {url}", "give the URL that 'kbackup export --delta' had"
                )
            check_selection(selection, "topic", names, f"in the Delta tables at {url}", "see --topic")
            topics = selection.topics(names)
            urls = [f"{url}/{name}" for name in topics]
        options = hadoop_options(self.tables.s3, url)
        tables = [DeltaTable(session, each, options).rows() for each in urls]
        last = number_of(self.options.restore_point)
        rows = TableRows(session, tables, selection, last)
        if last is not None:
            check_reached(self.tables, topics, rows.newest(), last)
        return rows

    def _is_table(self, folder: str) -> bool:
        return next(self.tables.store.list(f"{folder}_delta_log/"), None) is not None


def number_of(backup: int | str) -> int | None:
    """The restore point by its number, None for 'latest'. `UsageError` for a label: tables have none."""
    if isinstance(backup, int):
        return backup
    if backup != "latest":
        raise UsageError(
            f"Delta tables don't know label {backup!r}", "give the restore point's number, or latest"
        )
    return None


def check_reached(tables: Destination, topics: Sequence[str], newest: Sequence[int], last: int) -> None:
    """Raise `UsageError` where a table may lack records that came up to restore point `last`. `newest` is what the rows
    of each are from (`TableRows.newest`); `topics` are those of the tables, none for one of all topics."""
    noted = tables.noted()  # a table to which nothing came for long does not tell by itself
    even: Sequence[str] = ()
    if noted is not None and noted.restore_point >= last:
        even = Selection.of(noted.topics, noted.exclude_topics).topics(topics) if topics else ("",)
    behind = [
        (topic, number) for topic, number in zip(topics or ("",), newest, strict=False) if number < last
    ]
    behind = [(topic, number) for topic, number in behind if topic not in even]
    if behind:
        (topic, number), others = behind[0], len(behind) - 1
        where = f"{tables.url}/{topic}" if topic else tables.url
        raise UsageError(
            f"Delta table {where} is known to be at restore point {number}, not at {last}"
            + (f", and {others} more are behind" if others else ""),
            f"run 'kbackup export --delta {tables.url}', or give an earlier --restore-point, or latest",
        )


def clear(staging: Store) -> None:
    """Delete the records; the restore's own files stay."""
    for prefix in (
        layout.CATALOG,
        layout.DERIVED,
        layout.POINTS,
        layout.TABLES,
        layout.TOPICS,
    ):  # the catalog first
        remove(staging, prefix)


def remove(staging: Store, prefix: str) -> None:
    for failed in staging.delete([entry.key for entry in staging.list(prefix)]):
        raise failed.error
