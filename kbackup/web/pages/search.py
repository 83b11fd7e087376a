"""The page that searches records, as `kbackup find` does."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Depends, Query
from starlette.responses import HTMLResponse

from kbackup.archive.query.find import PARTS, Part, Pattern
from kbackup.archive.query.window import Window
from kbackup.config.windows import ADDRESSES, Address, parse_address
from kbackup.errors import UsageError
from kbackup.formats.rows import Row
from kbackup.types import TopicPartition
from kbackup.util.times import time_text
from kbackup.web import values
from kbackup.web.decoding import PageDecoding
from kbackup.web.search import SearchRequest, SearchResult, search_page
from kbackup.web.view import GET, BadInputError, Requested, moment

router = APIRouter(default_response_class=HTMLResponse)

FIELDS = {"text": "text", "where": "topic", "at": "from record", "from_time": "from", "to_time": "to"}
"""Labels of the input fields."""

MAX_TEXT = 1000
"""Number of characters of an input field."""
_TOPICS = 1000  # suggested
_ANY_TOPIC = re.compile(r"(?P<topic>[^/]+?)(?::(?P<partition>[0-9]{1,10})(?::(?P<offset>[0-9]{1,19}))?)?")

Text = Annotated[str, Query(max_length=MAX_TEXT)]


@dataclass(frozen=True)
class SearchForm:
    """The input fields. `fields` are those of a record to search: all without any."""

    text: Text = ""
    where: Text = ""
    at: Text = ""
    from_time: Text = ""
    to_time: Text = ""
    regex: bool = False
    ignore_case: bool = False
    decode: bool = False
    fields: Annotated[tuple[Part, ...], Query(alias="in")] = ()

    @property
    def pattern(self) -> Pattern:
        """The pattern to search for. Raises `BadInputError` for an invalid regular expression."""
        searched = tuple(part for part in PARTS if not self.fields or part in self.fields)
        pattern = Pattern(self.text, self.regex, self.ignore_case, searched)
        try:
            pattern.require()
        except UsageError as error:
            raise BadInputError(error.message, error.hint) from None
        return pattern

    @property
    def times(self) -> Window:
        start = moment(self.from_time, up=True) if self.from_time.strip() else None
        end = moment(self.to_time) if self.to_time.strip() else None
        return Window(from_time=start, to_time=end)

    def query(self, times: Window) -> dict[str, object]:
        """Return the parameters of an address that repeats the search, with `times` that stay the same."""
        return {
            "text": self.text,
            "where": self.where.strip() or None,
            "from_time": None if times.from_time is None else time_text(times.from_time),
            "to_time": None if times.to_time is None else time_text(times.to_time),
            "regex": self.regex or None,
            "ignore_case": self.ignore_case or None,
            "decode": self.decode or None,
            "in": self.fields or None,
        }


@router.api_route("/search", methods=GET)
def search(request: Requested, form: Annotated[SearchForm, Depends()]) -> HTMLResponse:
    """Search records from address `at` on, within the bounds of a page; a link resumes the search."""
    result, matches, resume = None, [], None
    decoding = request.decoding(form.decode)
    if form.text:
        pattern, times, topics = form.pattern, form.times, request.snapshot.topics
        asked = SearchRequest(pattern, _address(form.where, topics), times, _address(form.at, topics))
        result = search_page(request.snapshot, asked)
        matches = [_match(tp, row, pattern, decoding) for tp, row in result.matches]
        resume = _resume(request, form.query(times), result)
    return request.page(
        "search.html",
        "search",
        form=form,
        fields=PARTS,
        result=result,
        matches=matches,
        resume=resume,
        problem=decoding.problem,
        topics=[*request.snapshot.topics][:_TOPICS],
    )


def _resume(request: Requested, query: dict[str, object], result: SearchResult) -> str | None:
    if result.resume_at is None:
        return None
    topic, partition, offset, *_ = result.resume_at
    return request.link("search", **query, at=f"{topic}:{partition}:{offset}")


def _address(text: str, topics: Container[str]) -> Address | None:
    """Return the address that a field names; None for an empty field. Names in Java folders have any characters."""
    if not text.strip():
        return None
    try:
        return parse_address(text.strip())
    except ValueError:
        match = _ANY_TOPIC.fullmatch(text.strip())
        if match is not None and match["topic"] in topics:
            partition, offset = (int(n) if n else None for n in match.group("partition", "offset"))
            return Address(match["topic"], partition, offset)
        raise BadInputError(f"{text} is not an address in an archive", f"give {ADDRESSES}") from None


class Match(NamedTuple):
    """A row of the results. `header` is the first matching header, if neither key nor value matches."""

    tp: TopicPartition
    row: Row
    key: values.Shown
    value: values.Shown
    header: tuple[str, values.Shown] | None


def _match(tp: TopicPartition, row: Row, pattern: Pattern, decoding: PageDecoding) -> Match:
    key = pattern.position(row.key) if "key" in pattern.fields else None
    value = pattern.position(row.value) if "value" in pattern.fields else None
    header = _header(row, pattern) if key is None and value is None else None
    if decoding.decoding is not None:
        return Match(tp, row, *decoding.lines(tp, row), header)
    return Match(tp, row, _excerpt(row.key, key), _excerpt(row.value, value), header)


def _header(row: Row, pattern: Pattern) -> tuple[str, values.Shown] | None:
    for name, value in row.headers:
        position = pattern.position(value)
        if position is not None or pattern.position(name) is not None:
            return values.name(name), _excerpt(value, position)
    return None


def _excerpt(field: bytes | None, position: int | None) -> values.Shown:
    return values.excerpt(field, position) if field and position is not None else values.line(field)
