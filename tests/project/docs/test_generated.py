"""Documents that are made from the code are as committed: `python -m scripts.docs` writes them."""

from __future__ import annotations

import pytest

from kbackup.archive.models import Document
from scripts.docs.__main__ import ROOT, generated
from scripts.docs.schemas import DOCUMENTS

GENERATED = generated()


@pytest.mark.parametrize("path", GENERATED)
def test_committed_is_generated(path: str) -> None:
    assert (ROOT / path).read_text("utf-8") == GENERATED[path], "run: python -m scripts.docs"


def test_every_document_has_a_schema() -> None:
    assert set(DOCUMENTS.values()) == {*Document.__subclasses__()}


def test_no_other_schema() -> None:
    by_hand = {"formats/schema/group_offsets.schema.json"}
    there = {str(path.relative_to(ROOT)) for path in (ROOT / "formats" / "schema").iterdir()}
    assert there == by_hand | {path for path in GENERATED if path.startswith("formats/")}
