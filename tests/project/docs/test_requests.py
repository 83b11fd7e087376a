"""The table of requests in infra/docs/requests.md is what commands ask of a store in memory."""

from __future__ import annotations

from scripts.docs.requests import requests_document
from tests.project.docs.documents import ROOT


def test_the_table_of_requests_is_counted() -> None:
    page = (ROOT / "infra" / "docs" / "requests.md").read_text("utf-8")
    assert requests_document(page) == page, "run: python -m scripts.docs"
