"""`kbackup find`: records that have something in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial

import click

from kbackup.archive.browse import Catalogue
from kbackup.archive.content import ArchivedPartition
from kbackup.cli.frame import Frame, pass_frame
from kbackup.cli.looking import Look, look_options, partitions_of, with_look
from kbackup.cli.places import Place, parse_place
from kbackup.cli.showing import first, printed

_PARTS = ("key", "value", "headers")


@click.command("find")
@click.argument("pattern", metavar="TEXT")
@click.argument("place", metavar="[PLACE]", required=False)
@click.option("-E", "--regex", is_flag=True, help="TEXT is a regular expression (RE2, over bytes).")
@click.option("-i", "--ignore-case", is_flag=True, help="ASCII letters are the same in both cases.")
@click.option(
    "--in", "parts", type=click.Choice(_PARTS), multiple=True, help="Where to look. [repeatable, default all]"
)
@look_options
@pass_frame
@with_look
def command(
    frame: Frame,
    look: Look,
    pattern: str,
    place: str | None,
    regex: bool,
    ignore_case: bool,
    parts: tuple[str, ...],
) -> None:
    """Print the records that have TEXT in their key, value or headers.

    PLACE as of 'kbackup cat'; without it everything is searched, topic by topic. Segments are read in parallel, records
    come in order. Output is that of 'kbackup cat'.
    """
    from kbackup.archive.find import PARTS, Pattern, find, to_search

    show, decoding = look.show(frame)
    wanted = parse_place(place) if place is not None else None
    window = look.window(wanted)
    looked_for = Pattern(pattern, regex, ignore_case, tuple(p for p in PARTS if not parts or p in parts))
    looked_for.require()
    store, whole = look.open(frame, wanted)
    partitions = list(_partitions(whole, wanted))
    sizes = [to_search(p, window) for _, p in partitions]
    records, nbytes = (sum(size[n] for size in sizes) for n in (0, 1))
    with (
        frame.reporter.progress("searched", records=records, nbytes=nbytes) as progress,
        closing(find(store, partitions, looked_for, window, progress.advance)) as found,
    ):
        aside = partial(progress.aside, again=look.style.whole_lines)
        printed(first(found, look.limit), show, decoding, aside)
    decoding.tell(frame.reporter)


def _partitions(whole: Catalogue, place: Place | None) -> Iterator[tuple[str, ArchivedPartition]]:
    if place is not None:
        yield from ((place.topic, partition) for partition in partitions_of(whole, place))
        return
    for topic in whole.topics:
        yield from ((topic.name, partition) for partition in topic.partitions)
