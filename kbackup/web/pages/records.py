"""The pages of records: the records of a partition, a record, and its fields as downloads."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from kbackup.archive.query.browse import Page, offset_at, page_before, page_from
from kbackup.errors import UsageError
from kbackup.formats.record import Row
from kbackup.types import TopicPartition
from kbackup.util.times import time_text
from kbackup.web import render
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
    data = row.key if field == "key" else row.value
    return _response(data, view, name, f"{number}-{offset}-{field}")


@router.api_route("/topics/{name}/{number}/records/{offset}/headers/{at}", methods=GET, response_class=Response)
def header(request: Requested, name: str, number: int, offset: int, at: int, view: FieldView = "bytes") -> Response:
    row, _ = _find_record(request, name, number, offset)
    if not 0 <= at < len(row.headers):
        hint = f"give a number from 0 to {len(row.headers) - 1}" if row.headers else "see the page of the record"
        raise UsageError(f"the record has no header {at}", hint)
    return _response(row.headers[at][1], view, name, f"{number}-{offset}-header-{at}")


def _find_record(request: PageRequest, name: str, number: int, offset: int) -> tuple[Row, Page]:
    """Return a record, and the page that holds it alone. Raises `UsageError` if there is none at `offset`."""
    partition = request.snapshot.partition(name, number)
    page = page_from(request.snapshot.store, partition, offset, 1)
    if page.first != offset:
        hint = (
            f"see the records of the partition: it has offsets {partition.start} to {partition.end} (exclusive), "
            "without those of compaction and transactions"
        )
        if page.first is not None:
            hint += f"; the next record is at {page.first}"
        raise UsageError(f"there is no record at offset {offset} of {TopicPartition(name, number)}", hint)
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
    # A topic of a folder of the Java tool may have any name: no sign of it may end the header.
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", topic)[:100]
    disposition = f'attachment; filename="{safe}-{label}.bin"'
    # As a download of unknown bytes: no browser runs what a record holds.
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
    view: View | None = None,
) -> Response:
    """Show records from an offset or a time on, or before an offset; by default from the start of the partition. They
    are decoded by themselves if the restore point has schemas for that: no registry is asked unasked."""
    topic, partition = find_partition(request, name, number)
    decoding = request.decoding_of(view)
    shape = view or ("decoded" if decoding.has(name) else "lines")
    note = ""
    if time.strip():
        match = offset_at(request.snapshot.store, partition, moment(time, up=True), start)
        if match.matched:
            # To an address with the offset: a reload, or a link that is passed on, need not search again.
            query = {"offset": match.offset, "n": n, "view": view}
            return RedirectResponse(request.link("topics", name, number, "records", **query) + "#found", 303)
        if match.offset is not None:
            # The search has read as much as one page may: the page that comes has a link to look further.
            found = {"topic": topic, "partition": partition, "resume_at": match.offset}
            return request.page("seeking.html", "topics", **found, time=time, n=n, view=view)
        note = f"No record has a time of {time} or later: these are the last records."
        last = True
    store = request.snapshot.store
    if last:
        page = page_before(store, partition, _END, n)
    elif before.strip():
        page = page_before(store, partition, _offset(before), n)
    else:
        start_offset = _offset(offset) if offset.strip() else 0
        page = page_from(store, partition, start_offset, n)
    rows = list(page.rows())
    tp = TopicPartition(name, number)
    cells = []
    if shape in ("lines", "decoded"):
        cells = [decoding.shown(tp, row, render.line) for row in rows]
    selected = page.first if offset.strip() else None
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
        shape=shape,
        note=note,
        selected=selected,
        shown=_part,
        header=render.header_name,
        most=FEW,
    )


def _part(data: bytes | None, view: render.View) -> render.Shown:
    """Return a field as a page of many records shows it: its beginning."""
    return render.shown(data, view, render.PART)


@router.api_route("/topics/{name}/{number}/records/{offset}", methods=GET)
def record(
    request: Requested,
    name: str,
    number: int,
    offset: int,
    view: render.View | None = None,
    go: Literal["", "next", "previous"] = "",
) -> Response:
    topic, partition = find_partition(request, name, number)
    decoding = request.decoding_of(view)
    shape: render.View = view or ("decoded" if decoding.has(name) else "auto")
    # The neighbour's offset is looked for when somebody goes there: compaction and transactions leave gaps.
    if go:
        store = request.snapshot.store
        if go == "next":
            neighbour = page_from(store, partition, offset + 1, 1)
        else:
            neighbour = page_before(store, partition, offset, 1)
        if neighbour.first is None:
            raise UsageError(
                f"there is no {go} record at offset {offset} of {name}-{number}", "see the records of the partition"
            )
        return RedirectResponse(request.link("topics", name, number, "records", neighbour.first, view=view), 303)
    row, page = _find_record(request, name, number, offset)

    def as_viewed(data: bytes | None) -> render.Shown:
        return render.shown(data, shape)

    key, value = decoding.shown(TopicPartition(name, number), row, as_viewed)
    headers = []
    for header_key, header_value in row.headers[:MOST]:
        headers.append((render.header_name(header_key), render.shown(header_value, shape, render.PART)))
    return request.page(
        "record.html",
        "topics",
        topic=topic,
        partition=partition,
        row=row,
        page=page,
        view=view,
        shape=shape,
        views=render.VIEWS,
        key=key,
        value=value,
        problem=decoding.problem,
        headers=headers,
        more=max(0, len(row.headers) - MOST),
        size=page.blocks[0].nbytes,
        moment=_restorable_time(row),
    )


def _restorable_time(row: Row) -> str:
    """Return the record's own time, for a restore up to it; '' if no restore takes it.

    Producers may set any timestamp: one before 1970, or one beyond the calendar, which has no RFC 3339 form."""
    if row.timestamp is None or row.timestamp < 0:
        return ""
    text = time_text(row.timestamp)
    return text if text.endswith("Z") else ""


def _offset(text: str) -> int:
    """Return the offset that a field of the form names, with or without separators of thousands."""
    digits = re.sub(r"[\s,_]", "", text)
    if not digits.isascii() or not digits.isdigit() or len(digits) > 19:
        raise BadInputError(f"{text} is not an offset", "give a number")
    return min(int(digits), _END)
