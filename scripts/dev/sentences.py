"""Check the length of sentences in documents: python -m scripts.dev.sentences [FILE…]

A document is clean when its sentences have fewer than 16 words on average, and none more than 35. Code blocks, tables
and headings are no sentences. Inline code counts as one word, and a link as its text. The end of a paragraph, of a
list item or of the text above a code block ends a sentence.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

MEAN = 16
"""Words: the mean of each document is below."""
LONGEST = 35
"""Words: no sentence has more."""

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    *sorted((ROOT / "infra" / "docs").glob("*.md")),
    *sorted((ROOT / "formats").rglob("*.md")),
]

_FENCE = re.compile(r"\s*(```+|~~~+)")
_BREAK = re.compile(r"\s*(#{1,6}\s|\||$)")
"""Headings, rows of tables and empty lines."""
_ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+")
_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\](\([^)]*\))")
_END = re.compile(r"[.!?][)\]\"'*_]*\s+")
_ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|vs|cf|approx)\.\s+$")
_WORD = re.compile(r"\S*[\w`]\S*")
_HIDDEN = " \n.!?()[]"
_HIDE = {ord(character): 0xE000 + at for at, character in enumerate(_HIDDEN)}
"""Private code points for the characters that end words, sentences and links, while they stand in inline code."""
_SHOW = {code: _HIDDEN[at].replace("\n", " ") for at, code in enumerate(_HIDE.values())}


class Sentence(NamedTuple):
    line: int  # of its first word, from 1
    words: int
    text: str


class Measure(NamedTuple):
    sentences: list[Sentence]

    @property
    def words(self) -> int:
        return sum(sentence.words for sentence in self.sentences)

    @property
    def mean(self) -> float:
        return self.words / max(1, len(self.sentences))

    @property
    def longest(self) -> int:
        return max((sentence.words for sentence in self.sentences), default=0)

    @property
    def too_long(self) -> list[Sentence]:
        return [sentence for sentence in self.sentences if sentence.words > LONGEST]

    @property
    def is_clean(self) -> bool:
        return self.mean < MEAN and not self.too_long


def measure(markdown: str) -> Measure:
    """Split a document into its sentences."""
    return Measure(
        [sentence for first_line, text in _paragraphs(markdown) for sentence in _split(first_line, text)]
    )


def _paragraphs(markdown: str) -> Iterator[tuple[int, str]]:
    """Yield each paragraph and list item with the number of its first line."""
    lines: list[str] = []
    first_line = 1
    fence = ""
    for number, line in enumerate([*markdown.splitlines(), ""], 1):
        edge = _FENCE.match(line)
        in_code = bool(fence)
        if edge and not fence:
            fence = edge[1]
        elif edge and line.strip() == fence:
            fence = ""
        item = _ITEM.match(line)
        if lines and (edge or in_code or item or _BREAK.match(line)):
            yield first_line, "\n".join(lines)
            lines = []
        if edge or in_code or _BREAK.match(line):
            continue
        if not lines:
            first_line = number
        lines.append(line[item.end() :] if item else line)


def _split(first_line: int, paragraph: str) -> Iterator[Sentence]:
    hidden = _CODE.sub(lambda code: code[0].translate(_HIDE) + _line_feeds(code[0]), paragraph)
    text = _LINK.sub(lambda link: link[1] + _line_feeds(link[2]), hidden)
    start = 0
    for end in [*(match.end() for match in _END.finditer(text)), len(text)]:
        sentence = text[start:end]
        if end < len(text) and _ABBREVIATION.search(sentence):
            continue
        if words := len(_WORD.findall(sentence)):
            line = first_line + text.count("\n", 0, start)
            yield Sentence(line, words, " ".join(sentence.split()).translate(_SHOW))
        start = end


def _line_feeds(text: str) -> str:
    return "\n" * text.count("\n")


def main(arguments: Sequence[str]) -> int:
    """Print the measure of each document, by default of all; return 1 unless all are clean."""
    clean = True
    for path in [Path(argument) for argument in arguments] or DOCUMENTS:
        measured = measure(path.read_text("utf-8"))
        name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        print(
            f"{'clean' if measured.is_clean else 'NOT CLEAN'}  {name}: {measured.words} words, "
            f"{len(measured.sentences)} sentences, mean {measured.mean:.1f}, longest {measured.longest}"
        )
        for sentence in measured.too_long:
            print(f"  {name}:{sentence.line}: {sentence.words} words: {sentence.text}")
        clean &= measured.is_clean
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
