"""The pages of schemas: the subjects of a restore point, and one with its versions and their differences."""

from __future__ import annotations

from collections import defaultdict
from difflib import SequenceMatcher
from functools import partial
from itertools import zip_longest
from typing import Annotated, Any, NamedTuple

import msgspec
from fastapi import APIRouter, Query
from starlette.responses import HTMLResponse, RedirectResponse, Response

from kbackup.archive.schemas import VersionUse, usual_id
from kbackup.archive.uncovered_schemas import uncovered
from kbackup.errors import UsageError
from kbackup.schemas.base import SchemaVersion, context_of
from kbackup.util.text import printable_lines
from kbackup.web.archive_cache import ArchiveSnapshot
from kbackup.web.render import Shown, indented, is_json, shown
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
    unmapped: list[str] = []
    if snapshot.point is not None:
        unmapped = uncovered(snapshot.point.topics, snapshot.schemas)
    unknown = [use for use in snapshot.schema_uses if use.version is None]
    return request.page(
        "schemas.html",
        "schemas",
        schemas=snapshot.schemas,
        list_page=shown_page,
        of=len(snapshot.subjects),
        q=q,
        compatibility=partial(compatibility_of, snapshot),
        uncovered=unmapped,
        unknown=unknown,
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
    archived = snapshot.schemas.versions if snapshot.schemas else ()
    versions = {each.version: each for each in archived if each.subject == subject}
    chosen = max(versions, default=0) if version is None else version
    for number in (chosen, before):
        if number is not None and number not in versions:
            what = f"version {number} of subject {subject}" if versions else f"subject {subject}"
            raise UsageError(f"there is no {what} in the restore point", "see the page of schemas")
    shown_version = versions[chosen]
    newest_first = sorted(versions.values(), key=_newest_first)
    if page is None:
        # Without a page the list opens where the version that is shown stands.
        page = newest_first.index(shown_version) // PAGE + 1
    shown_page = list_page(newest_first, page, PAGE)
    uses = _uses_by_id(snapshot, context_of(subject))
    # Records name a schema by its id, or by its GUID in a header.
    rows = [(each, uses[str(each.id)] + uses[each.guid]) for each in shown_page.entries]
    compared: tuple[list[list[DiffLine]], bool] | None = None
    if before is not None:
        compared = compare(versions[before], shown_version)
    return request.page(
        "schema.html",
        "schemas",
        shown=shown_version,
        list_page=shown_page,
        rows=rows,
        before=before,
        compared=compared,
        text=shown(shown_version.schema.encode()),
        metadata=_shown_json(shown_version.metadata),
        rules=_shown_json(shown_version.rules),
        compatibility=compatibility_of(snapshot, subject),
        most=MOST,
        lines=LINES,
    )


def _shown_json(value: dict[str, Any] | None) -> Shown | None:
    """Return the registry's own JSON about a version; None if there is none."""
    if not value:
        return None
    data = msgspec.json.encode(value)
    return shown(data)


def _newest_first(version: SchemaVersion) -> int:
    return -version.version


def _uses_by_id(snapshot: ArchiveSnapshot, context: str) -> defaultdict[str, list[VersionUse]]:
    """Return which topics use the schemas of a context, by the id or GUID that their records name.

    Each context counts its ids by itself: the same id is another schema elsewhere."""
    uses = defaultdict[str, list[VersionUse]](list)
    for use in snapshot.schema_uses:
        if use.version is not None and context_of(use.version.subject) == context:
            uses[use.id].append(use)
    return uses


def compatibility_of(snapshot: ArchiveSnapshot, subject: str) -> tuple[str, str]:
    """Return a subject's compatibility, and whose it is: the subject's, its context's, or the registry's."""
    levels = snapshot.compatibilities
    context = context_of(subject)
    if subject and levels.get(subject):
        return levels[subject], "its own"
    # The default context has no name: what is set for it is set for the registry.
    if context and levels.get(context):
        return levels[context], "of the context"
    if levels.get(""):
        return levels[""], "of the registry"
    return "", ""


class DiffLine(NamedTuple):
    """A line of both sides, each with its number; '' where a side has no such line. `kind` is that of `difflib`: equal,
    replace, insert or delete."""

    kind: str
    left: tuple[int | str, str]
    right: tuple[int | str, str]


def compare(before: SchemaVersion, after: SchemaVersion) -> tuple[list[list[DiffLine]], bool]:
    """Return the lines in which two schemas differ, JSON in one form, with lines around; and whether these are all."""
    a, a_is_whole = _lines(before.schema)
    b, b_is_whole = _lines(after.schema)
    hunks: list[list[DiffLine]] = []
    for group in SequenceMatcher(None, a, b).get_grouped_opcodes(3):
        hunk: list[DiffLine] = []
        for kind, a_from, a_to, b_from, b_to in group:
            left = [(n + 1, a[n]) for n in range(a_from, a_to)]
            right = [(n + 1, b[n]) for n in range(b_from, b_to)]
            # A replaced passage may have more lines on one side: the rest stands beside empty ones.
            for left_line, right_line in zip_longest(left, right, fillvalue=("", "")):
                hunk.append(DiffLine(kind, left_line, right_line))
        hunks.append(hunk)
    return hunks, a_is_whole and b_is_whole


def _lines(text: str) -> tuple[list[str], bool]:
    """Return the first lines of a schema, and whether they are all of its lines."""
    beginning = text[:_CHARACTERS]
    data = beginning.encode()
    # A registry may hand out the same JSON schema in one line and in many: only its content is compared.
    pieces = indented(data) if is_json(data) else [printable_lines(beginning)]
    lines = "".join(pieces).splitlines()
    is_whole = len(text) <= _CHARACTERS and len(lines) <= LINES
    return lines[:LINES], is_whole
