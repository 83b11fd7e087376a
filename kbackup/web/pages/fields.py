"""The keys, values and headers of records: their bytes as downloads, and their JSON in lines."""

from __future__ import annotations

import re
from typing import Literal

from fastapi import APIRouter
from starlette.responses import Response, StreamingResponse

from kbackup.archive.query.content import ArchivedPartition
from kbackup.archive.query.pages import Page, page_from
from kbackup.errors import UsageError
from kbackup.formats.rows import Row
from kbackup.types import TopicPartition
from kbackup.web.json_layout import indented, is_json
from kbackup.web.view import GET, PageRequest, Requested, find_partition

router = APIRouter(default_response_class=Response)

FieldView = Literal["bytes", "json"]


@router.api_route("/topics/{name}/{number}/records/{offset}/{field}", methods=GET)
def field(
    request: Requested,
    name: str,
    number: int,
    offset: int,
    field: Literal["key", "value"],
    view: FieldView = "bytes",
) -> Response:
    """Return a key or a value."""
    _, partition = find_partition(request, name, number)
    row, _ = find_record(request, partition, name, offset)
    return _response(row.key if field == "key" else row.value, view, name, f"{number}-{offset}-{field}")


@router.api_route("/topics/{name}/{number}/records/{offset}/headers/{at}", methods=GET)
def header(
    request: Requested, name: str, number: int, offset: int, at: int, view: FieldView = "bytes"
) -> Response:
    _, partition = find_partition(request, name, number)
    row, _ = find_record(request, partition, name, offset)
    if not 0 <= at < len(row.headers):
        raise UsageError(
            f"the record has no header {at}",
            f"give a number from 0 to {len(row.headers) - 1}"
            if row.headers
            else "see the page of the record",
        )
    return _response(row.headers[at][1], view, name, f"{number}-{offset}-header-{at}")


def find_record(
    request: PageRequest, partition: ArchivedPartition, name: str, offset: int
) -> tuple[Row, Page]:
    """Return a record, and the page that holds it alone. Raises `UsageError` if there is none at `offset`."""
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


def _response(data: bytes | None, view: FieldView, topic: str, label: str) -> Response:
    """Return a field; its JSON is laid out while it is sent."""
    if data is None:
        raise UsageError("this field of the record is null", "see the page of the record")
    if view == "json":
        if not is_json(data):
            raise UsageError(
                "this field of the record is not JSON",
                "see the page of the record",
            )
        return StreamingResponse(indented(data), media_type="text/plain; charset=utf-8")
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", topic)[:100]
    disposition = f'attachment; filename="{safe}-{label}.bin"'
    return Response(data, media_type="application/octet-stream", headers={"content-disposition": disposition})
