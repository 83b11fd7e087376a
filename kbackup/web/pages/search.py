"""The page that searches records, as `kbackup find` does, and its matches as a download."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Container, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import groupby
from typing import Annotated, NamedTuple

from anyio import from_thread
from fastapi import APIRouter, Depends, Query, Request
from markupsafe import Markup
from msgspec.structs import replace
from starlette.responses import HTMLResponse, Response, StreamingResponse

from kbackup.archive.query import find
from kbackup.archive.query.content import ArchivedPartition
from kbackup.archive.query.find import PARTS, Matches, Part, Pattern
from kbackup.archive.segments.window import Window
from kbackup.config.windows import ADDRESSES, TopicAddress, parse_address
from kbackup.errors import CorruptError, KbackupError, UsageError
from kbackup.formats.record import Row, rows
from kbackup.jobs.decoding import UNDECODED, Expression, document
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from kbackup.util.text import json_line
from kbackup.util.times import time_text
from kbackup.web import render
from kbackup.web.archive_cache import ArchiveSnapshot
from kbackup.web.decoding import BoundedProgram, PageDecoding, StoppedError, noted
from kbackup.web.view import GET, BadInputError, PageRequest, Requested, moment

router = APIRouter(default_response_class=HTMLResponse)
_END = 2**63 - 1

# Search records within the bounds of a page: so many matches, bytes and seconds. A later page resumes the search.


MATCHES = 50
"""Number of matches of a page."""
BYTES = 256 << 20
"""Bytes of records that a page searches; the last unit may exceed them."""
SECONDS = 5.0
"""Seconds after which a page ends with the unit that it waits for."""

ROOM = 8 << 20
"""Bytes of matches after which a page ends."""

_THREADS = 2
_UNIT = 2 << 20


@dataclass
class SearchResult:
    """Matches of a page. `resume_at` is the address of the next record to search, None at the end.

    `bytes` were searched. `error` is the damage that ended the search."""

    matches: list[tuple[TopicPartition, Row]] = field(default_factory=list)
    bytes: int = 0
    resume_at: TopicAddress | None = None
    error: KbackupError | None = None
    room: int = field(default_factory=lambda: ROOM)

    @property
    def is_full(self) -> bool:
        return len(self.matches) >= MATCHES or self.room <= 0


class _Due(NamedTuple):
    """A partition to search, and the window of its records."""

    topic: str
    partition: ArchivedPartition
    window: Window

    @property
    def number(self) -> tuple[str, int]:
        return self.topic, self.partition.partition

    def after(self, start: TopicAddress) -> _Due:
        """Return the partition without the records before `start`."""
        ((low, high),) = self.window.ranges or ((0, _END),)
        low = max(low, start.start or 0)
        ranges = ((low, high),) if low < high else ()
        return self._replace(window=replace(self.window, ranges=ranges))


def search_page(
    store: Store, due: Sequence[_Due], matches: Matches, is_gone: Callable[[], bool], unit_bytes: int = _UNIT
) -> SearchResult:
    """Search partitions until the first bound of a page, or until the one who asked is gone: after each unit of so many
    bytes this is looked at."""
    result = SearchResult()
    end = time.monotonic() + SECONDS
    with closing(_units(store, due, matches, unit_bytes)) as units:
        try:
            for unit in units:
                _take(unit, result)
                # After a whole unit, unless the page is full: `resume_at` is where the next page goes on without a gap.
                if result.is_full or result.bytes >= BYTES or time.monotonic() >= end or is_gone():
                    break
            else:
                result.resume_at = None  # all was searched
        except CorruptError as error:
            # What was found before the damage is shown, with the error behind it.
            result.error, result.resume_at = error, None
    return result


def _take(unit: find.Searched, result: SearchResult) -> None:
    """Add the matches of a unit, as many as the page has room for."""
    result.bytes += unit.bytes
    result.resume_at = TopicAddress(*unit.tp, unit.end)
    for tp, block in unit.matches:
        for row, length in zip(rows(block), block.lengths, strict=True):
            result.matches.append((tp, row))
            result.room -= int(length)
            if result.is_full:
                result.resume_at = TopicAddress(*tp, row.offset + 1)
                return


def _units(
    store: Store, due: Sequence[_Due], matches: Matches, unit_bytes: int = _UNIT
) -> Generator[find.Searched, None, None]:
    """Search partitions in order; those with the same window share one search."""
    for window, members in groupby(due, lambda each: each.window):
        partitions = [(each.topic, each.partition) for each in members]
        with closing(find.search(store, partitions, matches, window, threads=_THREADS, unit_bytes=unit_bytes)) as units:
            yield from units


def partitions_due(
    snapshot: ArchiveSnapshot, address: TopicAddress | None, times: Window, start: TopicAddress | None
) -> list[_Due]:
    """Return the partitions to search, each with the window of its records, in order of topic and number.

    Raises `UsageError` for an unknown topic or partition."""
    every = _all_due(snapshot, address, times)
    every.sort(key=_number)
    if start is None:
        return every
    # An earlier page has searched the partitions before this one, and this one up to the offset of `start`.
    first = (start.topic, start.partition or 0)
    rest = [each for each in every if each.number >= first]
    if rest and rest[0].number == first:
        rest[0] = rest[0].after(start)
    return rest


def _all_due(snapshot: ArchiveSnapshot, address: TopicAddress | None, times: Window) -> list[_Due]:
    every: list[_Due] = []
    if address is None:
        for topic in snapshot.catalogue.topics:
            every += [_Due(topic.name, partition, times) for partition in topic.partitions]
        return every
    window = times.at_offsets(address.start, address.end)
    topic = snapshot.topic(address.topic)
    if address.partition is not None:
        partition = snapshot.partition(topic.name, address.partition)
        return [_Due(topic.name, partition, window)]
    return [_Due(topic.name, partition, window) for partition in topic.partitions]


def _number(due: _Due) -> tuple[str, int]:
    return due.number


# The form of the page.


FIELDS = {"text": "text", "jq": "jq", "where": "topic", "at": "from record", "from_time": "from", "to_time": "to"}
"""Labels of the input fields."""

MAX_TEXT = 1000
"""Number of characters of an input field."""
_TOPICS = 1000  # suggested
_ANY_TOPIC = re.compile(r"(?P<topic>[^/]+?)(?::(?P<partition>[0-9]{1,10})(?::(?P<offset>[0-9]{1,19}))?)?")

Text = Annotated[str, Query(max_length=MAX_TEXT)]


@dataclass(frozen=True)
class SearchForm:
    """The input fields. `fields` are the fields of a record to search; without any, all are searched."""

    text: Text = ""
    jq: Text = ""
    where: Text = ""
    at: Text = ""
    from_time: Text = ""
    to_time: Text = ""
    regex: bool = False
    ignore_case: bool = False
    decode: bool = False
    """The schema registry is asked for what the restore point lacks."""
    raw: bool = False
    """Records are shown as they are archived."""
    fields: Annotated[tuple[Part, ...], Query(alias="in")] = ()
    done: Annotated[int, Query(ge=0)] = 0
    """Bytes that earlier slices of the same search have searched."""

    @property
    def asks(self) -> bool:
        return bool(self.text or self.jq.strip())

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
        start, end = None, None
        if self.from_time.strip():
            start = moment(self.from_time, up=True)  # the millisecond in which the time lies begins before it
        if self.to_time.strip():
            end = moment(self.to_time)
        return Window(from_time=start, to_time=end)

    def query(self, times: Window) -> dict[str, object]:
        """Return the parameters of an address that repeats the search, with `times` that stay the same."""
        from_time = None if times.from_time is None else time_text(times.from_time)
        to_time = None if times.to_time is None else time_text(times.to_time)
        return {
            "text": self.text or None,
            "jq": self.jq.strip() or None,
            "where": self.where.strip() or None,
            "from_time": from_time,
            "to_time": to_time,
            "regex": self.regex or None,
            "ignore_case": self.ignore_case or None,
            "decode": self.decode or None,
            "raw": self.raw or None,
            "in": self.fields or None,
        }


class _Search:
    """A search by a form: what to look for, where, and the partitions from the record `at` on. Close it with `ends`.

    Raises `UsageError` for invalid input, and for unknown topics and partitions."""

    def __init__(self, request: PageRequest, form: SearchForm, decoding: PageDecoding, ends: ExitStack) -> None:
        self.pattern = form.pattern if form.text else None
        self.times = form.times
        topics = request.snapshot.topics
        where = _address(form.where, topics)
        start = _address(form.at, topics)
        self.every = partitions_due(request.snapshot, where, self.times, None)
        self.due = self.every
        if start is not None:
            self.due = partitions_due(request.snapshot, where, self.times, start)
        self.expression: Expression | None = None
        jq = form.jq.strip()
        if not jq:
            return

        def compile_bounded(text: str) -> BoundedProgram:
            """Compile an expression in a process of its own, which ends with the search."""
            program = BoundedProgram(text)
            return ends.enter_context(closing(program))

        try:
            self.expression = Expression(jq, decoding.tested, self.pattern, "the jq expression", compile_bounded)
        except UsageError as error:
            raise BadInputError(error.message, error.hint) from None

    @property
    def matches(self) -> Matches:
        matches = self.expression or self.pattern
        if matches is None:
            raise BadInputError("no search text is given", "give a text or a jq expression")
        return matches


@router.api_route("/search", methods=GET)
def search(request: Requested, http: Request, form: Annotated[SearchForm, Depends()]) -> HTMLResponse:
    """Search records from address `at` on, within the bounds of a page; a link resumes the search."""
    decoding = _decoding(request, form)
    shown: dict[str, object] = {"result": None}
    error: UsageError | None = None
    if form.asks:
        try:
            shown = _search(request, http, form, decoding)
        except UsageError as raised:
            error = raised
    page = request.page(
        "search.html",
        "search",
        form=form,
        fields=PARTS,
        error=error,
        problem=decoding.problem,
        topics=[*request.snapshot.topics][:_TOPICS],
        **shown,
    )
    if error is not None:
        page.status_code = 400 if isinstance(error, BadInputError | StoppedError) else 404
    return page


def _decoding(request: PageRequest, form: SearchForm) -> PageDecoding:
    if form.decode or form.raw:
        return request.decoding(form.decode and not form.raw)
    return request.archived_decoding


def _search(request: PageRequest, http: Request, form: SearchForm, decoding: PageDecoding) -> dict[str, object]:
    """Search a page of matches, and return what its template shows."""

    def is_gone() -> bool:
        """Ask the event loop whether the browser has left: a search that nobody reads ends."""
        return from_thread.run(http.is_disconnected)

    with ExitStack() as ends:
        search = _Search(request, form, decoding, ends)
        result = search_page(request.snapshot.store, search.due, search.matches, is_gone)
    query = form.query(search.times)
    searched = form.done + result.bytes
    resume: str | None = None
    if result.resume_at is not None:
        topic, partition, offset, *_ = result.resume_at
        resume = request.link("search", **query, at=f"{topic}:{partition}:{offset}", done=searched)
    bytes_to_search = 0
    for each in search.every:
        _, nbytes = find.to_search(each.partition, each.window)
        bytes_to_search += nbytes
    # What earlier pages searched comes with the address. Records that expired since are in it, but not in the sum.
    total = max(searched, bytes_to_search)
    matches = [_match(tp, row, search.pattern, decoding) for tp, row in result.matches]
    return {
        "result": result,
        "searched": searched,
        "total": total,
        "matches": matches,
        "resume": resume,
        "expression": search.expression,
        "download": request.link("search.ndjson", **query),
    }


@router.api_route("/search.ndjson", methods=GET, response_class=Response)
def download(request: Requested, http: Request, form: Annotated[SearchForm, Depends()]) -> Response:
    """Send every match from address `at` on, as `kbackup find --output json` prints it."""
    decoding = _decoding(request, form)
    if form.decode and decoding.problem:
        raise BadInputError(decoding.problem, "leave “ask the schema registry” out")
    lines: Iterator[str] = iter(())
    with ExitStack() as ends:
        search = _Search(request, form, decoding, ends)
        matches = search.matches
        # Nobody reads the body of a HEAD, and so nobody would close what the lines take over.
        if http.method != "HEAD":
            lines = _lines(request.snapshot.store, search.due, matches, decoding, ends.pop_all())
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", form.where.strip() or "all-topics").lstrip(".")[:100]
    disposition = f'attachment; filename="{safe}-matches.ndjson"'
    return StreamingResponse(lines, media_type="application/x-ndjson", headers={"content-disposition": disposition})


def _lines(
    store: Store, due: Sequence[_Due], matches: Matches, decoding: PageDecoding, ends: ExitStack
) -> Iterator[str]:
    """Yield a line of JSON for each match, and '' for each unit: the search ends soon after the client has left."""
    chosen = decoding.decoding
    with ends, closing(_units(store, due, matches)) as units:
        for unit in units:
            yield ""
            for tp, block in unit.matches:
                for row in rows(block):
                    made = UNDECODED if chosen is None else chosen.decode_uncounted(tp, row)
                    shown = document(tp, row, made)
                    yield json_line(shown) + "\n"


def _address(text: str, topics: Container[str]) -> TopicAddress | None:
    """Return the address that a field names; None for an empty field."""
    text = text.strip()
    if not text:
        return None
    try:
        return parse_address(text)
    except ValueError:
        pass
    # Topics in folders of the Java tool may have names of any characters.
    match = _ANY_TOPIC.fullmatch(text)
    if match is None or match["topic"] not in topics:
        raise BadInputError(f"{text} is not an address in an archive", f"give {ADDRESSES}")
    partition = int(match["partition"]) if match["partition"] else None
    offset = int(match["offset"]) if match["offset"] else None
    return TopicAddress(match["topic"], partition, offset)


HEADERS = 20
"""Number of headers of a match."""
_BEFORE = 40  # bytes of a value before its match
_BEFORE_KEY = 8


class Match(NamedTuple):
    """A row of the results, and the whole record. `header` is the first matching header, if neither key nor value
    matches."""

    tp: TopicPartition
    row: Row
    key: render.Shown
    value: render.Shown
    header: tuple[Markup, render.Shown] | None
    whole_key: render.Shown
    whole_value: render.Shown
    headers: list[tuple[Markup, render.Shown]]


class _FoundHeader(NamedTuple):
    """A header of a match, and where the pattern is in its name and in its value."""

    name: bytes
    value: bytes | None
    in_name: render.Spans
    in_value: render.Spans


def _match(tp: TopicPartition, row: Row, pattern: Pattern | None, decoding: PageDecoding) -> Match:
    def spans(part: Part, data: bytes | None) -> list[tuple[int, int]]:
        """Return where the pattern is in a part of the record; nowhere in a part that was not searched."""
        if pattern is None or not data or part not in pattern.fields:
            return []
        return pattern.spans(data)

    key, value = decoding.fields(tp, row)
    in_key, in_value = spans("key", key.data), spans("value", value.data)
    headers: list[_FoundHeader] = []
    for name, data in row.headers:
        in_name = spans("headers", name)
        in_data = spans("headers", data)
        headers.append(_FoundHeader(name, data, in_name, in_data))
    first: tuple[Markup, render.Shown] | None = None
    if not in_key and not in_value:
        first = _first_match(headers)
    # The row of the table shows where the match is; the whole record below it shows the fields from their beginning.
    short_key = render.excerpt(key.data, in_key, _BEFORE_KEY)
    short_value = render.excerpt(value.data, in_value, _BEFORE)
    view: render.View = "decoded" if decoding.decoding is not None else "auto"
    whole_key = render.shown(key.data, view, render.PART, in_key)
    whole_value = render.shown(value.data, view, render.PART, in_value)
    whole_headers: list[tuple[Markup, render.Shown]] = []
    for header in headers[:HEADERS]:
        header_name = render.header_name(header.name, header.in_name)
        header_value = render.shown(header.value, view, render.LINE, header.in_value)
        whole_headers.append((header_name, header_value))
    return Match(
        tp=tp,
        row=row,
        key=noted(short_key, key),
        value=noted(short_value, value),
        header=first,
        whole_key=noted(whole_key, key),
        whole_value=noted(whole_value, value),
        headers=whole_headers,
    )


def _first_match(headers: Sequence[_FoundHeader]) -> tuple[Markup, render.Shown] | None:
    """Return the name and the value of the first header that matches, for the row of the table."""
    for header in headers:
        if header.in_name or header.in_value:
            name = render.header_name(header.name, header.in_name)
            return name, render.excerpt(header.value, header.in_value, _BEFORE_KEY)
    return None
