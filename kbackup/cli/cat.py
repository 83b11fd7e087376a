"""`kbackup cat`: print records of an archive; `kbackup ls`: list its topics, partitions or segments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter

import click

from kbackup.archive.query.browse import Catalogue, PartitionRecords, records, tail
from kbackup.archive.query.content import ArchivedPartition, ArchivedTopic
from kbackup.archive.segments.table import Segment, sum_of
from kbackup.archive.segments.window import Window
from kbackup.cli.common import records as shown
from kbackup.cli.common.command_context import CommandContext, pass_command_context
from kbackup.cli.common.completion import archived
from kbackup.cli.common.help import SectionedCommand
from kbackup.cli.common.options import bucket_options, state_options
from kbackup.cli.common.output import Reporter
from kbackup.cli.common.tables import MAIN, Cell, Column
from kbackup.config.times import moment_of
from kbackup.config.windows import TopicAddress
from kbackup.errors import UsageError
from kbackup.store import Store
from kbackup.types import TopicPartition
from kbackup.util.text import human_size, join_names, kbackup_command
from kbackup.util.times import human_time

_NAMED = 10  # topics of a hint


@click.command("cat", cls=SectionedCommand, epilog="Example: kbackup cat orders:3 --tail 10")
@click.argument("address_text", metavar="PLACE", required=False, shell_complete=archived("topics"))
@click.option(
    "--tail", "last", type=click.IntRange(min=1), metavar="N", help="Print the last N records of each partition."
)
@shown.misplaced_topic("cat")
@shown.record_options
@pass_command_context
@shown.with_record_request
def command(context: CommandContext, request: shown.RecordRequest, address_text: str | None, last: int | None) -> None:
    """Print records by partition, in order of their offsets.

    PLACE is topic, topic:partition, topic:partition:offset (one record) or topic:partition:from-to. To is excluded;
    either may be empty. A slash may stand for a colon.

    Keys and values are decoded by the schemas of the restore point, where it has some; a registry is not asked. What
    can't be decoded is printed as it is, with the reason. --raw prints all of them as they are.

    Text escapes control characters. JSON (--json) and hex are exact: bytes that are not UTF-8 become {"base64": "…"}.
    """
    show = request.show(context)
    if address_text is None:
        raise _no_place(request.open(context, None).catalogue)
    address = shown.parse_address(address_text)
    window = request.window(address)
    if last is not None and (window.timed or address.ranged or request.limit is not None):
        raise UsageError("--tail needs a topic or a partition alone", "leave out offsets, times and --limit")
    opened = request.open(context, address)
    store, catalogue, _ = opened
    decoding = request.decoding(context, opened)
    batches = _read_records(store, catalogue, address, window, last, request.limit)
    if not shown.print_records(batches, show, decoding) and address.one and not window.timed:
        (partition,) = shown.partitions_of(catalogue, address)
        tp = TopicPartition(address.topic, partition.partition)
        raise UsageError(
            f"there is no record at offset {address.start} of {tp} in {catalogue.location}",
            f"use '{address.topic}:{partition.partition}:{address.start}-' to begin at the next record; the archive "
            f"has offsets {partition.start} to {partition.end} (exclusive), without those of compaction and "
            "transactions",
        )
    shown.report_undecoded(decoding, context.reporter)


def _no_place(catalogue: Catalogue) -> UsageError:
    """Return the error of a command line that names no topic, with the topics of the archive."""
    names = [topic.name for topic in catalogue.topics]
    if not names:
        return UsageError(
            "missing argument 'PLACE'", f"{catalogue.location} has no topic; see 'kbackup list' for others"
        )
    example = kbackup_command("cat", names[0])
    return UsageError("missing argument 'PLACE'", f"name one of {join_names(names, _NAMED)}, as in: {example}")


def _read_records(
    store: Store, catalogue: Catalogue, address: TopicAddress, window: Window, last: int | None, limit: int | None
) -> Iterator[PartitionRecords]:
    remaining = limit
    for partition in shown.partitions_of(catalogue, address):
        if last is not None:
            yield from tail(store, address.topic, partition, last)
            continue
        for batch in records(store, address.topic, partition, window, remaining):
            yield batch
            if remaining is not None:
                remaining -= len(batch.block)
        if remaining == 0:
            return


# `kbackup ls`.


_Row = Mapping[str, Cell]
"""An entry of the JSON document; the tables show the same entries."""


def _plain(name: str) -> Column[_Row]:
    """Return the column of a field that is shown as it is in the document, under the same name."""
    return Column(name, itemgetter(name))


def _size(heading: str, name: str, importance: int = MAIN) -> Column[_Row]:
    """Return the column of a field in bytes."""

    def cell(row: _Row) -> Cell:
        value = row[name]
        return human_size(value) if isinstance(value, int) else value

    return Column(heading, cell, importance=importance)


def _time(heading: str, name: str, importance: int) -> Column[_Row]:
    """Return the column of a field in ms since the epoch; folders of the Java tool have no such times."""

    def cell(row: _Row) -> Cell:
        value = row[name]
        return human_time(value) if isinstance(value, int) else value

    return Column(heading, cell, importance=importance)


_SEGMENTS: Column[_Row] = Column("segments", itemgetter("segments"), importance=1)
_SUMS = (
    _plain("records"),
    _size("bytes", "bytes"),
    _size("stored", "stored_bytes", importance=1),
    _time("oldest record", "min_timestamp", importance=2),
    _time("newest record", "max_timestamp", importance=3),
)
_AS_OF: Column[_Row] = Column("as of", itemgetter("as_of"), importance=2)
_COLUMNS: dict[str, Sequence[Column[_Row]]] = {
    "topics": (_plain("topic"), _plain("state"), _AS_OF, _plain("partitions"), _SEGMENTS, *_SUMS),
    "partitions": (_plain("partition"), _plain("start"), _plain("end"), _SEGMENTS, *_SUMS),
    "segments": (_plain("first"), _plain("last"), *_SUMS, _size("largest", "largest", importance=1), _plain("file")),
}
"""The columns of each level of `kbackup ls`."""


@click.command("ls", cls=SectionedCommand, epilog="Example: kbackup ls orders:3")
@click.argument("address_text", metavar="[PLACE]", required=False, shell_complete=archived("topics"))
@shown.misplaced_topic("ls")
@state_options
@bucket_options
@pass_command_context
def ls_command(context: CommandContext, address_text: str | None, restore_point: str, to_time: str | None) -> None:
    """List an archive's topics; with PLACE, a topic's partitions (orders) or a partition's segments (orders:3).

    A slash may stand for the colon. A partition's range ends with the next offset to archive, a segment's with its last
    record. With --to-time, records are upper bounds.
    """
    address = shown.parse_partition(address_text)
    moment = moment_of("--to-time", to_time)
    topic = address.topic if address is not None else None
    catalogue = shown.open_archive_at(context, restore_point, moment, topic).catalogue
    level, rows = _rows(catalogue, address)
    show_rows(level, rows, context.reporter)
    document: dict[str, object] = {
        "archive": catalogue.archive,
        "restore_point": catalogue.restore_point,
        "committed_at": catalogue.committed_at,
        level: rows,
    }
    if catalogue.choice is not None:
        document["choice"] = catalogue.choice
    context.reporter.document(document)


def show_rows(level: str, rows: Sequence[_Row], reporter: Reporter) -> None:
    """Show what an address has: `level` is topics, partitions or segments."""
    reporter.table(_COLUMNS[level], rows)


def _rows(catalogue: Catalogue, address: TopicAddress | None) -> tuple[str, list[_Row]]:
    """Return the level of an address, a key of `_COLUMNS`, and a row of each of its members."""
    if address is None:
        return "topics", [_topic_row(topic) for topic in catalogue.topics]
    if address.partition is None:
        rows = []
        for topic in catalogue.topics:
            for partition in topic.partitions:
                rows.append(_partition_row(partition))
        return "partitions", rows
    segments = catalogue.partition(address.topic, address.partition).segments
    return "segments", [_segment_row(segment) for segment in segments]


def _topic_row(topic: ArchivedTopic) -> _Row:
    segments = [partition.segments for partition in topic.partitions]
    return {
        "topic": topic.name,
        "incarnation": topic.incarnation,
        "state": topic.state,
        "as_of": topic.as_of or None,
        "partitions": len(topic.partitions),
        "segments": sum(len(of_partition) for of_partition in segments),
        **_sums(segments, topic.timestamps),
    }


def _partition_row(partition: ArchivedPartition) -> _Row:
    return {
        "partition": partition.partition,
        "start": partition.start,
        "end": partition.end,
        "segments": len(partition.segments),
        **_sums([partition.segments], partition.timestamps),
    }


def _segment_row(segment: Segment) -> _Row:
    times = segment.min_timestamp, segment.max_timestamp
    return {
        "first": segment.first,
        "last": segment.last,
        **_sums([[segment]], times),
        "largest": segment.largest,
        "crc": segment.crc or None,
        "file": segment.key,
    }


def _total(partitions: Sequence[Sequence[Segment]], column: str) -> int:
    return sum(sum_of(segments, column) for segments in partitions)


def _sums(partitions: Sequence[Sequence[Segment]], times: tuple[int | None, int | None]) -> _Row:
    return {
        "records": _total(partitions, "count"),
        "bytes": _total(partitions, "bytes"),
        "stored_bytes": _total(partitions, "stored"),
        "min_timestamp": times[0],
        "max_timestamp": times[1],
    }
