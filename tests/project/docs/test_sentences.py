"""Documents are written in short sentences: `python -m scripts.dev.sentences` shows which are too long."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.dev.sentences import DOCUMENTS, LONGEST, MEAN, ROOT, measure


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_sentences_are_short(document: Path) -> None:
    measured = measure(document.read_text("utf-8"))
    assert measured.sentences, f"{document.name} has no sentence"
    assert measured.mean < MEAN
    assert not measured.too_long, f"sentences of more than {LONGEST} words"
