"""The documents of kbackup, which the package brings along, as pages: no network is needed to read them.

They are Markdown of this project. All the same no HTML in them is taken over, and no style: the page's policy allows
neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

DISTRIBUTION = "kafka-kbackup"
INSTALLED = "share/doc/kbackup/"
"""The folder of the documents in an installation, as `pyproject.toml` names it."""
_SOURCE = Path(__file__).parents[2] / "infra" / "docs"  # in a checkout
_CODE = Markup('<pre class="value" tabindex="0">{}</pre>\n')
_COMMAND = Markup(
    '<div class="command"><pre class="value" tabindex="0">{}</pre>'
    '<button type="button" class="copy" data-copy="{}">copy</button></div>\n'
)
_NO_ANCHOR = re.compile(r"[^\w\- ]")


class DocumentPage(NamedTuple):
    """A document as a page. `headings` are the texts of its headings by their anchors."""

    name: str
    title: str
    content: Markup
    headings: Mapping[str, str]


class DocumentLink(NamedTuple):
    address: str
    text: str


@cache
def document_files() -> Mapping[str, Path]:
    """Return the files of all documents by their names; none if the package was installed without them."""
    found: list[Path] = []
    if _SOURCE.is_dir():
        found = list(_SOURCE.glob("*.md"))
    else:
        try:
            installed = distribution(DISTRIBUTION).files or []
        except PackageNotFoundError:
            installed = []
        for file in installed:
            if INSTALLED in file.as_posix() and file.suffix == ".md":
                found.append(Path(str(file.locate())))
    return {path.stem: path for path in sorted(found) if path.is_file()}


@cache
def read_document(name: str) -> DocumentPage:
    """Return a document. `KeyError` if there is none of that name."""
    text = document_files()[name].read_text("utf-8")
    tokens = _parser().parse(text)
    headings = _anchor_headings(tokens)
    for token in tokens:
        _keep_links_within(token.children or [], name)
        _drop_style(token)
    title = next(iter(headings.values()), name)
    content = _parser().renderer.render(tokens, _parser().options, {})
    return DocumentPage(name, title, Markup(content), headings)  # noqa: S704 (made of escaped text, without raw HTML)


def document_links(targets: Iterable[str]) -> list[DocumentLink]:
    """Return the links to documents, or to headings of them (`restore#6-restore`); none if they are not installed."""
    links: list[DocumentLink] = []
    for target in targets:
        name, _, anchor = target.partition("#")
        if name in document_files():
            document = read_document(name)
            text = document.title
            if anchor:
                text += f": {document.headings[anchor]}"
            links.append(DocumentLink(f"/docs/{target}", text))
    return links


def _code(renderer: object, tokens: list[Token], at: int, options: object, env: object) -> str:
    """Return the markup of a block of code: a command with a button that copies it."""
    token = tokens[at]
    text = token.content.rstrip("\n")
    return str(_COMMAND.format(text, text) if token.info.strip() == "sh" else _CODE.format(text))


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    parser.add_render_rule("fence", _code)
    parser.add_render_rule("table_open", _open_table)
    parser.add_render_rule("table_close", _close_table)
    return parser


def _open_table(renderer: object, tokens: list[Token], at: int, options: object, env: object) -> str:
    return '<div class="scroll"><table>\n'


def _close_table(renderer: object, tokens: list[Token], at: int, options: object, env: object) -> str:
    return "</table></div>\n"


def _anchor_headings(tokens: list[Token]) -> dict[str, str]:
    """Give headings the anchors that links within documents use, those of GitHub; return their texts by them."""
    headings: dict[str, str] = {}
    for token, text in pairwise(tokens):
        if token.type == "heading_open":
            anchor = _NO_ANCHOR.sub("", text.content.lower()).replace(" ", "-")
            token.attrSet("id", anchor)
            headings[anchor] = text.content.replace("`", "")
    return headings


def _keep_links_within(tokens: list[Token], name: str) -> None:
    """Let links lead to the pages of documents. Of links to anything else the text stays: it is not at hand here."""
    is_link = True
    for token in tokens:
        if token.type == "link_open":
            address = _address_of(str(token.attrGet("href")), name)
            is_link = bool(address)
            token.attrs = {"href": address} if address else {}
        if token.type in ("link_open", "link_close") and not is_link:
            token.tag = "span"


def _address_of(target: str, name: str) -> str:
    """Return the address of the page that a link in document `name` leads to; '' if it leads to no document."""
    file, _, anchor = target.partition("#")
    linked = file.removesuffix(".md") if file else name
    if linked not in document_files():
        return ""
    return f"/docs/{linked}#{anchor}" if anchor else f"/docs/{linked}"


def _drop_style(token: Token) -> None:
    """Let a column that is aligned by a style be aligned by a class."""
    style = token.attrs.pop("style", None)
    if style == "text-align:right":
        token.attrSet("class", "r")
