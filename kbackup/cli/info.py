"""`kbackup info`: show the content of an archive, or of one topic; `kbackup list`: list its restore points."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import click

from kbackup.archive.catalog.labels import is_label
from kbackup.archive.catalog.points import PointOverview, list_points
from kbackup.archive.catalog.tables import fetch
from kbackup.archive.lease import describe, holder
from kbackup.archive.query.java import is_java_archive
from kbackup.archive.query.overview import (
    ArchiveOverview,
    GroupPosition,
    PartitionOverview,
    SchemasOverview,
    Sums,
    TopicOverview,
)
from kbackup.archive.reader import Archive, open_archive
from kbackup.cli.common.command_context import CommandContext, pass_command_context
from kbackup.cli.common.completion import archived
from kbackup.cli.common.help import SectionedCommand
from kbackup.cli.common.options import archive_command, bucket_options, cache_option, count_option, state_options
from kbackup.cli.common.output import Reporter
from kbackup.cli.common.session import cached_archive_store
from kbackup.cli.common.tables import Cell, Column, human_age, in_commas, or_none, topic_name
from kbackup.cli.common.window import show_window
from kbackup.cli.unlock import lease_fields
from kbackup.config.times import moment_of
from kbackup.errors import NoArchiveError, UsageError, suggest_name
from kbackup.store import Store
from kbackup.util.text import human_size, plural
from kbackup.util.times import human_time


def _pinned(point: PointOverview) -> Cell:
    return "pinned" if point.pinned else None


def _new_cluster(point: PointOverview) -> Cell:
    return point.cluster_id if point.cluster_changed else None


_POINT_COLUMNS: Sequence[Column[PointOverview]] = (
    Column("number", "number"),
    Column("committed at", "committed_at"),
    Column("age", "committed_at", human_age, importance=4),
    Column("topics", "topics", importance=2),
    Column("partitions", "partitions", importance=1),
    Column("new records", "records"),
    Column("bytes", "bytes", human_size, importance=4),
    Column("stored", "stored_bytes", human_size, importance=3),
    Column("groups", "groups", importance=1, optional=True),
    Column("losses", "losses", optional=True, alarming=True),
    Column("warnings", "warnings", importance=4, optional=True),
    Column("damaged", "damaged", or_none, optional=True, alarming=True),
    Column("kept", _pinned, optional=True),
    Column("labels", "labels", in_commas, optional=True),
    Column("new cluster", _new_cluster, optional=True),
)
"""The columns of `kbackup list`."""


@archive_command(
    "list",
    click.option(
        "--label",
        "label",
        metavar="NAME",
        shell_complete=archived("labels"),
        help="List the restore point with this label alone.",
    ),
    cache_option,
    argument=True,
    example="kbackup list s3://my-backups/kafka",
)
def list_command(context: CommandContext, label: str | None) -> None:
    """List an archive's restore points, and who is writing to it."""
    reporter = context.reporter
    store = cached_archive_store(context)
    archive = _archive_with_points(store)
    state = archive.state
    if label is not None and label not in state.labels:
        hint = suggest_name(label, state.labels, "run 'kbackup list' to see all labels")
        raise UsageError(f"no restore point has label {label!r}", hint)
    # Who holds the lease is asked for while the tables are read: on a store far away each takes a round trip.
    with ThreadPoolExecutor() as pool:
        holding = pool.submit(holder, store)
        fetch(state.points, state.incarnations, state.losses, state.past)
    points = list_points(archive.state)
    if label is not None:
        points = [point for point in points if label in point.labels]
    lease = holding.result()
    expired = state.expired
    show_points(points, reporter)
    for name, number in state.labels.items():
        if not is_label(name):
            reporter.warning(
                f"label {name!r} of restore point {number} selects nothing: it could also be a number or a word of "
                "commands; remove it with 'kbackup label --remove', and give another one"
            )
    if expired:
        reporter.note(f"{plural(expired, 'restore point')} expired or lost; see 'kbackup log'")
    if lease is not None:
        reporter.note(f"locked by {describe(lease)}")
    reporter.document(
        {
            "archive": store.url,
            "archive_id": archive.info.id,
            "restore_points": points,
            "let_go": expired,
            "held_by": lease_fields(lease),
        }
    )


def _archive_with_points(store: Store) -> Archive:
    """Open the archive at a store. Raises `NoArchiveError` for a folder of the Java tool."""
    try:
        return open_archive(store)
    except NoArchiveError:
        if is_java_archive(store):
            raise NoArchiveError(
                f"the folder of the Java tool at {store.url} has no restore points",
                "run 'kbackup info' to show its content, or 'kbackup restore' to restore it",
            ) from None
        raise


@click.command("info", cls=SectionedCommand, epilog="Example: kbackup info orders")
@click.argument("topic", required=False, shell_complete=archived("topics"))
@state_options
@count_option
@bucket_options
@pass_command_context
def command(context: CommandContext, topic: str | None, restore_point: str, to_time: str | None, count: bool) -> None:
    """Show what an archive holds and what it lost; with TOPIC, its partitions and consumer groups.

    With --to-time, records and bytes are upper bounds unless you --count. Folders of the Java tool kafka-backup work
    too.
    """
    from kbackup.library.reading import ArchiveReader

    moment = moment_of("--to-time", to_time)
    store = cached_archive_store(context)
    archived = ArchiveReader(store, restore_point, moment).overview(topic, count=count)
    bound = moment is not None and not count
    if archived.choice is not None:
        context.reporter.note(f"{archived.archive} as a restore would bring it back:")
        show_window(archived.choice, context.reporter)
    if topic is None:
        show_archive(archived, context.reporter, bound)
        context.reporter.document(archived)
        return
    shown = _topic_named(archived, topic)
    show_topic(shown, context.reporter, bound)
    document: dict[str, object] = {"archive": archived.archive, "restore_point": archived.restore_point, "topic": shown}
    if archived.choice is not None:
        document["choice"] = archived.choice
    context.reporter.document(document)


def _topic_named(archived: ArchiveOverview, name: str) -> TopicOverview:
    for topic in archived.topics:
        if topic.name == name:
            return topic
    names = [topic.name for topic in archived.topics]
    hint = suggest_name(name, names, "run 'kbackup info' to list them")
    where = f"restore point {archived.restore_point}" if archived.restore_point else archived.archive
    raise UsageError(f"there is no topic {name} in {where}", hint)


def show_points(points: Sequence[PointOverview], reporter: Reporter) -> None:
    reporter.table(_POINT_COLUMNS, points)


def show_archive(archived: ArchiveOverview, reporter: Reporter, bound: bool = False) -> None:
    fields = _head_fields(archived)
    fields += _sum_fields(archived.sums, bound)
    fields.append(("groups", ", ".join(archived.groups) or "none"))
    fields += _metadata_fields(archived)
    deleted = sum(topic.deleted_records for topic in archived.topics)
    if deleted:
        fields.append(_deleted_field(deleted))
    reporter.fields(fields)
    reporter.line()
    topic_columns: list[Column[TopicOverview]] = [
        Column("topic", topic_name),
        Column("state", "state", importance=4),
        Column("as of", "as_of", or_none, importance=2),
        Column("partitions", "partitions", len, importance=3),
    ]
    topic_columns += _sum_columns(bound)
    topic_columns.append(Column("losses", "losses", len, optional=True, alarming=True))
    reporter.table(topic_columns, archived.topics)
    reporter.losses(archived.losses)
    for unknown in archived.not_known:
        reporter.warning(f"not known: {unknown}")
    reporter.warning(*archived.warnings)


def _head_fields(archived: ArchiveOverview) -> list[tuple[str, Cell]]:
    """Return which archive is shown, and which of its restore points."""
    fields: list[tuple[str, Cell]] = [("archive", archived.archive)]
    if archived.restore_point is None:
        fields.append(("written by", "the Java tool kafka-backup"))
    else:
        fields.append(("id", archived.archive_id))
        fields += _point_fields(archived)
    if archived.let_go:
        fields.append(("expired or lost", plural(archived.let_go, "restore point")))
    if archived.erased:
        fields.append(("erased", plural(archived.erased, "record")))
    if archived.superseded:
        fields.append(("compacted away", plural(archived.superseded, "record")))
    return fields


def _point_fields(archived: ArchiveOverview) -> list[tuple[str, Cell]]:
    oldest, newest = archived.oldest, archived.newest
    if not archived.committed_at or oldest is None or newest is None:
        return []
    return [
        ("shown", f"restore point {archived.restore_point} of {_dated(archived.committed_at)}"),
        ("restore points", archived.restore_points),
        ("oldest", f"{oldest.number} of {_dated(oldest.committed_at)}"),
        ("newest", f"{newest.number} of {_dated(newest.committed_at)}"),
    ]


def _metadata_fields(archived: ArchiveOverview) -> list[tuple[str, Cell]]:
    """Return what the restore point holds besides records: settings, transactions, schemas."""
    from kbackup.metadata.entities import PARTS

    fields: list[tuple[str, Cell]] = []
    if archived.restore_point is not None:
        counts = []
        for part in PARTS:
            count = archived.settings.get(part.name)
            if count:
                counts.append(f"{part.label} {count:,}")
        fields.append(("settings", ", ".join(counts) or "none"))
        lacking = [each.what for each in archived.not_carried if each.reason != "not there"]
        if lacking:
            fields.append(("not captured", ", ".join(lacking)))
    transactions = archived.transactions
    if transactions is not None:
        how = "whole" if transactions.whole else f"in part: {transactions.why}"
        fields.append(("transactions", how))
    if archived.schemas is not None:
        fields.append(("schemas", _schemas_text(archived.schemas)))
    return fields


def _schemas_text(schemas: SchemasOverview) -> str:
    text = f"{plural(schemas.subjects, 'subject')}, {plural(schemas.versions, 'version')} of {schemas.captured_at}"
    if schemas.unknown:
        text += f"; {plural(len(schemas.unknown), 'id')} of records without a schema"
    if schemas.uncovered:
        text += f"; {plural(len(schemas.uncovered), 'use')} of schemas not mapped"
    return text


def _deleted_field(records: int) -> tuple[str, Cell]:
    return ("left out", f"{plural(records, 'record')} by restores: their keys were deleted at the source")


def _dated(moment: str) -> str:
    return f"{moment} ({human_age(moment)})"


def show_topic(topic: TopicOverview, reporter: Reporter, bound: bool = False) -> None:
    fields: list[tuple[str, Cell]] = [("topic", topic.name), ("state", topic.state)]
    if topic.as_of:
        fields.append(("as of restore point", topic.as_of))
        fields.append(("incarnation", topic.incarnation))
    if topic.configs is not None:
        configs = ", ".join(f"{name}={value}" for name, value in topic.configs.items())
        fields.append(("replication factor", topic.replication_factor))
        fields.append(("configs", configs or "none"))
    fields += _sum_fields(topic.sums, bound)
    if topic.deleted_records:
        fields.append(_deleted_field(topic.deleted_records))
    reporter.fields(fields)
    reporter.line()
    partition_columns: list[Column[PartitionOverview]] = [
        Column("partition", "partition"),
        Column("start", "start"),
        Column("end", "end"),
    ]
    partition_columns += _sum_columns(bound)
    reporter.table(partition_columns, topic.partitions)
    if topic.groups:
        reporter.line()
        reporter.table(_GROUP_COLUMNS, topic.groups)
    reporter.losses(topic.losses)


_GROUP_COLUMNS: Sequence[Column[GroupPosition]] = (
    Column("group", "group"),
    Column("partition", "partition"),
    Column("offset", "offset", importance=4),
    Column("lag", "lag"),
)
"""The columns of the groups of a topic."""


class _Summed(Protocol):
    """A topic or a partition, whose segments are summed up."""

    @property
    def sums(self) -> Sums: ...


def _sum_columns(bound: bool) -> list[Column[_Summed]]:
    """Return the columns of the sums of topics and partitions. `bound` says that records and bytes are upper bounds."""
    most = ", at most" if bound else ""
    return [
        Column(f"records{most}", "sums.records"),
        Column(f"bytes{most}", "sums.bytes", human_size),
        Column("stored", "sums.stored_bytes", human_size, importance=2),
        Column("segments", "sums.segments", importance=1),
        Column("gaps", "sums.gaps", importance=4, optional=True),
        Column("oldest record", "sums.min_timestamp", human_time, importance=1),
        Column("newest record", "sums.max_timestamp", human_time, importance=3),
    ]


def _sum_fields(sums: Sums, bound: bool) -> list[tuple[str, Cell]]:
    """Return the sums of an archive or a topic as fields. `bound` says that records and bytes are upper bounds."""
    most = "at most " if bound else ""
    stored = f"{human_size(sums.stored_bytes)} stored in {sums.segments:,} segments"
    # A folder of the Java tool has no times of its segments.
    times = "not known without reading the records"
    if sums.min_timestamp is not None:
        times = f"{human_time(sums.min_timestamp)} to {human_time(sums.max_timestamp)}"
    fields: list[tuple[str, Cell]] = [
        ("records", f"{most}{sums.records:,}"),
        ("bytes", f"{most}{human_size(sums.bytes)}, {stored}"),
        ("timestamps", times),
    ]
    if sums.expired_records:
        fields.append(("expired records", f"{sums.expired_records:,}, before the first ones"))
    return fields
