"""`kbackup ls`: list an archive's topics, a topic's partitions, or a partition's segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from kbackup.archive.query.browse import Catalogue
from kbackup.archive.query.content import ArchivedPartition, ArchivedTopic
from kbackup.archive.segments.table import Segment
from kbackup.cli.common.arguments import moment_of, parse_partition
from kbackup.cli.common.frame import Frame, pass_frame
from kbackup.cli.common.options import s3_options, state_options
from kbackup.cli.common.output import Cell
from kbackup.cli.common.records import open_archive_at
from kbackup.util.text import human_size
from kbackup.util.times import human_time

_Row = Mapping[str, Cell]
_HEADINGS = {
    "as_of": "as of",
    "stored_bytes": "stored",
    "min_timestamp": "oldest record",
    "max_timestamp": "newest record",
}
_SIZES = ("bytes", "stored_bytes", "largest")
_TIMES = ("min_timestamp", "max_timestamp")


@click.command("ls")
@click.argument("address_text", metavar="[PLACE]", required=False)
@state_options
@s3_options
@pass_frame
def command(frame: Frame, address_text: str | None, restore_point: str, to_time: str | None) -> None:
    """List an archive's topics; with PLACE, a topic's partitions (orders) or a partition's segments (orders:3).

    A slash may stand for the colon. A partition's range ends with the next offset to archive, a segment's with its last
    record. With --to-time, records are upper bounds.
    """
    address = parse_partition(address_text)
    moment = moment_of("--to-time", to_time)
    catalogue = open_archive_at(frame, restore_point, moment, address.topic if address is not None else None).catalogue
    if address is None:
        level, rows = "topics", [_topic(t) for t in catalogue.topics]
    elif address.partition is None:
        level, rows = "partitions", [_partition(p) for t in catalogue.topics for p in t.partitions]
    else:
        level, rows = (
            "segments",
            [_segment(s) for s in catalogue.partition(address.topic, address.partition).segments],
        )
    names = _COLUMNS[level]
    frame.reporter.table(
        [_HEADINGS.get(name, name) for name in names], [[_cell(n, row[n]) for n in names] for row in rows]
    )
    frame.reporter.document(_document(catalogue, level, rows))


_SUMS = ("records", "bytes", "stored_bytes", *_TIMES)
_COLUMNS: dict[str, Sequence[str]] = {
    "topics": ("topic", "state", "as_of", "partitions", "segments", *_SUMS),
    "partitions": ("partition", "start", "end", "segments", *_SUMS),
    "segments": ("first", "last", *_SUMS, "largest", "file"),
}


def _document(catalogue: Catalogue, level: str, rows: Sequence[_Row]) -> dict[str, object]:
    return {
        "archive": catalogue.archive,
        "restore_point": catalogue.restore_point,
        "committed_at": catalogue.committed_at,
        level: rows,
        **({"choice": catalogue.choice} if catalogue.choice is not None else {}),
    }


def _cell(name: str, value: Cell) -> Cell:
    if isinstance(value, int):
        if name in _SIZES:
            return human_size(value)
        if name in _TIMES:
            return human_time(value)
    return value


def _topic(topic: ArchivedTopic) -> _Row:
    return {
        "topic": topic.name,
        "incarnation": topic.incarnation,
        "state": topic.state,
        "as_of": topic.as_of or None,
        "partitions": len(topic.partitions),
        "segments": len(topic.segments),
        **_sums(topic.segments, topic.timestamps),
    }


def _partition(partition: ArchivedPartition) -> _Row:
    return {
        "partition": partition.partition,
        "start": partition.start,
        "end": partition.end,
        "segments": len(partition.segments),
        **_sums(partition.segments, partition.timestamps),
    }


def _segment(segment: Segment) -> _Row:
    return {
        "first": segment.first,
        "last": segment.last,
        **_sums([segment], (segment.min_timestamp, segment.max_timestamp)),
        "largest": segment.largest,
        "crc": segment.crc or None,
        "file": segment.key,
    }


def _sums(segments: Sequence[Segment], times: tuple[int | None, int | None]) -> _Row:
    return {
        "records": sum(s.count for s in segments),
        "bytes": sum(s.bytes for s in segments),
        "stored_bytes": sum(s.stored for s in segments),
        "min_timestamp": times[0],
        "max_timestamp": times[1],
    }
