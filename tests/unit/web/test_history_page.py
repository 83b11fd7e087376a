"""The archive's history on the page."""

from __future__ import annotations

import re
from unittest import mock

from kbackup.archive.reader import open_archive
from kbackup.jobs.points import history
from kbackup.store.base import Store
from kbackup.web.pages import points as history_page
from tests.support.visits import links, text, visit


def test_every_catalog_is_shown_the_newest_first(store: Store) -> None:
    rows = history(open_archive(store))
    html = visit(store).get("/history").text
    assert re.findall(r'<data class="n" value="(\d+)"', html) == [str(row.catalog) for row in rows[::-1]]
    assert len(rows) > 2
    shown = text(html)
    assert all(f"{row.kind} {row.summary} {row.by}" in shown for row in rows)


def test_history_page_by_page(store: Store) -> None:
    client = visit(store)
    address: str | None = "/history"
    seen: list[str] = []
    with mock.patch.object(history_page, "HISTORY_PAGE", 2):
        while address is not None:
            html = client.get(address).text
            numbers = re.findall(r'<data class="n" value="(\d+)"', html)
            assert 1 <= len(numbers) <= 2
            seen += numbers
            address = next((link for link in links(html) if "upto=" in link), None)
    assert seen == [str(row.catalog) for row in history(open_archive(store))[::-1]]
    assert client.get("/history?upto=0").status_code == 400
