"""`kbackup cat`: records of an archive."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import click

from kbackup.archive.browse import Catalogue, Found, catalogue, records, tail
from kbackup.archive.content import ArchivedPartition
from kbackup.archive.window import Window
from kbackup.cli.frame import Frame, pass_frame
from kbackup.cli.options import archive_option, common_options, options, s3_options
from kbackup.cli.places import Place, parse_place, times_of
from kbackup.cli.record_text import FORMAT_HELP, Show, as_format, as_hex, as_json, as_text, put
from kbackup.cli.session import archive_store
from kbackup.errors import UsageError
from kbackup.formats.block import slice_block
from kbackup.formats.rows import Row, rows
from kbackup.types import TopicPartition

if TYPE_CHECKING:
    from kbackup.store import Store

SHOWS: dict[str, Show] = {"text": as_text, "json": as_json, "hex": as_hex}

backup_option = click.option(
    "-b", "--backup", default="latest", metavar="[N|latest]", help="As of this restore point."
)
time_options = options(
    click.option("--from-time", metavar="TIME", help="Records from this time on, itself included."),
    click.option("--to-time", metavar="TIME", help="Records up to this time, itself included."),
)
show_options = options(
    click.option(
        "--output",
        type=click.Choice(list(SHOWS)),
        help="text (default): place, time, key, value and headers, with tabs between; json: a line a record; hex.",
    ),
    click.option("-f", "--format", "template", metavar="TEXT", help=FORMAT_HELP),
    click.option(
        "--raw", is_flag=True, help="With --format: bytes as they are, where stdout is no terminal."
    ),
)


@click.command("cat")
@click.argument("place", metavar="PLACE")
@common_options
@archive_option
@backup_option
@time_options
@click.option("--tail", "last", type=click.IntRange(min=1), metavar="N", help="The last N of each partition.")
@click.option("-c", "--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N records.")
@show_options
@s3_options
@pass_frame
def command(
    frame: Frame,
    place: str,
    backup: str,
    from_time: str | None,
    to_time: str | None,
    last: int | None,
    limit: int | None,
    output: str | None,
    template: str | None,
    raw: bool,
) -> None:
    """Print records, one partition after the other, in order of their offsets.

    PLACE is topic, topic:partition, topic:partition:offset (one record) or topic:partition:from-to (from inclusive, to
    exclusive; either may be left out). Times are RFC 3339 (2026-01-31T12:00:00Z), milliseconds since 1970, or
    '2h ago'.

    What could steer a terminal is escaped. JSON and hex are exact: bytes that are not UTF-8 are {"base64": "…"} in
    JSON. With --json each record is a JSON document of its own, one a line, as with --output json.
    """
    show = chosen_show(frame, output, template, raw)
    wanted = parse_place(place)
    window = wanted.window(times_of(from_time, to_time))
    if last is not None and (window.timed or wanted.ranged or limit is not None):
        raise UsageError(
            "--tail goes with a topic or a partition alone", "leave out offsets, times and --limit"
        )
    store = archive_store(frame)
    whole = catalogue(store, backup, wanted.topic)
    found = _found(store, whole, wanted, window, last, limit)
    if not printed(found, show) and wanted.one and not window.timed:
        raise _no_such_record(whole, wanted)


def chosen_show(frame: Frame, output: str | None, template: str | None, raw: bool) -> Show:
    """`UsageError` for what does not go together, and for bytes that a terminal would take for commands."""
    if template is None:
        if raw:
            raise UsageError("--raw is for --format", "for instance --format '%v' --raw")
        return _documents(frame) if frame.reporter.json else SHOWS[output or "text"]
    if output is not None or frame.reporter.json:
        raise UsageError(
            "--format goes with neither --output nor --json", f"give one of them: {', '.join(SHOWS)}"
        )
    if raw and sys.stdout.isatty():
        raise UsageError(
            "--raw writes bytes as they are, and stdout is a terminal", "send them to a file or a pipe"
        )
    return as_format(template, raw=raw)


def _documents(frame: Frame) -> Show:
    """As JSON lines. Once there is one, what fails is told on stderr alone: its document would not be a record."""

    def show(tp: TopicPartition, row: Row) -> str:
        frame.reporter.documents += 1
        return as_json(tp, row)

    return show


def printed(
    found: Iterable[Found], show: Show, aside: Callable[[], AbstractContextManager[None]] = nullcontext
) -> int:
    """How many records; each piece is out before the next one is read. `aside` is entered while one is printed."""
    count = 0
    for tp, block in found:
        with aside():
            for row in rows(block, str(tp)):
                put(show(tp, row))
                count += 1
            sys.stdout.flush()
    return count


def first(found: Iterator[Found], limit: int | None) -> Iterator[Found]:
    """Its first `limit` records; no more is read then."""
    left = limit
    for tp, block in found:
        kept = block if left is None else slice_block(block, 0, min(left, len(block)))
        yield Found(tp, kept)
        left = None if left is None else left - len(kept)
        if left == 0:
            return


def _found(
    store: Store, whole: Catalogue, place: Place, window: Window, last: int | None, limit: int | None
) -> Iterator[Found]:
    left = limit
    for partition in partitions_of(whole, place):
        if last is not None:
            yield from tail(store, place.topic, partition, last)
            continue
        for found in records(store, place.topic, partition, window, left):
            yield found
            left = None if left is None else left - len(found.block)
        if left == 0:
            return


def partitions_of(whole: Catalogue, place: Place) -> Iterable[ArchivedPartition]:
    if place.partition is not None:
        return [whole.partition(place.topic, place.partition)]
    return [p for topic in whole.topics if topic.name == place.topic for p in topic.partitions]


def _no_such_record(whole: Catalogue, place: Place) -> UsageError:
    (partition,) = partitions_of(whole, place)
    tp = TopicPartition(place.topic, partition.partition)
    return UsageError(
        f"there is no record at offset {place.start} of {tp} in {whole.place}",
        f"archived are offsets {partition.start} to {partition.end} (exclusive), with gaps where compaction or "
        f"transactions left them: '{place.topic}:{partition.partition}:{place.start}-' begins at the next record",
    )
