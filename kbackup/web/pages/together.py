"""The page of a topic's records, of all its partitions together, in order of time."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from starlette.responses import HTMLResponse, RedirectResponse, Response

from kbackup.archive.query.together import PARTITIONS, Position, position_at, together_before, together_from
from kbackup.types import TopicPartition
from kbackup.web import render
from kbackup.web.pages.records import Size
from kbackup.web.view import GET, BadInputError, Requested, list_page, moment

router = APIRouter(default_response_class=HTMLResponse)

View = Literal["lines", "decoded"]
Group = Annotated[int, Query(ge=1, le=1_000_000)]


@router.api_route("/topics/{name}/records", methods=GET)
def records_together(
    request: Requested,
    name: str,
    start: str = "",
    before: str = "",
    time: str = "",
    last: bool = False,
    group: Group = 1,
    n: Size = 50,
    view: View | None = None,
) -> Response:
    """Show the records of a topic from a position or a time on, or before a position; by default from its beginning.
    Of a topic with many partitions, a `group` of them is shown."""
    topic = request.snapshot.topic(name)
    partitions = list_page(topic.partitions, group, PARTITIONS)
    store = request.snapshot.store
    note = ""
    if time.strip():
        sought = position_at(store, partitions.entries, moment(time, up=True), _position(start))
        shown_group = group if partitions.pages > 1 else None
        query = {"group": shown_group, "n": n, "view": view}
        position = _text(sought.position)
        if not sought.found:
            seeking = {"topic": topic, "resume_at": position, "time": time, "query": query}
            return request.page("seeking_together.html", "topics", **seeking)
        # Read before the answer: a time after all records leads to an empty page, and gets the last records instead.
        page = together_from(store, partitions.entries, sought.position, n)
        if page.rows or not page.earlier:
            return RedirectResponse(request.link("topics", name, "records", start=position, **query), 303)
        note = f"No record has a time of {time} or later: these are the last records."
        last = True
    if last:
        page = together_before(store, partitions.entries, {}, n)
    elif before.strip():
        page = together_before(store, partitions.entries, _position(before), n)
    else:
        page = together_from(store, partitions.entries, _position(start), n)
    decoding = request.decoding_of(view)
    shape = view or ("decoded" if decoding.has(name) else "lines")
    cells = []
    for placed in page.rows:
        cells.append(decoding.shown(TopicPartition(name, placed.partition), placed.row, render.line))
    return request.page(
        "together.html",
        "topics",
        topic=topic,
        partitions=partitions,
        page=page,
        start=_text(page.start),
        end=_text(page.end),
        cells=cells,
        problem=decoding.problem,
        n=n,
        view=view,
        shape=shape,
        note=note,
    )


def _text(position: Position) -> str:
    """Return a position as a parameter of an address: `0-120.1-77` is offset 120 of partition 0 and 77 of partition
    1."""
    return ".".join(f"{partition}-{offset}" for partition, offset in position.items())


def _position(text: str) -> dict[int, int]:
    """Return the position that a parameter of an address gives; an empty one leaves all partitions out."""
    position: dict[int, int] = {}
    for part in filter(None, text.strip().split(".")):
        partition, _, offset = part.partition("-")
        # The address may be written by hand, or by somebody who means harm: Python would read digits of any length.
        digits = partition + offset
        if not (partition and offset and digits.isascii() and digits.isdigit()) or len(part) > 30:
            raise BadInputError(f"{text} is not a position", "go back, and follow a link of the page")
        position[int(partition)] = min(int(offset), 2**63 - 1)
    return position
