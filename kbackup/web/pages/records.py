"""The pages of records: the records of a partition, a record, and the bytes of a field."""

from __future__ import annotations

import re
import time as clock
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from starlette.responses import HTMLResponse, RedirectResponse, Response

from kbackup.archive.query.content import ArchivedPartition
from kbackup.archive.query.pages import Page, offset_at, page_before, page_from
from kbackup.config import parse_time
from kbackup.config.windows import TIMES
from kbackup.errors import UsageError
from kbackup.formats.rows import Row
from kbackup.types import TopicPartition
from kbackup.web import values
from kbackup.web.view import GET, BadInputError, PageRequest, Requested, find_partition

router = APIRouter(default_response_class=HTMLResponse)

View = Literal["lines", "auto", "text", "json", "hex"]
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
        match = offset_at(request.snapshot.store, partition, _time(time), start)
        if match.matched:
            query = {"offset": match.offset, "n": n, "view": view}
            return RedirectResponse(request.link("topics", name, number, "records", **query) + "#found", 303)
        if match.offset is not None:
            return request.page(
                "seeking.html",
                "topics",
                topic=topic,
                partition=partition,
                time=time,
                resume_at=match.offset,
                n=n,
                view=view,
            )
        note = f"No record has a time of {time} or later: these are the last records."
        last = True
    if last or before.strip():
        page = page_before(request.snapshot.store, partition, _END if last else _offset(before), n)
    else:
        page = page_from(request.snapshot.store, partition, _offset(offset) if offset.strip() else 0, n)
    return request.page(
        "records.html",
        "topics",
        topic=topic,
        partition=partition,
        page=page,
        rows=list(page.rows()),
        n=n,
        view=view,
        note=note,
        selected=_selected_offset(offset, page),
        line=values.line,
        shown=_shown_part,
        header=values.name,
        most=FEW,
    )


@router.api_route("/topics/{name}/{number}/records/{offset}", methods=GET)
def record(
    request: Requested,
    name: str,
    number: int,
    offset: int,
    view: values.View = "auto",
    go: Literal["", "next", "previous"] = "",
) -> Response:
    topic, partition = find_partition(request, name, number)
    if go:
        neighbour = (
            page_from(request.snapshot.store, partition, offset + 1, 1)
            if go == "next"
            else page_before(request.snapshot.store, partition, offset, 1)
        )
        if neighbour.first is None:
            raise UsageError(
                f"there is no {go} record at offset {offset} of {name}-{number}",
                "see the records of the partition",
            )
        return RedirectResponse(
            request.link("topics", name, number, "records", neighbour.first, view=view), 303
        )
    row, page = _one(request, partition, name, offset)
    return request.page(
        "record.html",
        "topics",
        topic=topic,
        partition=partition,
        row=row,
        page=page,
        view=view,
        views=values.VIEWS,
        key=values.shown(row.key, view),
        value=values.shown(row.value, view),
        headers=[(values.name(k), values.shown(v, view, values.PART)) for k, v in row.headers[:MOST]],
        more=max(0, len(row.headers) - MOST),
        size=page.blocks[0].nbytes,
    )


@router.api_route("/topics/{name}/{number}/records/{offset}/{field}", methods=GET)
def field(
    request: Requested, name: str, number: int, offset: int, field: Literal["key", "value"]
) -> Response:
    """Return the bytes of a key or a value."""
    _, partition = find_partition(request, name, number)
    row, _ = _one(request, partition, name, offset)
    return _bytes(row.key if field == "key" else row.value, name, number, offset, field)


@router.api_route("/topics/{name}/{number}/records/{offset}/headers/{at}", methods=GET)
def header(request: Requested, name: str, number: int, offset: int, at: int) -> Response:
    _, partition = find_partition(request, name, number)
    row, _ = _one(request, partition, name, offset)
    if not 0 <= at < len(row.headers):
        raise UsageError(
            f"the record has no header {at}",
            f"give a number from 0 to {len(row.headers) - 1}"
            if row.headers
            else "see the page of the record",
        )
    return _bytes(row.headers[at][1], name, number, offset, f"header-{at}")


def _one(request: PageRequest, partition: ArchivedPartition, name: str, offset: int) -> tuple[Row, Page]:
    page = page_from(request.snapshot.store, partition, offset, 1)
    if page.first != offset:
        raise UsageError(
            f"there is no record at offset {offset} of {TopicPartition(name, partition.partition)}",
            f"see the records of the partition: it has offsets {partition.start} to {partition.end} (exclusive), "
            "without those of compaction and transactions"
            + (f"; the next record is at {page.first}" if page.first is not None else ""),
        )
    (row,) = page.rows()
    return row, page


def _bytes(data: bytes | None, name: str, number: int, offset: int, field: str) -> Response:
    if data is None:
        raise UsageError(f"the {field} of that record is null", "see the page of the record")
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:100]
    disposition = f'attachment; filename="{safe}-{number}-{offset}-{field}.bin"'
    return Response(data, media_type="application/octet-stream", headers={"content-disposition": disposition})


def _shown_part(data: bytes | None, view: View) -> values.Shown:
    return values.shown(data, "auto" if view == "lines" else view, values.PART)


def _selected_offset(offset: str, page: Page) -> int | None:
    """Return the offset of the record to highlight."""
    return page.first if offset.strip() else None


def _offset(text: str) -> int:
    digits = re.sub(r"[\s,_]", "", text)
    if not digits.isascii() or not digits.isdigit() or len(digits) > 19:
        raise BadInputError(f"{text} is not an offset", "give a number")
    return min(int(digits), _END)


def _time(text: str) -> int:
    try:
        return parse_time(text, int(clock.time() * 1000), up=True)
    except ValueError:
        raise BadInputError(f"{text} is not a time", f"give {TIMES}") from None
