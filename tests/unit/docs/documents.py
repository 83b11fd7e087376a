"""The documents of the project, and what stands in their code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
DOCUMENTS = [
    ROOT / "README.md",
    *sorted((ROOT / "infra" / "docs").glob("*.md")),
    *sorted((ROOT / "formats").rglob("*.md")),
]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+)`")


class Code(NamedTuple):
    document: Path
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}: {self.text.strip().splitlines()[0]}"


def blocks(language: str | None = None) -> list[Code]:
    """Fenced code; of one language, or all."""
    found = [Code(path, *fence) for path in DOCUMENTS for fence in _FENCE.findall(path.read_text("utf-8"))]
    return [code for code in found if language is None or code.language == language]


def inline(path: Path) -> list[str]:
    return _INLINE.findall(_FENCE.sub("", path.read_text("utf-8")))


def kbackup_lines() -> Iterator[Code]:
    """Every call of kbackup in fenced and in inline code: its arguments, as far as the shell would give them to it."""
    for code in blocks():
        if code.language in ("", "sh") and code.document.name != "commands.md":
            for line in code.text.replace("\\\n", " ").splitlines():
                yield from _calls(code.document, line)
    for path in DOCUMENTS:
        for text in inline(path):
            if text.startswith("kbackup "):
                yield from _calls(path, text)


def _calls(document: Path, line: str) -> Iterator[Code]:
    for command in re.split(r" (?:&&|\|\|?|>>?|#)", line):
        found = re.search(r"(?:^|[ /])(?:kbackup|__main__\.py) +([a-z-].*)", command)
        if found:
            yield Code(document, "", re.sub(r" *>>?\S+", "", found[1]))
