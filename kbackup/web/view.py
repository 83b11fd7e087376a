"""What a request looks at: the archive as of the restore point that it names, and addresses that stay with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Generic, TypeVar
from urllib.parse import quote, urlencode

from fastapi import Depends, Query, Request
from starlette.responses import HTMLResponse

from kbackup.archive.query.content import ArchivedPartition, ArchivedTopic
from kbackup.errors import UsageError
from kbackup.web.archive_cache import Held, Snapshot
from kbackup.web.render import page, path

T = TypeVar("T")

GET = ["GET", "HEAD"]


class BadInputError(UsageError):
    """What stands in an address or a form can't be used."""


@dataclass
class Looking:
    """`newest` is the address of the same page as of the newest restore point."""

    held: Held
    wanted: str
    newest: str

    @cached_property
    def at(self) -> Snapshot:
        return self.held.snapshot(self.wanted)

    def link(self, *parts: object, **query: object) -> str:
        """An address that stays with the restore point, unless it is the newest."""
        return path(*parts, **{"point": None if self.wanted == "latest" else self.wanted, **query})

    def page(self, template: str, tab: str, **context: Any) -> HTMLResponse:
        return page(template, {"look": self, "link": self.link, "path": path, "tab": tab, **context})


def looking(request: Request, point: str = "latest") -> Looking:
    query = [(name, value) for name, value in request.query_params.multi_items() if name != "point"]
    here = quote(request.scope["path"]) + (f"?{urlencode(query)}" if query else "")
    return Looking(request.app.state.held, point, here)


Look = Annotated[Looking, Depends(looking)]
Number = Annotated[int, Query(alias="page", ge=1, le=1_000_000)]


@dataclass(frozen=True)
class Part(Generic[T]):
    """A page of a list: `some` of `total`, of which `all` there are before a search."""

    some: Sequence[T]
    number: int
    pages: int
    first: int
    total: int

    @property
    def last(self) -> int:
        return self.first + len(self.some) - 1


def part(everything: Sequence[T], number: int, size: int) -> Part[T]:
    pages = max(1, math.ceil(len(everything) / size))
    number = min(number, pages)
    start = (number - 1) * size
    return Part(everything[start : start + size], number, pages, start + 1, len(everything))


def matching(text: str, wanted: str) -> bool:
    """Whether each word of `wanted` stands in `text`."""
    return all(word in text.casefold() for word in wanted.casefold().split())


def place(look: Looking, name: str, number: int) -> tuple[ArchivedTopic, ArchivedPartition]:
    return look.at.topic(name), look.at.partition(name, number)
