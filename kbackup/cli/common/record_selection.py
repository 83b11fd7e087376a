"""What `ls`, `cat` and `find` have in common: which state of an archive they look into, and which records of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeVar

import click

from kbackup.archive.java.folder import JavaFolder
from kbackup.archive.query.browse import Catalogue, catalogue
from kbackup.archive.query.content import ArchivedPartition
from kbackup.archive.query.window import Window
from kbackup.cli.common.arguments import moment_of, times_of, window_of
from kbackup.cli.common.decoding import Decoding, Wish, decoding_options
from kbackup.cli.common.frame import Frame
from kbackup.cli.common.key_options import options
from kbackup.cli.common.local_cache import looked_into
from kbackup.cli.common.options import s3_options, state_options
from kbackup.cli.common.record_output import Style, style_options
from kbackup.cli.common.record_text import Show
from kbackup.cli.common.window_text import show_choice
from kbackup.config.windows import Address
from kbackup.errors import UsageError
from kbackup.store import Store

T = TypeVar("T")


class Opened(NamedTuple):
    store: Store
    whole: Catalogue


def opened(frame: Frame, backup: str, at: int | None, topic: str | None) -> Opened:
    """As of a restore point, or of a moment; notes say what was chosen for that."""
    store = looked_into(frame)
    whole = catalogue(store, backup, topic, at)
    if whole.choice is not None:
        frame.reporter.note(f"{whole.archive} as a restore would bring it back:")
        show_choice(whole.choice, frame.reporter)
    for warning in whole.warnings:
        frame.reporter.warning(warning)
    return Opened(store if whole.restore_point is not None else JavaFolder(store), whole)


@dataclass(frozen=True)
class Look:
    """What the options say that `cat` and `find` share; `at` in ms since the epoch."""

    backup: str
    at: int | None
    from_time: str | None
    to_time: str | None
    limit: int | None
    style: Style
    wish: Wish

    def show(self, frame: Frame) -> tuple[Show, Decoding]:
        """How records are printed, and what their schemas make of them before."""
        show, decoding = self.style.show(frame), self.wish.decoding(frame)
        if decoding.active and self.style.output == "hex" and not frame.reporter.json:
            raise UsageError("--output hex shows bytes as they are", "decode with --output text or json")
        return show, decoding

    def window(self, address: Address | None) -> Window:
        return window_of(address, times_of(self.from_time, self.to_time, self.at))

    def open(self, frame: Frame, address: Address | None) -> Opened:
        return opened(frame, self.backup, self.at, address.topic if address is not None else None)


look_options = options(
    state_options,
    click.option("--from-time", metavar="TIME", help="Print records from this time on, inclusive."),
    click.option("--to-time", metavar="TIME", help="Print records up to this time, inclusive."),
    click.option("-c", "--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N records."),
    style_options,
    decoding_options,
    s3_options,
)


def with_look(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """Gives a command what `look_options` said as a `Look`, behind its frame."""

    @functools.wraps(command)
    def run(frame: Frame, /, **given: Any) -> int | None:
        style, wish = _taken(Style, given), _taken(Wish, given)
        at = given.pop("at")
        moment = moment_of("--at", at) if at is not None else None
        return command(frame, _taken(Look, given, at=moment, style=style, wish=wish), **given)

    return run


def _taken(kind: Callable[..., T], given: dict[str, Any], **more: object) -> T:
    """A `kind` of those of `given` that are its fields; they are not in there any longer."""
    names = [f.name for f in fields(kind) if f.name not in more]  # type: ignore[arg-type]
    return kind(**{name: given.pop(name) for name in names}, **more)


def partitions_of(whole: Catalogue, address: Address) -> Iterable[ArchivedPartition]:
    if address.partition is not None:
        return [whole.partition(address.topic, address.partition)]
    return [p for topic in whole.topics if topic.name == address.topic for p in topic.partitions]
