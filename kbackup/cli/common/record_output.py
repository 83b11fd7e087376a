"""Print records in the style of `--output`, `--format` and `--raw`, as they are read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import click

from kbackup.archive.query.browse import PartitionRecords
from kbackup.cli.common.frame import Frame
from kbackup.cli.common.key_options import options
from kbackup.cli.common.record_text import (
    FORMAT_HELP,
    UNDECODED,
    Show,
    as_format,
    as_hex,
    as_json,
    as_text,
    write_text,
)
from kbackup.errors import UsageError
from kbackup.formats.block import slice_block
from kbackup.formats.rows import Row, rows
from kbackup.schemas.decoder import DecodedRecord
from kbackup.types import TopicPartition

SHOWS: dict[str, Show] = {"text": as_text, "json": as_json, "hex": as_hex}

style_options = options(
    click.option(
        "--output",
        type=click.Choice(list(SHOWS)),
        help="text (default): place, time, key, value and headers between tabs; json: one line a "
        "record; hex.",
    ),
    click.option("-f", "--format", "template", metavar="TEXT", help=FORMAT_HELP),
    click.option(
        "--raw", is_flag=True, help="With --format, print bytes unescaped if stdout is no terminal."
    ),
)


@dataclass(frozen=True)
class Style:
    """The values of `style_options`."""

    output: str | None
    template: str | None
    raw: bool

    @property
    def whole_lines(self) -> bool:
        return self.template is None or self.template.endswith(r"\n")

    def show(self, frame: Frame) -> Show:
        """Return the function that prints a record.

        Raises `UsageError` for a contradiction, and for raw bytes on a terminal."""
        if self.template is None:
            if self.raw:
                raise UsageError("--raw needs --format", "give a format, as in --format '%v' --raw")
            return _documents(frame) if frame.reporter.json else SHOWS[self.output or "text"]
        if self.output is not None or frame.reporter.json:
            raise UsageError("--format excludes --output and --json", "give one of the three")
        if self.raw and sys.stdout.isatty():
            raise UsageError(
                "--raw prints unescaped bytes, and stdout is a terminal", "send them to a file or a pipe"
            )
        return as_format(self.template, raw=self.raw)


def _documents(frame: Frame) -> Show:
    """Print records as JSON lines. After the first one, errors go to stderr alone: their document is not a record."""

    def show(tp: TopicPartition, row: Row, parts: DecodedRecord = UNDECODED) -> str:
        frame.reporter.documents += 1
        return as_json(tp, row, parts)

    return show


def print_records(
    batches: Iterable[PartitionRecords],
    show: Show,
    decode: Callable[[TopicPartition, Row], DecodedRecord],
    hidden_bar: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> int:
    """Print records and return their number. Flushes each batch before reading the next, within `hidden_bar`."""
    count = 0
    for tp, block in batches:
        with hidden_bar():
            for row in rows(block, str(tp)):
                write_text(show(tp, row, decode(tp, row)))
                count += 1
            sys.stdout.flush()
    return count


def limit_records(batches: Iterator[PartitionRecords], limit: int | None) -> Iterator[PartitionRecords]:
    """Yield the first `limit` records, and then read no more."""
    remaining = limit
    for tp, block in batches:
        records = block if remaining is None else slice_block(block, 0, min(remaining, len(block)))
        yield PartitionRecords(tp, records)
        remaining = None if remaining is None else remaining - len(records)
        if remaining == 0:
            return
