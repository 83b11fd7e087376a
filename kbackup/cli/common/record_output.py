"""How records are shown: `--output`, `--format` and `--raw`, and printing them as they are found."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import click

from kbackup.archive.query.browse import Found
from kbackup.cli.common.frame import Frame
from kbackup.cli.common.key_options import options
from kbackup.cli.common.record_text import (
    AS_THEY_ARE,
    FORMAT_HELP,
    Show,
    as_format,
    as_hex,
    as_json,
    as_text,
    put,
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
    """What `style_options` said."""

    output: str | None
    template: str | None
    raw: bool

    @property
    def whole_lines(self) -> bool:
        return self.template is None or self.template.endswith(r"\n")

    def show(self, frame: Frame) -> Show:
        """`UsageError` for what does not go together, and for bytes that a terminal would take for commands."""
        if self.template is None:
            if self.raw:
                raise UsageError("--raw is for --format", "for instance --format '%v' --raw")
            return _documents(frame) if frame.reporter.json else SHOWS[self.output or "text"]
        if self.output is not None or frame.reporter.json:
            raise UsageError(
                "--format goes with neither --output nor --json", f"give one of them: {', '.join(SHOWS)}"
            )
        if self.raw and sys.stdout.isatty():
            raise UsageError(
                "--raw writes bytes as they are, and stdout is a terminal", "send them to a file or a pipe"
            )
        return as_format(self.template, raw=self.raw)


def _documents(frame: Frame) -> Show:
    """As JSON lines. Once there is one, what fails is told on stderr alone: its document would not be a record."""

    def show(tp: TopicPartition, row: Row, parts: DecodedRecord = AS_THEY_ARE) -> str:
        frame.reporter.documents += 1
        return as_json(tp, row, parts)

    return show


def printed(
    found: Iterable[Found],
    show: Show,
    decode: Callable[[TopicPartition, Row], DecodedRecord],
    aside: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> int:
    """How many records; each piece is out before the next one is read. `aside` is entered while one is printed."""
    count = 0
    for tp, block in found:
        with aside():
            for row in rows(block, str(tp)):
                put(show(tp, row, decode(tp, row)))
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
