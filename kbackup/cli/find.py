"""`kbackup find`: search records by a text, or by an expression of jq's language (extra `schemas`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import click
import msgspec
import numpy as np
import numpy.typing as npt

from kbackup.archive.query.browse import Catalogue
from kbackup.archive.query.content import ArchivedPartition
from kbackup.cli.common import records
from kbackup.cli.common.frame import Frame, pass_frame
from kbackup.cli.common.options import archived
from kbackup.cli.common.output import Reporter
from kbackup.config.windows import TopicAddress
from kbackup.errors import UsageError
from kbackup.formats.block import select_records
from kbackup.formats.record import Row, rows
from kbackup.jobs.decoding import Decoding
from kbackup.schemas.base import EXTRA
from kbackup.types import RecordBlock, TopicPartition
from kbackup.util.text import plural

if TYPE_CHECKING:
    from kbackup.archive.query.find import Pattern

Mask = npt.NDArray[np.bool_]
"""bool[n]: True for selected records."""


class Expression:
    """Selects the records for which an expression yields a value that is neither null nor false, as jq's `select` does.

    `before` selects the records to test. A value that no schema decoded is tested as JSON if it is JSON. A record for
    which the expression fails is not selected, and is counted. Thread-safe. Raises `UsageError` for an invalid
    expression, or if jq is not installed.
    """

    def __init__(
        self, text: str, decoding: Decoding, before: Callable[[TopicPartition, RecordBlock], Mask] | None
    ) -> None:
        try:
            import jq  # of the extra `schemas`
        except ImportError as error:
            raise UsageError(f"--jq needs a library that is not installed: {error}", EXTRA) from error
        try:
            self._program = jq.compile(text)
        except ValueError as error:  # also of text that is not Unicode
            raise UsageError(
                f"--jq {text} can't be used: {_first_line(error)}",
                """give an expression such as '.value.status == "failed"'""",
            ) from None
        self._decoding, self._before = decoding, before
        self._failed, self._first = 0, ""
        self._lock = threading.Lock()

    def __call__(self, tp: TopicPartition, block: RecordBlock) -> Mask:
        """Return which records of a block are selected."""
        mask = np.ones(len(block), np.bool_) if self._before is None else self._before(tp, block)
        candidates = select_records(block, mask)
        if len(candidates):
            mask[mask] = [self._holds(tp, row) for row in rows(candidates, str(tp))]
        return mask

    def _holds(self, tp: TopicPartition, row: Row) -> bool:
        try:
            given = self._program.input_text(self._text(tp, row))
            return any(value is not None and value is not False for value in given)
        except ValueError as error:  # what the expression raises, or can't do with this record
            with self._lock:
                self._failed += 1
                self._first = self._first or f"{tp.topic}:{tp.partition}:{row.offset}: {_first_line(error)}"
            return False

    def _text(self, tp: TopicPartition, row: Row) -> str:
        whole = records.document(tp, row, self._decoding(tp, row))
        if "value_schema" not in whole and row.value is not None:
            try:
                msgspec.json.decode(row.value)
                whole["value"] = msgspec.Raw(row.value)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                pass  # then it is text, or bytes
        return msgspec.json.encode(whole).decode()

    def report_failures(self, reporter: Reporter) -> None:
        if self._failed:
            reporter.warning(
                f"the expression failed for {plural(self._failed, 'record')}, which are not printed; "
                f"the first: {self._first}"
            )


def _first_line(error: ValueError) -> str:
    return str(error).strip().partition("\n")[0]


@click.command("find", epilog="Example: kbackup find customer-17 orders --in key")
@click.argument("pattern", metavar="[TEXT]", required=False)
@click.argument("address_text", metavar="[PLACE]", required=False, shell_complete=archived("topics"))
@click.option("-E", "--regex", is_flag=True, help="Read TEXT as a regular expression (RE2, over bytes).")
@click.option("-i", "--ignore-case", is_flag=True, help="Ignore the case of ASCII letters.")
@click.option(
    "--in",
    "parts",
    type=click.Choice(("key", "value", "headers")),
    multiple=True,
    help="Part of the record to search. [repeatable, default all]",
)
@click.option("--jq", "expression", metavar="EXPR", help="Print records for which the jq expression EXPR is true.")
@records.record_options
@pass_frame
@records.with_record_request
def command(
    frame: Frame,
    request: records.RecordRequest,
    pattern: str | None,
    address_text: str | None,
    regex: bool,
    ignore_case: bool,
    parts: tuple[str, ...],
    expression: str | None,
) -> None:
    """Print the records with TEXT in key, value or headers, or for which an expression is true.

    PLACE [default all topics] and output are as for 'kbackup cat'. The command reads segments in parallel and prints
    records in order.

    --jq tests the record as --json prints it, with JSON and decoded values parsed: '.value.status == "failed"'. With
    --jq, a single argument is PLACE. TEXT before PLACE tests only records with TEXT, which is faster.

    Ends with exit code 0 also if no record matches; stderr says so.
    """
    from kbackup.archive.query.find import find, to_search

    if expression is not None and address_text is None:
        pattern, address_text = None, pattern
    show, decoding = request.show(frame)
    text = _text(pattern, regex, ignore_case, parts)
    compiled = None if expression is None else Expression(expression, decoding, text)
    matches = compiled or text
    if matches is None:
        raise UsageError("no search text is given", "give TEXT, or an expression with --jq")
    address = records.parse_address(address_text) if address_text is not None else None
    window = request.window(address)
    store, catalogue = request.open(frame, address)
    partitions = list(_partitions(catalogue, address))
    sizes = [to_search(partition, window) for _, partition in partitions]
    total, nbytes = (sum(size[n] for size in sizes) for n in (0, 1))
    # an expression has decoded each record, and counted it
    decode = decoding if compiled is None else decoding.decode_uncounted
    with (
        frame.reporter.progress("searched", records=total, nbytes=nbytes) as progress,
        closing(find(store, partitions, matches, window, progress.advance)) as batches,
    ):
        limited = records.limit_records(batches, request.limit)
        count = records.print_records(limited, show, decode, partial(progress.hidden, restart=request.whole_lines))
    if not count:
        frame.reporter.note(f"no match in {plural(total, 'record')} of {plural(len(partitions), 'partition')}")
    records.report_undecoded(decoding, frame.reporter)
    if compiled is not None:
        compiled.report_failures(frame.reporter)


def _text(pattern: str | None, regex: bool, ignore_case: bool, parts: tuple[str, ...]) -> Pattern | None:
    from kbackup.archive.query.find import PARTS, Pattern

    if pattern is None:
        if regex or ignore_case or parts:
            raise UsageError("--regex, --ignore-case and --in need TEXT", "give TEXT and PLACE with --jq")
        return None
    text = Pattern(pattern, regex, ignore_case, tuple(p for p in PARTS if not parts or p in parts))
    text.require()
    return text


def _partitions(catalogue: Catalogue, address: TopicAddress | None) -> Iterator[tuple[str, ArchivedPartition]]:
    if address is not None:
        yield from ((address.topic, partition) for partition in records.partitions_of(catalogue, address))
        return
    for topic in catalogue.topics:
        yield from ((topic.name, partition) for partition in topic.partitions)
