"""The pages of schemas: the subjects of a restore point, and one with its versions and their differences."""

from __future__ import annotations

from collections import defaultdict
from difflib import SequenceMatcher
from functools import partial
from itertools import zip_longest
from typing import Annotated, NamedTuple

import msgspec
from fastapi import APIRouter, Query
from starlette.responses import HTMLResponse, RedirectResponse, Response

from kbackup.archive.schemas import VersionUse, usual_id
from kbackup.archive.uncovered_schemas import uncovered
from kbackup.errors import UsageError
from kbackup.schemas.base import SchemaVersion, context_of
from kbackup.util.text import printable_lines
from kbackup.web.archive_cache import ArchiveSnapshot
from kbackup.web.render import indented, is_json, shown
from kbackup.web.view import GET, Number, Requested, list_page, matches_search

router = APIRouter(default_response_class=HTMLResponse)

PAGE = 100
MOST = 50
"""Number of entries of a list within a page."""
FEW = 4
"""Number of ids and topics of a row."""
LINES = 1000
"""Number of lines of a schema that are compared: time grows with their square."""
_CHARACTERS = 200_000


@router.api_route("/schemas", methods=GET)
def schemas(request: Requested, page: Number = 1, q: str = "") -> HTMLResponse:
    snapshot = request.snapshot
    subjects = [subject for subject in snapshot.subjects if matches_search(subject.subject, q)]
    shown_page = list_page(subjects, page, PAGE)
    return request.page(
        "schemas.html",
        "schemas",
        schemas=snapshot.schemas,
        list_page=shown_page,
        of=len(snapshot.subjects),
        q=q,
        compatibility=partial(compatibility_of, snapshot),
        uncovered=uncovered(snapshot.point.topics, snapshot.schemas) if snapshot.point is not None else [],
        unknown=[use for use in snapshot.schema_uses if use.version is None],
        most=MOST,
        few=FEW,
    )


@router.api_route("/schemas/{schema_id}", methods=GET)
def schema_of_id(request: Requested, schema_id: str) -> Response:
    """Lead to the version with an id or GUID."""
    index, known = request.snapshot.schema_index, usual_id(schema_id)
    if known not in index:
        raise UsageError(f"the restore point has no schema {schema_id}", "select another restore point")
    found = index.find(known)
    return RedirectResponse(request.link("schema", subject=found.subject, version=found.version), 303)


@router.api_route("/schema", methods=GET)
def schema(
    request: Requested,
    subject: str,
    version: int | None = None,
    before: int | None = None,
    page: Annotated[int | None, Query(ge=1, le=1_000_000)] = None,
) -> HTMLResponse:
    """Show a version of a subject, by default the newest, and how it differs from the version `before`. The subject is
    a parameter: it may have slashes."""
    snapshot = request.snapshot
    versions = {v.version: v for v in snapshot.schemas.versions if v.subject == subject} if snapshot.schemas else {}
    chosen = max(versions, default=0) if version is None else version
    for number in (chosen, chosen if before is None else before):
        if number not in versions:
            what = f"subject {subject}" if not versions else f"version {number} of subject {subject}"
            raise UsageError(f"there is no {what} in the restore point", "see the page of schemas")
    one = versions[chosen]
    every = sorted(versions.values(), key=lambda v: -v.version)
    shown_page = list_page(every, page if page is not None else every.index(one) // PAGE + 1, PAGE)
    uses = defaultdict[str, list[VersionUse]](list)
    for use in snapshot.schema_uses:
        if use.version is not None and context_of(use.version.subject) == context_of(subject):
            uses[use.id].append(use)
    return request.page(
        "schema.html",
        "schemas",
        shown=one,
        list_page=shown_page,
        rows=[(v, [*uses[str(v.id)], *uses[v.guid]]) for v in shown_page.entries],
        before=before,
        compared=compare(versions[before], one) if before is not None else None,
        text=shown(one.schema.encode()),
        metadata=one.metadata and shown(msgspec.json.encode(one.metadata)),
        rules=one.rules and shown(msgspec.json.encode(one.rules)),
        compatibility=compatibility_of(snapshot, subject),
        most=MOST,
        lines=LINES,
    )


def compatibility_of(snapshot: ArchiveSnapshot, subject: str) -> tuple[str, str]:
    """Return a subject's compatibility, and whose it is: the subject's, its context's, or the registry's."""
    for name, whose in ((subject, "its own"), (context_of(subject), "of the context"), ("", "of the registry")):
        if level := snapshot.compatibilities.get(name):
            return level, whose if name else "of the registry"
    return "", ""


class DiffLine(NamedTuple):
    """A line of both sides, each with its number; '' where a side has none. `kind` is equal, or changed."""

    kind: str
    left: tuple[int | str, str]
    right: tuple[int | str, str]


def compare(before: SchemaVersion, after: SchemaVersion) -> tuple[list[list[DiffLine]], bool]:
    """Return what differs between two schemas, JSON in one form, with lines around; and whether that is all."""
    (a, a_whole), (b, b_whole) = _lines(before.schema), _lines(after.schema)
    hunks = []
    for group in SequenceMatcher(None, a, b).get_grouped_opcodes(3):
        hunk = []
        for kind, a_from, a_to, b_from, b_to in group:
            left = [(n + 1, a[n]) for n in range(a_from, a_to)]
            right = [(n + 1, b[n]) for n in range(b_from, b_to)]
            hunk += [DiffLine(kind, x, y) for x, y in zip_longest(left, right, fillvalue=("", ""))]
        hunks.append(hunk)
    return hunks, a_whole and b_whole


def _lines(text: str) -> tuple[list[str], bool]:
    """Return the first lines, and whether they are all."""
    data = text[:_CHARACTERS].encode()
    lines = ("".join(indented(data)) if is_json(data) else printable_lines(text[:_CHARACTERS])).splitlines()
    return lines[:LINES], len(text) <= _CHARACTERS and len(lines) <= LINES
