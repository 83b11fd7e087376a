"""infra/docs/troubleshooting.md quotes messages that the code has, and has a line for every exit code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.project.docs.documents import ROOT

DOCS = ROOT / "infra" / "docs"
PAGE = (DOCS / "troubleshooting.md").read_text("utf-8")
MESSAGES = re.findall(r"^### `(.+)`$", PAGE, re.MULTILINE)


def _texts() -> Iterator[str]:
    """Yield every text in the code, with … for its variable parts."""
    for path in (ROOT / "kbackup").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(p.value) if isinstance(p, ast.Constant) else "…" for p in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


TEXTS = [re.sub("…+", "…", text) for text in _texts()]


def test_there_are_twenty_messages() -> None:
    assert len({*MESSAGES}) == len(MESSAGES) >= 20


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_in_the_code(message: str) -> None:
    """As it is there, or its beginning where the quote ends in …"""
    begins = message.removesuffix("…")
    assert any(text == message or (begins != message and text.startswith(begins)) for text in TEXTS)


def test_every_exit_code_has_a_line() -> None:
    codes = re.findall(r"^\| (\d+) \|", (DOCS / "exit-codes.md").read_text("utf-8"), re.MULTILINE)
    assert re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE) == codes
