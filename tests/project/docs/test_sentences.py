"""Documents are written in short sentences: `python -m scripts.dev.sentences` shows which are too long."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.dev.sentences import DOCUMENTS, LONGEST, MEAN, ROOT, measure

NOT_YET_CLEAN = {
    "infra/docs/kubernetes.md",
    "infra/docs/mirroring.md",
}
"""Documents that still have longer sentences. Take a name out when its document is clean; add none."""


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_sentences_are_short(document: Path) -> None:
    name = str(document.relative_to(ROOT))
    measured = measure(document.read_text("utf-8"))
    if name in NOT_YET_CLEAN:
        assert not measured.is_clean, f"{name} is clean: take it out of NOT_YET_CLEAN"
        return
    assert measured.sentences, f"{name} has no sentence"
    assert measured.mean < MEAN
    assert not measured.too_long, f"sentences of more than {LONGEST} words"


def test_documents_that_are_not_yet_clean_exist() -> None:
    assert {str(path.relative_to(ROOT)) for path in DOCUMENTS} >= NOT_YET_CLEAN
