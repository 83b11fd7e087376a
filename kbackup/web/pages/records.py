"""The pages of records: the records of a partition, and a record."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from starlette.responses import HTMLResponse, RedirectResponse, Response

from kbackup.archive.query.pages import Page, offset_at, page_before, page_from
from kbackup.errors import UsageError
from kbackup.formats.rows import Row
from kbackup.types import TopicPartition
from kbackup.util.times import time_text
from kbackup.web import values
from kbackup.web.pages.fields import find_record
from kbackup.web.view import GET, BadInputError, Requested, find_partition, moment

router = APIRouter(default_response_class=HTMLResponse)

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
    rows = list(page.rows())
    decoding = request.decoding(view == "decoded")
    tp = TopicPartition(name, number)
    cells = [decoding.lines(tp, row) for row in rows] if view in ("lines", "decoded") else []
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
        selected=_selected_offset(offset, page),
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
    row, page = find_record(request, partition, name, offset)
    decoding = request.decoding(view == "decoded")
    key, value = decoding.shown(TopicPartition(name, number), row, view)
    return request.page(
        "record.html",
        "topics",
        topic=topic,
        partition=partition,
        row=row,
        page=page,
        view=view,
        views=values.VIEWS,
        key=key,
        value=value,
        problem=decoding.problem,
        headers=[(values.name(k), values.shown(v, view, values.PART)) for k, v in row.headers[:MOST]],
        more=max(0, len(row.headers) - MOST),
        size=page.blocks[0].nbytes,
        moment=_moment(row),
    )


def _shown_part(data: bytes | None, view: View) -> values.Shown:
    return values.shown(data, "auto" if view == "lines" else view, values.PART)


def _selected_offset(offset: str, page: Page) -> int | None:
    """Return the offset of the record to highlight."""
    return page.first if offset.strip() else None


def _moment(row: Row) -> str:
    """Return the record's own time for a restore up to it; '' without one that a restore takes."""
    if row.timestamp is None or row.timestamp < 0:
        return ""
    moment = time_text(row.timestamp)
    return moment if moment.endswith("Z") else ""


def _offset(text: str) -> int:
    digits = re.sub(r"[\s,_]", "", text)
    if not digits.isascii() or not digits.isdigit() or len(digits) > 19:
        raise BadInputError(f"{text} is not an offset", "give a number")
    return min(int(digits), _END)
