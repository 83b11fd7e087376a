"""The pages of the documents of kbackup."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from kbackup.errors import UsageError
from kbackup.web.documents import DocumentPage, document_files, read_document
from kbackup.web.view import GET, Requested

router = APIRouter(default_response_class=HTMLResponse)


@router.api_route("/docs", methods=GET)
def documents(request: Requested) -> HTMLResponse:
    found = [read_document(name) for name in document_files()]
    found.sort(key=_title)
    return request.page("documents.html", "docs", found=found)


@router.api_route("/docs/{name}", methods=GET)
def document(request: Requested, name: str) -> HTMLResponse:
    if name not in document_files():
        raise UsageError(f"there is no document {name}", "see the list of documents at /docs")
    return request.page("document.html", "docs", document=read_document(name))


def _title(document: DocumentPage) -> str:
    return document.title.casefold()
