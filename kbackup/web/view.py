"""The request of a page: the archive as of a restore point, and addresses that keep that restore point."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Generic, TypeVar
from urllib.parse import quote, urlencode

from fastapi import Depends, Query, Request
from starlette.responses import HTMLResponse

from kbackup.archive.models import Schemas
from kbackup.archive.query.content import ArchivedPartition, ArchivedTopic
from kbackup.archive.query.selection import exact_entry
from kbackup.config.times import not_a_time, now_ms, parse_time
from kbackup.config.windows import parse_range
from kbackup.errors import UsageError
from kbackup.util.text import kbackup_command
from kbackup.web.archive_cache import ArchiveCache, ArchiveSnapshot
from kbackup.web.decoding import FieldDecoder, PageDecoding
from kbackup.web.documents import document_links
from kbackup.web.render import page, path

T = TypeVar("T")

GET = ["GET", "HEAD"]


RestoreCommand = Callable[..., str]
"""Returns the command line of a restore with settings (values by path of the key) and flags. Raises `UsageError` for a
value that is not printable."""


class BadInputError(UsageError):
    """An address or a form has an invalid value."""


@dataclass
class PageRequest:
    """A request of a page. `newest_url` is the address of the same page as of the newest restore point."""

    cache: ArchiveCache
    point_name: str
    newest_url: str
    decoder: FieldDecoder
    restore_command: RestoreCommand

    @cached_property
    def snapshot(self) -> ArchiveSnapshot:
        return self.cache.snapshot(self.point_name)

    def link(self, *parts: object, **query: object) -> str:
        """Return an address that keeps the restore point, unless it is the newest."""
        kept_point = None if self.point_name == "latest" else self.point_name
        parameters = {"point": kept_point, **query}
        return path(*parts, **parameters)

    @cached_property
    def archived_decoding(self) -> PageDecoding:
        """The decoding of the page's records that nobody has to ask for: by the schemas of the restore point."""
        point = self.snapshot.point
        if point is None or point.schemas is None:
            return PageDecoding(self.decoder, None)

        def schemas() -> Schemas | None:
            return self.snapshot.schemas

        return self.decoder.archived_page(point.topics, schemas)

    def decoding(self, decodes: bool) -> PageDecoding:
        """Return the decoding of the page's records that somebody has asked for; without `decodes` they stay as they
        are."""
        return self.decoder.page(self.snapshot.schemas) if decodes else PageDecoding(self.decoder, None)

    def decoding_of(self, view: str | None) -> PageDecoding:
        """Return the decoding of a page of records; without a view nobody has asked for it."""
        return self.archived_decoding if view is None else self.decoding(view == "decoded")

    def restore_link(self, topic: str, partition: int, start: object = "", end: object = "") -> str:
        """Return the address of the page that plans a restore of offsets [`start`, `end`) of a partition.

        A topic whose name can't stand in a range (of a folder of the Java tool) is planned as a whole."""
        try:
            selected = {"range": str(parse_range(f"{topic}:{partition}:{start}-{end}"))}
        except ValueError:
            selected = {"topic": exact_entry(topic)}
        return self.link("restore", **selected)

    def archive_command(self, *words: str) -> str:
        """Return a command line on the archive of the page."""
        return kbackup_command(*words, "--archive", self.cache.store.url)

    def page(self, template: str, tab: str, **context: Any) -> HTMLResponse:
        shared = {"request": self, "link": self.link, "path": path, "tab": tab, "document_links": document_links}
        return page(template, {**shared, **context})


def page_request(request: Request, point: str = "latest") -> PageRequest:
    """Return the request of a page, as of a restore point that the address names."""
    newest_url = quote(request.scope["path"])
    other_parameters = [(name, value) for name, value in request.query_params.multi_items() if name != "point"]
    if other_parameters:
        newest_url += f"?{urlencode(other_parameters)}"
    app = request.app.state
    return PageRequest(app.cache, point or "latest", newest_url, app.decoder, app.restore_command)


Requested = Annotated[PageRequest, Depends(page_request)]
Number = Annotated[int, Query(alias="page", ge=1, le=1_000_000)]
CatalogNumber = Annotated[int | None, Query(ge=1, le=2**62)]


@dataclass(frozen=True)
class ListPage(Generic[T]):
    """A page of a list: `entries` from position `first` on, of `total`."""

    entries: Sequence[T]
    number: int
    pages: int
    first: int
    total: int

    @property
    def last(self) -> int:
        return self.first + len(self.entries) - 1


def list_page(everything: Sequence[T], number: int, size: int) -> ListPage[T]:
    """Return a page of a list; the last one for a higher number."""
    pages = max(1, math.ceil(len(everything) / size))
    number = min(number, pages)
    start = (number - 1) * size
    return ListPage(everything[start : start + size], number, pages, start + 1, len(everything))


def moment(text: str, *, up: bool = False) -> int:
    """Return a time of a form in ms since the epoch. Raises `BadInputError` if it is invalid."""
    try:
        return parse_time(text, now_ms(), up=up)
    except ValueError as error:
        told = not_a_time(text, error)
        raise BadInputError(told.message, told.hint) from None


def matches_search(text: str, query: str) -> bool:
    """Return whether `text` has each word of `query`."""
    return all(word in text.casefold() for word in query.casefold().split())


def find_partition(request: PageRequest, name: str, number: int) -> tuple[ArchivedTopic, ArchivedPartition]:
    return request.snapshot.topic(name), request.snapshot.partition(name, number)
