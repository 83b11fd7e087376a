"""The page as a client of it sees it, without a server."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from html import unescape
from html.parser import HTMLParser
from urllib.parse import parse_qsl, urljoin, urlsplit

from starlette.testclient import TestClient

from kbackup.cli.common.command_lines import command_line
from kbackup.cli.restore import command as restore
from kbackup.store.base import Store
from kbackup.web.app import make_app
from kbackup.web.archive_cache import ArchiveCache
from kbackup.web.decoding import FieldDecoder
from kbackup.web.guard import Access

HERE = frozenset({"testserver"})
WRITES = {"put", "put_new", "replace", "upload", "delete"}


def visit(
    store: Store,
    token: str | None = None,
    clock: Callable[[], float] = lambda: 0.0,
    cache: ArchiveCache | None = None,
    decoder: FieldDecoder | None = None,
) -> TestClient:
    app = make_app(cache or ArchiveCache(store, clock), Access(HERE, token), partial(command_line, restore), decoder)
    return TestClient(app, raise_server_exceptions=False, follow_redirects=False)


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        for name, value in attrs:
            if name in ("href", "src", "action") and value is not None:
                self.links.append(value)


def tags(html: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = _Links()
    parser.feed(html)
    return parser.tags


def links(html: str) -> list[str]:
    parser = _Links()
    parser.feed(html)
    return parser.links


def text(html: str) -> str:
    """Return the text of a page without its tags."""
    parts: list[str] = []

    class Text(HTMLParser):
        def handle_data(self, data: str) -> None:
            parts.append(data)

    Text().feed(re.sub("</?mark>", "", html))  # a highlight does not part a word
    return " ".join(unescape(" ".join(parts)).split())


class _Columns(HTMLParser):
    """Collects the cells of tables that become cards on a phone whose label is not the heading of their column."""

    def __init__(self) -> None:
        super().__init__()
        self.unnamed: list[str] = []
        self._headings: list[str] = []
        self._in_table = self._in_head = self._in_heading = False
        self._column = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "table":
            self._in_table = "cards" in (given.get("class") or "").split()
            self._headings = []
        elif tag == "thead":
            self._in_head = True
        elif tag == "tr":
            self._column = 0
        elif self._in_head and tag == "th":
            self._headings.append("")
            self._in_heading = True
        elif self._in_table and tag in ("td", "th"):
            heading = self._headings[self._column].strip()
            label = given.get("data-label") or ""
            # A card has its first cell as its title, which needs no label if it is a name.
            if label != heading and (tag == "td" or label):
                self.unnamed.append(f"{heading!r} has the label {label!r}")
            self._column += 1

    def handle_endtag(self, tag: str) -> None:
        if tag == "thead":
            self._in_head = False
        elif tag == "th":
            self._in_heading = False
        elif tag == "table":
            self._in_table = False

    def handle_data(self, data: str) -> None:
        if self._in_head and self._in_heading:
            self._headings[-1] += data


def cells_without_their_column(html: str) -> list[str]:
    """Return the cells that on a phone would not say which column they are of."""
    parser = _Columns()
    parser.feed(html)
    return parser.unnamed


def crawl(client: TestClient, start: str = "/", of_a_kind: int = 6) -> Iterator[tuple[str, int, str]]:
    """Pages that can be come to, so many of each shape of address: address, status and HTML ('' for others)."""
    waiting, seen = [start], {start}
    kinds: Counter[str] = Counter()
    while waiting:
        address = waiting.pop(0)
        answer = client.get(address)
        html = answer.text if answer.headers.get("content-type", "").startswith("text/html") else ""
        yield address, answer.status_code, html
        found = links(html) + ([answer.headers["location"]] if "location" in answer.headers else [])
        for link in found:
            existing = urlsplit(urljoin(address, link))._replace(fragment="").geturl()
            kind = _shape(existing)
            if existing not in seen and kinds[kind] < of_a_kind:
                kinds[kind] += 1
                seen.add(existing)
                waiting.append(existing)


def _shape(address: str) -> str:
    """The path without numbers, and the names in the query."""
    parts = urlsplit(address)
    return re.sub(r"\d+", "0", parts.path) + "?" + "&".join(sorted(dict(parse_qsl(parts.query))))


COMMAND = re.compile(r'<div class="command"><pre[^>]*>(.*?)</pre>', re.S)


def commands(client: TestClient, address: str) -> list[list[str]]:
    """Return the words of the commands of a page, as a shell reads them."""
    answer = client.get(address)
    assert answer.status_code == 200, text(answer.text)
    return [shlex.split(each) for each in command_lines(answer.text)]


def command_lines(html: str) -> list[str]:
    """Return the commands that a page shows: the dry run, the restore, and the comparison."""
    lines = [unescape(each) for each in COMMAND.findall(html)]
    assert all(line.isprintable() for line in lines)
    return lines


def form_fields(html: str) -> list[tuple[str, str]]:
    """Return names and values of what a browser sends of the form: line ends as CR LF."""
    return [
        (a["name"] or "", re.sub("\r?\n", "\r\n", a.get("value") or ""))
        for tag, a in tags(html)
        if tag == "input" and "name" in a and (a.get("type") != "checkbox" or "checked" in a)
    ]
