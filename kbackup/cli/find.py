"""`kbackup find`: records that have something in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial

import click

from kbackup.archive.browse import Catalogue, catalogue
from kbackup.archive.content import ArchivedPartition
from kbackup.cli.cat import (
    backup_option,
    chosen_show,
    first,
    partitions_of,
    printed,
    show_options,
    time_options,
)
from kbackup.cli.frame import Frame, pass_frame
from kbackup.cli.options import archive_option, common_options, s3_options
from kbackup.cli.places import Place, parse_place, times_of
from kbackup.cli.session import archive_store

_PARTS = ("key", "value", "headers")


@click.command("find")
@click.argument("pattern", metavar="TEXT")
@click.argument("place", metavar="[PLACE]", required=False)
@common_options
@archive_option
@backup_option
@click.option("-E", "--regex", is_flag=True, help="TEXT is a regular expression (RE2, over bytes).")
@click.option("-i", "--ignore-case", is_flag=True, help="ASCII letters are the same in both cases.")
@click.option(
    "--in", "parts", type=click.Choice(_PARTS), multiple=True, help="Where to look. [repeatable, default all]"
)
@time_options
@click.option("-c", "--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N records.")
@show_options
@s3_options
@pass_frame
def command(
    frame: Frame,
    pattern: str,
    place: str | None,
    backup: str,
    regex: bool,
    ignore_case: bool,
    parts: tuple[str, ...],
    from_time: str | None,
    to_time: str | None,
    limit: int | None,
    output: str | None,
    template: str | None,
    raw: bool,
) -> None:
    """Print the records that have TEXT in their key, value or headers.

    PLACE as of 'kbackup cat'; without it everything is searched, topic by topic. Segments are read in parallel, records
    come in order. Output is that of 'kbackup cat'.
    """
    from kbackup.archive.find import PARTS, Pattern, find, to_search

    show = chosen_show(frame, output, template, raw)
    wanted = parse_place(place) if place is not None else None
    times = times_of(from_time, to_time)
    window = wanted.window(times) if wanted is not None else times
    looked_for = Pattern(pattern, regex, ignore_case, tuple(p for p in PARTS if not parts or p in parts))
    looked_for.require()
    store = archive_store(frame)
    whole = catalogue(store, backup, wanted.topic if wanted is not None else None)
    partitions = list(_partitions(whole, wanted))
    sizes = [to_search(p, window) for _, p in partitions]
    records, nbytes = (sum(size[n] for size in sizes) for n in (0, 1))
    with (
        frame.reporter.progress("searched", records=records, nbytes=nbytes) as progress,
        closing(find(store, partitions, looked_for, window, progress.advance)) as found,
    ):
        whole_lines = template is None or template.endswith(r"\n")
        printed(first(found, limit), show, partial(progress.aside, again=whole_lines))


def _partitions(whole: Catalogue, place: Place | None) -> Iterator[tuple[str, ArchivedPartition]]:
    if place is not None:
        yield from ((place.topic, partition) for partition in partitions_of(whole, place))
        return
    for topic in whole.topics:
        yield from ((topic.name, partition) for partition in topic.partitions)
