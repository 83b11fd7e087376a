"""The pages of records: the records of a partition, a record, its fields as downloads, and the search."""

from __future__ import annotations

import re
import time
from collections.abc import Container, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby
from typing import Annotated, Literal, NamedTuple

from fastapi import APIRouter, Depends, Query
from msgspec.structs import replace
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from kbackup.archive.query import find
from kbackup.archive.query.browse import Page, offset_at, page_before, page_from
from kbackup.archive.query.content import ArchivedPartition
from kbackup.archive.query.find import PARTS, Part, Pattern
from kbackup.archive.segments.window import Window
from kbackup.config.windows import ADDRESSES, TopicAddress, parse_address
from kbackup.errors import CorruptError, KbackupError, UsageError
from kbackup.formats.record import Row, rows
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from kbackup.util.times import time_text
from kbackup.web import render
from kbackup.web.archive_cache import ArchiveSnapshot
from kbackup.web.decoding import PageDecoding
from kbackup.web.render import indented, is_json
from kbackup.web.view import GET, BadInputError, PageRequest, Requested, find_partition, moment

router = APIRouter(default_response_class=HTMLResponse)

FieldView = Literal["bytes", "json"]


@router.api_route("/topics/{name}/{number}/records/{offset}/{field}", methods=GET, response_class=Response)
def field_of_record(
    request: Requested, name: str, number: int, offset: int, field: Literal["key", "value"], view: FieldView = "bytes"
) -> Response:
    """Return a key or a value."""
    row, _ = _find_record(request, name, number, offset)
    return _response(row.key if field == "key" else row.value, view, name, f"{number}-{offset}-{field}")


@router.api_route("/topics/{name}/{number}/records/{offset}/headers/{at}", methods=GET, response_class=Response)
def header(request: Requested, name: str, number: int, offset: int, at: int, view: FieldView = "bytes") -> Response:
    row, _ = _find_record(request, name, number, offset)
    if not 0 <= at < len(row.headers):
        raise UsageError(
            f"the record has no header {at}",
            f"give a number from 0 to {len(row.headers) - 1}" if row.headers else "see the page of the record",
        )
    return _response(row.headers[at][1], view, name, f"{number}-{offset}-header-{at}")


def _find_record(request: PageRequest, name: str, number: int, offset: int) -> tuple[Row, Page]:
    """Return a record, and the page that holds it alone. Raises `UsageError` if there is none at `offset`."""
    partition = request.snapshot.partition(name, number)
    page = page_from(request.snapshot.store, partition, offset, 1)
    if page.first != offset:
        raise UsageError(
            f"there is no record at offset {offset} of {TopicPartition(name, number)}",
            f"see the records of the partition: it has offsets {partition.start} to {partition.end} (exclusive), "
            "without those of compaction and transactions"
            + (f"; the next record is at {page.first}" if page.first is not None else ""),
        )
    (row,) = page.rows()
    return row, page


def _response(data: bytes | None, view: FieldView, topic: str, label: str) -> Response:
    """Return a field; its JSON is laid out while it is sent."""
    if data is None:
        raise UsageError("this field of the record is null", "see the page of the record")
    if view == "json":
        if not is_json(data):
            raise UsageError("this field of the record is not JSON", "see the page of the record")
        return StreamingResponse(indented(data), media_type="text/plain; charset=utf-8")
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", topic)[:100]
    disposition = f'attachment; filename="{safe}-{label}.bin"'
    return Response(data, media_type="application/octet-stream", headers={"content-disposition": disposition})


# The records of a partition, and a record.


View = Literal["lines", "decoded", "auto", "text", "json", "hex"]
Size = Annotated[int, Query(ge=1, le=500)]
MOST = 200
"""Number of headers on the page of a record."""
FEW = 20
"""Number of headers of a record on a page of records."""
_END = 2**63 - 1


@router.api_route("/topics/{name}/{number}/records", methods=GET)
def records(
    request: Requested,
    name: str,
    number: int,
    offset: str = "",
    before: str = "",
    time: str = "",
    start: int = 0,
    last: bool = False,
    n: Size = 50,
    view: View = "lines",
) -> Response:
    """Show records from an offset or a time on, or before an offset; by default from the start of the partition."""
    topic, partition = find_partition(request, name, number)
    note = ""
    if time.strip():
        match = offset_at(request.snapshot.store, partition, moment(time, up=True), start)
        if match.matched:
            query = {"offset": match.offset, "n": n, "view": view}
            return RedirectResponse(request.link("topics", name, number, "records", **query) + "#found", 303)
        if match.offset is not None:
            found = {"topic": topic, "partition": partition, "resume_at": match.offset}
            return request.page("seeking.html", "topics", **found, time=time, n=n, view=view)
        note = f"No record has a time of {time} or later: these are the last records."
        last = True
    if last or before.strip():
        page = page_before(request.snapshot.store, partition, _END if last else _offset(before), n)
    else:
        page = page_from(request.snapshot.store, partition, _offset(offset) if offset.strip() else 0, n)
    rows = list(page.rows())
    decoding = request.decoding(view == "decoded")
    tp = TopicPartition(name, number)
    cells = [decoding.shown(tp, row, render.line) for row in rows] if view in ("lines", "decoded") else []
    return request.page(
        "records.html",
        "topics",
        topic=topic,
        partition=partition,
        page=page,
        rows=rows,
        cells=cells,
        problem=decoding.problem,
        n=n,
        view=view,
        note=note,
        selected=page.first if offset.strip() else None,
        shown=lambda data, view: render.shown(data, view, render.PART),
        header=render.header_name,
        most=FEW,
    )


@router.api_route("/topics/{name}/{number}/records/{offset}", methods=GET)
def record(
    request: Requested,
    name: str,
    number: int,
    offset: int,
    view: render.View = "auto",
    go: Literal["", "next", "previous"] = "",
) -> Response:
    topic, partition = find_partition(request, name, number)
    if go:
        store = request.snapshot.store
        following = go == "next"
        neighbour = (
            page_from(store, partition, offset + 1, 1) if following else page_before(store, partition, offset, 1)
        )
        if neighbour.first is None:
            raise UsageError(
                f"there is no {go} record at offset {offset} of {name}-{number}", "see the records of the partition"
            )
        return RedirectResponse(request.link("topics", name, number, "records", neighbour.first, view=view), 303)
    row, page = _find_record(request, name, number, offset)
    decoding = request.decoding(view == "decoded")
    key, value = decoding.shown(TopicPartition(name, number), row, lambda data: render.shown(data, view))
    # the record's own time, for a restore up to it; not every one is a time that a restore takes
    moment = time_text(row.timestamp) if row.timestamp is not None and row.timestamp >= 0 else ""
    return request.page(
        "record.html",
        "topics",
        topic=topic,
        partition=partition,
        row=row,
        page=page,
        view=view,
        views=render.VIEWS,
        key=key,
        value=value,
        problem=decoding.problem,
        headers=[(render.header_name(k), render.shown(v, view, render.PART)) for k, v in row.headers[:MOST]],
        more=max(0, len(row.headers) - MOST),
        size=page.blocks[0].nbytes,
        moment=moment if moment.endswith("Z") else "",
    )


def _offset(text: str) -> int:
    digits = re.sub(r"[\s,_]", "", text)
    if not digits.isascii() or not digits.isdigit() or len(digits) > 19:
        raise BadInputError(f"{text} is not an offset", "give a number")
    return min(int(digits), _END)


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

    `bytes` were searched of `total` that may hold matches. `error` is the damage that ended the search."""

    matches: list[tuple[TopicPartition, Row]] = field(default_factory=list)
    bytes: int = 0
    total: int = 0
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
    snapshot: ArchiveSnapshot, pattern: Pattern, address: TopicAddress | None, times: Window, start: TopicAddress | None
) -> SearchResult:
    """Search the records of `address` (None: all topics) in the times of `times`, from `start` until the first bound of
    a page.

    Raises `UsageError` for an unknown topic or partition."""
    due = _due(snapshot, address, times, start)
    result = SearchResult(total=sum(find.to_search(each.partition, each.window)[1] for each in due))
    end = time.monotonic() + SECONDS
    with closing(_units(snapshot.store, due, pattern)) as units:
        try:
            for unit in units:
                _take(unit, result)
                if result.is_full or result.bytes >= BYTES or time.monotonic() >= end:
                    break
            else:
                result.resume_at = None
        except CorruptError as error:
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


def _units(store: Store, due: Sequence[_Due], pattern: Pattern) -> Generator[find.Searched, None, None]:
    """Search partitions in order; those with the same window share one search."""
    for window, members in groupby(due, lambda each: each.window):
        partitions = [(each.topic, each.partition) for each in members]
        with closing(find.search(store, partitions, pattern, window, threads=_THREADS, unit_bytes=_UNIT)) as units:
            yield from units


def _due(
    snapshot: ArchiveSnapshot, address: TopicAddress | None, times: Window, start: TopicAddress | None
) -> list[_Due]:
    """Return the partitions to search, each with the window of its records, in order of topic and number."""
    number: int | None
    topics, window, number = snapshot.catalogue.topics, times, None
    if address is not None:
        topics, number = (snapshot.topic(address.topic),), address.partition
        window = times.at_offsets(address.start, address.end)
        if number is not None:
            snapshot.partition(address.topic, number)
    every = [_Due(topic.name, p, window) for topic in topics for p in topic.partitions if number in (None, p.partition)]
    every.sort(key=lambda each: each.number)
    if start is None:
        return every
    first = (start.topic, start.partition or 0)
    return [each.after(start) if each.number == first else each for each in every if each.number >= first]


# The page that searches records, as `kbackup find` does.


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
    result, resume = None, None
    matches: list[Match] = []
    decoding = request.decoding(form.decode)
    if form.text:
        pattern, times, topics = form.pattern, form.times, request.snapshot.topics
        where, start = _address(form.where, topics), _address(form.at, topics)
        result = search_page(request.snapshot, pattern, where, times, start)
        matches = [_match(tp, row, pattern, decoding) for tp, row in result.matches]
        if result.resume_at is not None:
            topic, partition, offset, *_ = result.resume_at
            resume = request.link("search", **form.query(times), at=f"{topic}:{partition}:{offset}")
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


def _address(text: str, topics: Container[str]) -> TopicAddress | None:
    """Return the address that a field names; None for an empty field. Names in Java folders have any characters."""
    if not text.strip():
        return None
    try:
        return parse_address(text.strip())
    except ValueError:
        match = _ANY_TOPIC.fullmatch(text.strip())
        if match is not None and match["topic"] in topics:
            partition, offset = (int(n) if n else None for n in match.group("partition", "offset"))
            return TopicAddress(match["topic"], partition, offset)
        raise BadInputError(f"{text} is not an address in an archive", f"give {ADDRESSES}") from None


class Match(NamedTuple):
    """A row of the results. `header` is the first matching header, if neither key nor value matches."""

    tp: TopicPartition
    row: Row
    key: render.Shown
    value: render.Shown
    header: tuple[str, render.Shown] | None


def _match(tp: TopicPartition, row: Row, pattern: Pattern, decoding: PageDecoding) -> Match:
    key = pattern.position(row.key) if "key" in pattern.fields else None
    value = pattern.position(row.value) if "value" in pattern.fields else None
    header = None
    for name, data in row.headers if key is None and value is None else ():
        position = pattern.position(data)
        if position is not None or pattern.position(name) is not None:
            header = render.header_name(name), _excerpt(data, position)
            break
    if decoding.decoding is not None:
        return Match(tp, row, *decoding.shown(tp, row, render.line), header)
    return Match(tp, row, _excerpt(row.key, key), _excerpt(row.value, value), header)


def _excerpt(field: bytes | None, position: int | None) -> render.Shown:
    return render.excerpt(field, position) if field and position is not None else render.line(field)
