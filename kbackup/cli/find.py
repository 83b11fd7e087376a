"""`kbackup find`: search records by a text, or by an expression of jq's language (extra `schemas`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import click

from kbackup.archive.query.browse import Catalogue
from kbackup.archive.query.content import ArchivedPartition
from kbackup.cli.common import records
from kbackup.cli.common.command_context import CommandContext, pass_command_context
from kbackup.cli.common.completion import archived
from kbackup.cli.common.help import SectionedCommand
from kbackup.cli.common.output import Reporter
from kbackup.config.windows import TopicAddress
from kbackup.errors import UsageError
from kbackup.jobs.decoding import Expression
from kbackup.util.text import plural

if TYPE_CHECKING:
    from kbackup.archive.query.find import Pattern


@click.command("find", cls=SectionedCommand, epilog="Example: kbackup find customer-17 orders --in key")
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
@records.misplaced_topic("find", "TEXT")
@records.record_options
@pass_command_context
@records.with_record_request
def command(
    context: CommandContext,
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

    TEXT is looked for in the bytes as they are archived. --jq tests the record as --json prints it, with JSON and
    decoded values parsed: '.value.status == "failed"'. With --jq, a single argument is PLACE. TEXT before PLACE tests
    only records with TEXT, which is faster.

    Ends with exit code 0 also if no record matches; stderr says so.
    """
    from kbackup.archive.query.find import find, to_search

    if expression is not None and address_text is None:
        # With an expression, the only argument is the place.
        pattern, address_text = None, pattern
    show = request.show(context)
    text = _text(pattern, regex, ignore_case, parts)
    if expression is None and text is None:
        raise UsageError("no search text is given", "give TEXT, or an expression with --jq")
    address = records.parse_address(address_text) if address_text is not None else None
    window = request.window(address)
    opened = request.open(context, address)
    decoding = request.decoding(context, opened)
    compiled = None if expression is None else Expression(expression, decoding, text)
    matches = compiled or text
    assert matches is not None  # noqa: S101 (checked above)
    partitions = list(_partitions(opened.catalogue, address))
    sizes = [to_search(partition, window) for _, partition in partitions]
    total = sum(count for count, _ in sizes)
    nbytes = sum(size for _, size in sizes)
    # An expression has decoded each record, and counted it.
    decode = decoding if compiled is None else decoding.decode_uncounted
    with (
        context.reporter.progress("searched", records=total, nbytes=nbytes) as progress,
        closing(find(opened.store, partitions, matches, window, progress.advance)) as batches,
    ):
        limited = records.limit_records(batches, request.limit)
        # A bar begins at the start of a line: it waits while a format leaves the line open.
        hidden_bar = partial(progress.hidden, restart=request.whole_lines)
        count = records.print_records(limited, show, decode, hidden_bar)
    if not count:
        context.reporter.note(f"no match in {plural(total, 'record')} of {plural(len(partitions), 'partition')}")
    records.report_undecoded(decoding, context.reporter)
    if compiled is not None:
        _report_failures(compiled, context.reporter)


def _report_failures(expression: Expression, reporter: Reporter) -> None:
    if expression.failed:
        reporter.warning(
            f"the expression failed for {plural(expression.failed, 'record')}, which are not printed; "
            f"the first: {expression.first}"
        )


def _text(pattern: str | None, regex: bool, ignore_case: bool, parts: tuple[str, ...]) -> Pattern | None:
    from kbackup.archive.query.find import PARTS, Pattern

    if pattern is None:
        if regex or ignore_case or parts:
            raise UsageError("--regex, --ignore-case and --in need TEXT", "give TEXT and PLACE with --jq")
        return None
    # In the order of a record, whatever the order of the options.
    searched = tuple(part for part in PARTS if part in parts or not parts)
    text = Pattern(pattern, regex, ignore_case, searched)
    text.require()
    return text


def _partitions(catalogue: Catalogue, address: TopicAddress | None) -> Iterator[tuple[str, ArchivedPartition]]:
    """Yield the partitions of an address, or of the archive, each with the name of its topic."""
    if address is not None:
        for partition in records.partitions_of(catalogue, address):
            yield address.topic, partition
        return
    for topic in catalogue.topics:
        for partition in topic.partitions:
            yield topic.name, partition
