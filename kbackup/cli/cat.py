"""`kbackup cat`: records of an archive."""

from __future__ import annotations

from collections.abc import Iterator

import click

from kbackup.archive.query.browse import Catalogue, Found, records, tail
from kbackup.archive.query.window import Window
from kbackup.cli.common.arguments import parse_address
from kbackup.cli.common.frame import Frame, pass_frame
from kbackup.cli.common.record_output import printed
from kbackup.cli.common.record_selection import Look, look_options, partitions_of, with_look
from kbackup.config.windows import Address
from kbackup.errors import UsageError
from kbackup.store import Store
from kbackup.types import TopicPartition


@click.command("cat")
@click.argument("place", metavar="PLACE")
@click.option(
    "--tail",
    "last",
    type=click.IntRange(min=1),
    metavar="N",
    help="Print the last N records of each partition.",
)
@look_options
@pass_frame
@with_look
def command(frame: Frame, look: Look, place: str, last: int | None) -> None:
    """Print records by partition, in order of their offsets.

    PLACE is topic, topic:partition, topic:partition:offset (one record) or topic:partition:from-to. From is included,
    to is not, and either may be empty. A slash may stand for a colon. Times are RFC 3339 (2026-01-31T12:00:00Z),
    milliseconds since 1970, or '2h ago'.

    Text output escapes control characters. JSON and hex are exact: JSON shows bytes that are not UTF-8 as {"base64":
    "…"}. --json prints one JSON document a line for each record, as --output json does.

    A schema registry or schema files decode keys and values to JSON.
    """
    show, decoding = look.show(frame)
    address = parse_address(place)
    window = look.window(address)
    if last is not None and (window.timed or address.ranged or look.limit is not None):
        raise UsageError(
            "--tail goes with a topic or a partition alone", "leave out offsets, times and --limit"
        )
    store, whole = look.open(frame, address)
    found = _found(store, whole, address, window, last, look.limit)
    if not printed(found, show, decoding) and address.one and not window.timed:
        raise _no_such_record(whole, address)
    decoding.tell(frame.reporter)


def _found(
    store: Store, whole: Catalogue, address: Address, window: Window, last: int | None, limit: int | None
) -> Iterator[Found]:
    left = limit
    for partition in partitions_of(whole, address):
        if last is not None:
            yield from tail(store, address.topic, partition, last)
            continue
        for found in records(store, address.topic, partition, window, left):
            yield found
            left = None if left is None else left - len(found.block)
        if left == 0:
            return


def _no_such_record(whole: Catalogue, address: Address) -> UsageError:
    (partition,) = partitions_of(whole, address)
    tp = TopicPartition(address.topic, partition.partition)
    return UsageError(
        f"there is no record at offset {address.start} of {tp} in {whole.place}",
        f"archived are offsets {partition.start} to {partition.end} (exclusive), with gaps where compaction or "
        f"transactions left them: '{address.topic}:{partition.partition}:{address.start}-' begins at the next record",
    )
