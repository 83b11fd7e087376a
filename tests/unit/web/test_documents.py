"""The documents of kbackup as pages: at hand without a network, and under the same policy as all pages."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from kbackup import systems
from kbackup.store.base import Store
from kbackup.web import render
from kbackup.web.documents import document_files, document_links, read_document
from tests.support.visits import links, tags, text, visit

TEMPLATES = [
    path
    for folder in (Path(render.__file__).parent / "templates", *(page.templates for page in systems.pages()))
    for path in sorted(folder.glob("*.html"))
    if '{% extends "base.html" %}' in path.read_text("utf-8")
]
WITHOUT = {"document.html"}
"""Templates of pages that lead to no document: this one is a document."""


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_each_page_leads_to_the_documents_of_what_it_shows(template: Path) -> None:
    found = re.search(r"^{% set read_about = \[(.*)\] %}$", template.read_text("utf-8"), re.MULTILINE)
    if template.name in WITHOUT:
        assert found is None
        return
    assert found is not None
    targets = re.findall(r'"([^"]+)"', found[1])
    assert targets
    assert [link.address for link in document_links(targets)] == [f"/docs/{target}" for target in targets]


@pytest.mark.parametrize("name", document_files())
def test_a_document_is_a_page_without_styles_scripts_and_foreign_links(rich: Store, name: str) -> None:
    answer = visit(rich).get(f"/docs/{name}")
    assert answer.status_code == 200
    in_document = False
    for tag, attributes in tags(answer.text):
        assert tag not in ("img", "style", "iframe", "object")
        assert (tag == "script") == ("src" in attributes)
        assert not [each for each in attributes if each == "style" or each.startswith("on")]
        in_document = in_document or attributes.get("class") == "document"
    assert in_document
    assert len(re.findall(r"<h1[ >]", answer.text)) == 1
    for link in links(read_document(name).content):
        parts = urlsplit(link)
        assert parts.path.startswith("/docs/"), link
        linked = read_document(parts.path.removeprefix("/docs/"))
        assert not parts.fragment or parts.fragment in linked.headings, link


def test_the_list_of_documents_has_each_of_them(rich: Store) -> None:
    client = visit(rich)
    html = client.get("/docs").text
    assert {link for link in links(html) if link.startswith("/docs/")} >= {f"/docs/{name}" for name in document_files()}
    assert "Restore, on the worst day" in text(html)
    assert "/docs" in links(client.get("/").text), "every page leads to it"


def test_commands_of_a_document_can_be_copied(rich: Store) -> None:
    html = visit(rich).get("/docs/web-page").text
    assert 'data-copy="pip install &#39;kafka-kbackup[web]&#39;\nkbackup ui"' in html, "line by line"


def test_an_unknown_document_is_not_found(rich: Store) -> None:
    for name in ("none", "..%2F..%2Fpyproject", "restore.md"):
        assert visit(rich).get(f"/docs/{name}").status_code == 404


def test_documents_need_the_token(rich: Store) -> None:
    assert visit(rich, token="x" * 20).get("/docs/restore").status_code == 401
