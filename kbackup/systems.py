"""The systems on top of the core, and the places where the core asks them.

A system is a package that imports the core and is never imported by it: `kbackup.mirror` and `kbackup.migrate`. Its
`__init__` has an object `SYSTEM`, which says what the system adds. Whoever deletes a package and its line in `PACKAGES`
has a product without it. The list stands here, not in the command line, because programs that use the library back up
and expire as the commands do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import timedelta
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fastapi import APIRouter

    from kbackup.archive.catalog.state import RetentionHold
    from kbackup.archive.reader import Archive
    from kbackup.archive.verify.findings import Findings
    from kbackup.metadata.entities import Reading, Source
    from kbackup.metadata.sources import Sources
    from kbackup.schemas.decoder import Decoder
    from kbackup.store.base import Store

PACKAGES = ("kbackup.mirror", "kbackup.migrate")


class MetadataSource(NamedTuple):
    """A source of a cluster's metadata beside its brokers: its name for messages, and the function that reads it."""

    source: Source
    name: str
    read: Callable[[], Reading]


class SystemPage(NamedTuple):
    """A page of `kbackup ui`. `key` is the key that opens it; `templates` is the folder of its templates.

    The navigation shows the page only for archives where `has_content` is true.
    """

    name: str
    title: str
    key: str
    router: APIRouter
    templates: Path
    has_content: Callable[[Archive], bool]


class System:
    """What a system adds to the core: a command, and answers to what the core asks. By default it has no answers.

    `command` is the name of its command, `package`.cli the module of the command. `summary` is the command's short
    help. An object of this class imports nothing heavy: each method imports what it needs.
    """

    package: str
    command: str
    summary: str

    def metadata_sources(self, sources: Sources) -> Iterable[MetadataSource]:
        """Return the readers of the sources that `[source]` names beside the brokers."""
        return ()

    def retention_holds(self, store: Store, archive_id: str, grace: timedelta) -> Iterable[RetentionHold]:
        """Return what may not expire yet. Whoever gave no sign of life within `grace` holds nothing."""
        return ()

    def record_decoder(self, topic: str, part: str) -> Decoder | None:
        """Return the decoder for the `key` or the `value` of the records of a topic that the system writes."""
        return None

    def check_files(self, store: Store, keys: Collection[str], findings: Findings) -> None:
        """Check the system's own files among `keys`, which are all of an archive, and note what is wrong with them."""

    def page(self) -> SystemPage | None:
        """Return the system's page; its search for content may remember what it found."""
        return None


@cache
def systems() -> tuple[System, ...]:
    """Return the systems of `PACKAGES`, in that order."""
    found: list[System] = []
    for package in PACKAGES:
        found.append(import_module(package).SYSTEM)
    return tuple(found)


def metadata_sources(sources: Sources) -> Iterator[MetadataSource]:
    """Yield the sources of metadata that are set, beside the brokers."""
    for system in systems():
        yield from system.metadata_sources(sources)


def retention_holds(store: Store, archive_id: str, grace: timedelta) -> list[RetentionHold]:
    """Return what may not expire yet because a system still has to read it."""
    holds: list[RetentionHold] = []
    for system in systems():
        holds += system.retention_holds(store, archive_id, grace)
    return holds


def record_decoder(topic: str, part: str) -> Decoder | None:
    """Return the decoder of a topic that a system writes; None for any other topic."""
    for system in systems():
        decoder = system.record_decoder(topic, part)
        if decoder is not None:
            return decoder
    return None


def check_files(store: Store, keys: Collection[str], findings: Findings) -> None:
    """Check the files of all systems in an archive."""
    for system in systems():
        system.check_files(store, keys, findings)


def pages() -> list[SystemPage]:
    """Return the pages of all systems, with the search of each for content as new."""
    found: list[SystemPage] = []
    for system in systems():
        page = system.page()
        if page is not None:
            found.append(page)
    return found
