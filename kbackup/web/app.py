"""The web application: pages behind a guard, and pages for errors."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

from anyio.to_thread import current_default_thread_limiter
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from kbackup import systems
from kbackup.archive.models import Schemas
from kbackup.errors import KbackupError, NoArchiveError, StoreError, UnreachableError, UsageError
from kbackup.jobs.decoding import Decoding
from kbackup.web.archive_cache import ArchiveCache
from kbackup.web.decoding import FieldDecoder
from kbackup.web.guard import STATIC, Access, Guard
from kbackup.web.pages import documents, points, records, restore, schemas, search, status, together, topics
from kbackup.web.render import page
from kbackup.web.view import BadInputError, RestoreCommand, page_request

log = logging.getLogger(__name__)

THREADS = 8
"""Number of pages rendered at the same time: each may hold a few pages of records in memory."""

_STATUS: tuple[tuple[type[KbackupError], int], ...] = (
    (BadInputError, 400),
    (UsageError, 404),
    (NoArchiveError, 404),
    (UnreachableError, 502),
    (StoreError, 502),
    (KbackupError, 500),
)
_FIELDS = {"offset": "offset", "time": "time", "a": "from", "b": "to", "name": "group"} | search.FIELDS
"""Labels of input fields; other parameters of an address are passed on, and not shown."""
_TITLES = {
    400: "Invalid input",
    401: "Locked",
    403: "Refused",
    404: "Not found",
    405: "Not allowed",
    421: "Unknown host",
    500: "Error",
    502: "The store does not answer",
}


def routers() -> list[APIRouter]:
    """Return the routers of all pages: the core's, and those of systems."""
    # The records of a topic come before its partitions: `records` would be taken for the number of one.
    core = (points, together, topics, records, schemas, search, status, restore, documents)
    found = [each.router for each in core]
    for page_of_system in systems.pages():
        found.append(page_of_system.router)
    return found


def make_app(
    cache: ArchiveCache, access: Access, restore_command: RestoreCommand, decoder: FieldDecoder | None = None
) -> Guard:
    """Return the ASGI application: the pages behind the guard."""
    return Guard(make_pages(cache, restore_command, decoder), access, _refused, _entered)


def make_pages(cache: ArchiveCache, restore_command: RestoreCommand, decoder: FieldDecoder | None = None) -> FastAPI:
    """Return the pages without a guard. Without a `decoder`, they decode the records of MirrorMaker 2 alone."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, lifespan=_bounded, redirect_slashes=False)
    app.state.cache = cache
    app.state.restore_command = restore_command
    app.state.decoder = decoder if decoder is not None else FieldDecoder(_without_schemas)
    for router in routers():
        app.include_router(router)
    files = Path(str(resources.files("kbackup.web").joinpath("static")))
    app.mount("/static", _Static(directory=files), name="static")
    app.add_exception_handler(KbackupError, _known)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _unknown)
    return app


def _without_schemas(schemas: Schemas | None) -> Decoding:
    return Decoding({}, mm2=True)


@asynccontextmanager
async def _bounded(app: FastAPI) -> AsyncIterator[None]:
    current_default_thread_limiter().total_tokens = THREADS
    yield


class _Static(StaticFiles):
    """Serves files that browsers cache forever: their addresses change with their content."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["cache-control"] = "public, max-age=31536000, immutable"
        return response


def _refused(scope: Scope, status: int, message: str, hint: str) -> HTMLResponse:
    """Return the page for a refused request: it shows nothing of the archive."""
    context = {"title": _TITLES.get(status, "Error"), "status": status, "message": message, "hint": hint}
    return page("refused.html", context, status)


def _failed(
    request: Request, status: int, message: str, hint: str = "", wrong: Collection[str] = (), *, is_error: bool = True
) -> HTMLResponse:
    """Return the page of an error, with the input in a form. `wrong` names invalid parameters of the address.

    Without `is_error` the page has nothing to show, and does not look like an error."""
    if request.url.path.startswith(STATIC):  # needs no token
        return _refused(request.scope, status, message, hint)
    query = request.query_params
    point = query.get("point", "latest")
    known = request.app.state.cache.has_point(point)
    labels = dict(_FIELDS)
    if not known:
        labels["point"] = "restore point"
    for name in wrong:
        labels[name] = name
    given = [(name, value, labels.get(name, "")) for name, value in query.multi_items()]
    # A form helps only where another input would, and where a field of it can be seen.
    is_mendable = status in (400, 404) and any(label for _, _, label in given)
    fields = given if is_mendable else []
    title = _TITLES.get(status, "Error") if is_error else "Nothing to show yet"
    context = {"title": title, "status": status if is_error else "", "message": message, "hint": hint}
    # The page of an error must not fail for the same reason: an unknown restore point gives way to the newest.
    shown = page_request(request, point if known else "latest")
    response = shown.page("error.html", "", fields=fields, **context)
    response.status_code = status
    return response


def _entered(scope: Scope, query: str) -> Response:
    """Return a page that leads to the requested page after the token.

    Not a redirect: after a link on another site, browsers send no strict cookie along redirects."""
    return page("entered.html", {"there": "/" + quote(scope["path"].lstrip("/")) + query})


async def _known(request: Request, error: Exception) -> Response:
    assert isinstance(error, KbackupError)  # noqa: S101 (the class it is registered for)
    status = next(code for kind, code in _STATUS if isinstance(error, kind))
    if not isinstance(error, UsageError):
        request.app.state.cache.reopen()
        log.warning("%s: %s", request.url.path, error)
    # Whoever opens the page before the first backup has done nothing wrong.
    is_error = not isinstance(error, NoArchiveError)
    return _failed(request, status, error.message, error.hint, is_error=is_error)


async def _http(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 404:
        return _failed(request, 404, "there is no such page", "open the page of restore points")
    detail = getattr(error, "detail", error)
    return _failed(request, status, str(detail).lower())


async def _invalid(request: Request, error: Exception) -> Response:
    """Return the page for parameters that FastAPI can't parse."""
    invalid = error.errors() if isinstance(error, RequestValidationError) else []
    wrong: list[str] = []
    reasons: list[str] = []
    status = 400
    for each in invalid:
        place = each["loc"]
        parameter = str(place[-1])
        wrong.append(parameter)
        reasons.append(f"{parameter} can't be {each['input']!s}")
        # A path that can't be parsed is a page that does not exist; a parameter is an input to mend.
        if place[0] == "path":
            status = 404
    message = ", ".join(reasons) or "the address can't be used"
    return _failed(request, status, message, "go back and try another", wrong)


async def _unknown(request: Request, error: Exception) -> Response:
    log.error("%s: %s", request.url.path, error, exc_info=log.isEnabledFor(logging.DEBUG))
    # Only the class: a message of a library may hold credentials or a path.
    message = f"internal error: {type(error).__name__}"
    return _failed(request, 500, message, "start 'kbackup ui' with --debug to see more")
