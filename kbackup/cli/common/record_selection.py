"""Open an archive and select records, for `ls`, `cat` and `find`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeVar

import click

from kbackup.archive.java.folder import JavaFolder
from kbackup.archive.query import browse
from kbackup.archive.query.browse import Catalogue
from kbackup.archive.query.content import ArchivedPartition
from kbackup.archive.query.window import Window
from kbackup.cli.common.arguments import times_of, window_of
from kbackup.cli.common.decoding import Decoding, DecodingRequest, decoding_options
from kbackup.cli.common.frame import Frame
from kbackup.cli.common.key_options import options
from kbackup.cli.common.local_cache import cached_archive_store
from kbackup.cli.common.options import s3_options, state_options
from kbackup.cli.common.record_output import Style, style_options
from kbackup.cli.common.record_text import Show
from kbackup.cli.common.window_text import show_window
from kbackup.config.windows import Address
from kbackup.errors import UsageError
from kbackup.store import Store

T = TypeVar("T")


class OpenedArchive(NamedTuple):
    store: Store
    catalogue: Catalogue


def open_archive_at(
    frame: Frame, restore_point: str, to_time: int | None, topic: str | None
) -> OpenedArchive:
    """Open the archive as of a restore point, or of a time (ms since the epoch); notes name the selection."""
    store = cached_archive_store(frame)
    catalogue = browse.catalogue(store, restore_point, topic, to_time)
    if catalogue.choice is not None:
        frame.reporter.note(f"{catalogue.archive} as a restore would bring it back:")
        show_window(catalogue.choice, frame.reporter)
    for warning in catalogue.warnings:
        frame.reporter.warning(warning)
    return OpenedArchive(store if catalogue.restore_point is not None else JavaFolder(store), catalogue)


@dataclass(frozen=True)
class RecordRequest:
    """The values of the options that `cat` and `find` share."""

    restore_point: str
    times: Window
    limit: int | None
    style: Style
    decoding: DecodingRequest

    def show(self, frame: Frame) -> tuple[Show, Decoding]:
        """Return the function that prints a record, and the decoding before it."""
        show, decoding = self.style.show(frame), self.decoding.decoding(frame)
        if decoding.active and self.style.output == "hex" and not frame.reporter.json:
            raise UsageError("--output hex does not decode", "decode with --output text or json")
        return show, decoding

    def window(self, address: Address | None) -> Window:
        return window_of(address, self.times)

    def open(self, frame: Frame, address: Address | None) -> OpenedArchive:
        topic = address.topic if address is not None else None
        return open_archive_at(frame, self.restore_point, self.times.to_time, topic)


record_options = options(
    state_options,
    click.option("--from-time", metavar="TIME", help="Records from this time on, inclusive."),
    click.option("-c", "--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N records."),
    style_options,
    decoding_options,
    s3_options,
)


def with_record_request(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """Pass the values of `record_options` to a command as a `RecordRequest`, after its frame."""

    @functools.wraps(command)
    def run(frame: Frame, /, **given: Any) -> int | None:
        style, decoding = _pop_fields(Style, given), _pop_fields(DecodingRequest, given)
        times = times_of(given.pop("from_time"), given.pop("to_time"))
        request = _pop_fields(RecordRequest, given, times=times, style=style, decoding=decoding)
        return command(frame, request, **given)

    return run


def _pop_fields(kind: Callable[..., T], given: dict[str, Any], **more: object) -> T:
    """Make a `kind` of `more` and of its fields in `given`, and remove these from `given`."""
    names = [f.name for f in fields(kind) if f.name not in more]  # type: ignore[arg-type]
    return kind(**{name: given.pop(name) for name in names}, **more)


def partitions_of(catalogue: Catalogue, address: Address) -> Iterable[ArchivedPartition]:
    if address.partition is not None:
        return [catalogue.partition(address.topic, address.partition)]
    return [p for topic in catalogue.topics if topic.name == address.topic for p in topic.partitions]
