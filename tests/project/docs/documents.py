"""The documents of the project, and what stands in their code."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
DOCUMENTS = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
    *sorted((ROOT / "infra" / "docs").glob("*.md")),
    *sorted((ROOT / "formats").rglob("*.md")),
]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_KBACKUP = re.compile(r"(?:^|/)kbackup$|-m kbackup\.submit\)$")
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
                yield from _calls(code.document, line, code.language)
    for path in DOCUMENTS:
        for text in inline(path):
            if text.startswith("kbackup "):
                yield from _calls(path, text, "inline")


def _calls(document: Path, line: str, language: str) -> Iterator[Code]:
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    try:
        found = list(words)
    except ValueError:  # a quote that is open: it goes on in the next line, or is prose
        return
    for command in _commands(found):
        if command[:1] in (["helm"], ["kubectl"]):  # kbackup is the name of a release, a chart, a namespace
            continue
        names = [at for at, word in enumerate(command) if _KBACKUP.search(word)]
        if names and re.match(r"[a-z-]", " ".join(command[names[0] + 1 :])):
            yield Code(document, language, shlex.join(command[names[0] + 1 :]))


def _commands(words: list[str]) -> Iterator[list[str]]:
    """Yield the commands between the shell's operators, without the targets of redirections."""
    command: list[str] = []
    into = False
    for word in words:
        if set(word) <= set("();<>|&"):
            if not (into := set(word) <= set("<>")):
                yield command
                command = []
        elif into:
            into = False
        else:
            command.append(word)
    yield command
