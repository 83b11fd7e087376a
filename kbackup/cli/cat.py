"""`kbackup cat`: print records of an archive."""

from __future__ import annotations

from collections.abc import Iterator

import click

from kbackup.archive.query.browse import Catalogue, PartitionRecords, records, tail
from kbackup.archive.segments.window import Window
from kbackup.cli.common.arguments import parse_address
from kbackup.cli.common.frame import Frame, pass_frame
from kbackup.cli.common.records import (
    RecordRequest,
    partitions_of,
    print_records,
    record_options,
    report_undecoded,
    with_record_request,
)
from kbackup.config.windows import TopicAddress
from kbackup.errors import UsageError
from kbackup.store import Store
from kbackup.types import TopicPartition


@click.command("cat")
@click.argument("address_text", metavar="PLACE")
@click.option(
    "--tail", "last", type=click.IntRange(min=1), metavar="N", help="Print the last N records of each partition."
)
@record_options
@pass_frame
@with_record_request
def command(frame: Frame, request: RecordRequest, address_text: str, last: int | None) -> None:
    """Print records by partition, in order of their offsets.

    PLACE is topic, topic:partition, topic:partition:offset (one record) or topic:partition:from-to. To is excluded;
    either may be empty. A slash may stand for a colon.

    Text escapes control characters. JSON (--json) and hex are exact: bytes that are not UTF-8 become {"base64": "…"}. A
    schema registry or schema files decode keys and values to JSON.
    """
    show, decoding = request.show(frame)
    address = parse_address(address_text)
    window = request.window(address)
    if last is not None and (window.timed or address.ranged or request.limit is not None):
        raise UsageError("--tail needs a topic or a partition alone", "leave out offsets, times and --limit")
    store, catalogue = request.open(frame, address)
    batches = _read_records(store, catalogue, address, window, last, request.limit)
    if not print_records(batches, show, decoding) and address.one and not window.timed:
        raise _no_such_record(catalogue, address)
    report_undecoded(decoding, frame.reporter)


def _read_records(
    store: Store, catalogue: Catalogue, address: TopicAddress, window: Window, last: int | None, limit: int | None
) -> Iterator[PartitionRecords]:
    remaining = limit
    for partition in partitions_of(catalogue, address):
        if last is not None:
            yield from tail(store, address.topic, partition, last)
            continue
        for batch in records(store, address.topic, partition, window, remaining):
            yield batch
            remaining = None if remaining is None else remaining - len(batch.block)
        if remaining == 0:
            return


def _no_such_record(catalogue: Catalogue, address: TopicAddress) -> UsageError:
    (partition,) = partitions_of(catalogue, address)
    tp = TopicPartition(address.topic, partition.partition)
    return UsageError(
        f"there is no record at offset {address.start} of {tp} in {catalogue.location}",
        f"use '{address.topic}:{partition.partition}:{address.start}-' to begin at the next record; the archive has "
        f"offsets {partition.start} to {partition.end} (exclusive), without those of compaction and transactions",
    )
