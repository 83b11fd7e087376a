"""Records of a partition, in pages and one by one."""

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
from kbackup.web.view import GET, BadInputError, Look, Looking, place

router = APIRouter(default_response_class=HTMLResponse)

View = Literal["lines", "auto", "text", "json", "hex"]
Size = Annotated[int, Query(ge=1, le=500)]
MOST = 200
"""Headers of a record that its own page shows."""
FEW = 20
"""Headers of a record that a page of records shows."""
_END = 2**63 - 1


@router.api_route("/topics/{name}/{number}/records", methods=GET)
def records(
    look: Look,
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
    """From an offset or a time on, or before an offset; the partition's beginning where nothing is said."""
    topic, held = place(look, name, number)
    note = ""
    if time.strip():
        sought = offset_at(look.at.store, held, _time(time), start)
        if sought.found:
            query = {"offset": sought.offset, "n": n, "view": view}
            return RedirectResponse(look.link("topics", name, number, "records", **query) + "#found", 303)
        if sought.offset is not None:
            return look.page(
                "seeking.html",
                "topics",
                topic=topic,
                partition=held,
                time=time,
                go_on=sought.offset,
                n=n,
                view=view,
            )
        note = f"No record has a time of {time} or later: these are the last ones."
        last = True
    if last or before.strip():
        page = page_before(look.at.store, held, _END if last else _offset(before), n)
    else:
        page = page_from(look.at.store, held, _offset(offset) if offset.strip() else 0, n)
    return look.page(
        "records.html",
        "topics",
        topic=topic,
        partition=held,
        page=page,
        rows=list(page.rows()),
        n=n,
        view=view,
        note=note,
        wanted=_wanted(offset, page),
        line=values.line,
        shown=_shown_part,
        header=values.name,
        most=FEW,
    )


@router.api_route("/topics/{name}/{number}/records/{offset}", methods=GET)
def record(
    look: Look,
    name: str,
    number: int,
    offset: int,
    view: values.View = "auto",
    go: Literal["", "next", "previous"] = "",
) -> Response:
    topic, held = place(look, name, number)
    if go:
        turned = (
            page_from(look.at.store, held, offset + 1, 1)
            if go == "next"
            else page_before(look.at.store, held, offset, 1)
        )
        if turned.first is None:
            raise UsageError(
                f"there is no {go} record at offset {offset} of {name}-{number}", "it is the last one"
            )
        return RedirectResponse(look.link("topics", name, number, "records", turned.first, view=view), 303)
    row, page = _one(look, held, name, offset)
    return look.page(
        "record.html",
        "topics",
        topic=topic,
        partition=held,
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
def field(look: Look, name: str, number: int, offset: int, field: Literal["key", "value"]) -> Response:
    """The bytes themselves."""
    _, held = place(look, name, number)
    row, _ = _one(look, held, name, offset)
    return _bytes(row.key if field == "key" else row.value, name, number, offset, field)


@router.api_route("/topics/{name}/{number}/records/{offset}/headers/{at}", methods=GET)
def header(look: Look, name: str, number: int, offset: int, at: int) -> Response:
    _, held = place(look, name, number)
    row, _ = _one(look, held, name, offset)
    if not 0 <= at < len(row.headers):
        raise UsageError(f"the record has no header {at}", f"it has {len(row.headers)}, from 0 on")
    return _bytes(row.headers[at][1], name, number, offset, f"header-{at}")


def _one(look: Looking, held: ArchivedPartition, name: str, offset: int) -> tuple[Row, Page]:
    page = page_from(look.at.store, held, offset, 1)
    if page.first != offset:
        raise UsageError(
            f"there is no record at offset {offset} of {TopicPartition(name, held.partition)}",
            f"archived are offsets {held.start} to {held.end} (exclusive), with gaps where compaction or transactions "
            "left them" + (f": the next record is at {page.first}" if page.first is not None else ""),
        )
    (row,) = page.rows()
    return row, page


def _bytes(data: bytes | None, name: str, number: int, offset: int, field: str) -> Response:
    if data is None:
        raise UsageError(f"the {field} of that record is null", "there are no bytes of it")
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:100]
    disposition = f'attachment; filename="{safe}-{number}-{offset}-{field}.bin"'
    return Response(data, media_type="application/octet-stream", headers={"content-disposition": disposition})


def _shown_part(data: bytes | None, view: View) -> values.Shown:
    return values.shown(data, "auto" if view == "lines" else view, values.PART)


def _wanted(offset: str, page: Page) -> int | None:
    """What was jumped to."""
    return page.first if offset.strip() else None


def _offset(text: str) -> int:
    digits = re.sub(r"[\s,_]", "", text)
    if not digits.isascii() or not digits.isdigit() or len(digits) > 19:
        raise BadInputError(f"{text} is no offset", "give a number")
    return min(int(digits), _END)


def _time(text: str) -> int:
    try:
        return parse_time(text, int(clock.time() * 1000), up=True)
    except ValueError:
        raise BadInputError(f"{text} is no time", f"give {TIMES}") from None
