"""The site of the documents: every link leads somewhere, every document is in it, and no page asks another host."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from scripts.docs.site import build, navigation, plain_markdown, stage, tasks_first
from tests.project.docs.documents import DOCUMENTS, ROOT

_LOADING = {
    ("audio", "src"),
    ("iframe", "src"),
    ("img", "src"),
    ("input", "src"),
    ("link", "href"),
    ("object", "data"),
    ("script", "src"),
    ("source", "src"),
    ("video", "src"),
}
"""Tags and attributes whose address a browser loads by itself."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    stage(folder)
    problems = build(folder)
    assert not problems, problems  # the text alone: beside an expectation it would be cut
    return folder / "html"


def test_every_document_is_in_the_navigation_and_built(site: Path) -> None:
    assert {path.relative_to(ROOT) for path in DOCUMENTS} <= {*navigation()}
    pages = {"index.html", "infra/docs/restore.html", "formats/index.html", "formats/archive.html"}
    assert pages <= {str(path.relative_to(site)) for path in site.rglob("*.html")}


class _Loaded(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.fetching: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if (tag, name) in _LOADING]
        # for these the generator's script fetches libraries, or facts about a repository
        marks = {"mermaid", "glightbox", "pyodide"} & {*(dict(attrs).get("class") or "").split()}
        self.fetching += [*marks, *(["source"] if ("data-md-component", "source") in attrs else [])]


def test_pages_load_nothing_from_another_host(site: Path) -> None:
    loaded = _Loaded()
    for page in site.rglob("*.html"):
        loaded.feed(page.read_text("utf-8"))
    assert "search.js" in "".join(path.name for path in site.iterdir())
    assert any("iframe-worker" in address for address in loaded.addresses)
    assert [address for address in loaded.addresses if re.match(r"(\w+:)?//", address)] == []
    assert loaded.fetching == []
    for sheet in site.rglob("*.css"):
        assert re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)\"']+", sheet.read_text("utf-8")) == [], sheet


def test_no_markup_is_left_in_a_page(site: Path) -> None:
    """Items and tables that are read as text keep their marks."""
    for page in site.rglob("*.html"):
        (article,) = re.findall(r"<article.*?</article>", page.read_text("utf-8"), re.DOTALL)
        text = re.sub(r"<[^>]+>", "", re.sub(r"<(pre|code)\b.*?</\1>", "", article, flags=re.DOTALL))
        assert re.findall(r"^ *(?:\d+\.  |-   |\|).*|```.*|\*\*.*", text, re.MULTILINE) == [], page


def test_a_broken_link_is_a_problem(tmp_path: Path) -> None:
    stage(tmp_path)
    page = tmp_path / "pages" / "formats" / "archive.md"
    page.write_text("# A\n[b](../infra/docs/nowhere.md)\n\n[c](../infra/docs/restore.md#nowhere)\n", encoding="utf-8")
    problems = build(tmp_path)
    assert "formats/archive.md:2:" in problems
    assert "formats/archive.md:4:" in problems


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        ("a:\n- b\n- c\n", "a:\n\n-   b\n-   c\n"),
        ("1. a\n   - b\n   - c\n2. d\n", "1.  a\n\n    -   b\n    -   c\n\n2.  d\n"),
        ("1. a\n   ```\n   b\n   ```\n2. d\n", "1.  a\n\n    ```\n    b\n    ```\n\n2.  d\n"),
        ("- a\n  b\n\n  c\n\nd\n", "-   a\n    b\n\n    c\n\nd\n"),
        ("a\n```sh\n- b\n```\n", "a\n\n```sh\n- b\n```\n"),
        ("| `a\\|b` |\n", "| `a|b` |\n"),
    ],
)
def test_markdown_of_a_code_host_becomes_plain(written: str, plain: str) -> None:
    assert plain_markdown(written) == plain


def test_the_start_page_begins_with_the_tasks() -> None:
    page = tasks_first("# kbackup\nIt.\n\n## Install\nA.\n\n## Documents by task\nB.\n\n## Limits\nC.\n")
    assert page == "# kbackup\nIt.\n\n## Documents by task\nB.\n\n## Install\nA.\n\n## Limits\nC.\n"
