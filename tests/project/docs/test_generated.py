"""Documents that are made from the code are as committed: `python -m scripts.docs` writes them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import click
import pytest

from kbackup.archive.models import Document
from scripts.docs.__main__ import MAN, OUTPUT_SCHEMAS, ROOT, generated
from scripts.docs.man import command_page
from scripts.docs.requests import requests_document
from scripts.docs.schemas import DOCUMENTS

GENERATED = generated()


@pytest.mark.parametrize("path", GENERATED)
def test_what_is_committed_is_what_is_generated(path: str) -> None:
    assert (ROOT / path).read_text("utf-8") == GENERATED[path], "run: python -m scripts.docs"


def test_every_document_has_a_schema() -> None:
    assert set(DOCUMENTS.values()) == {*Document.__subclasses__()}


def test_there_is_no_schema_beside_the_generated_ones() -> None:
    by_hand = {"formats/schema/group_offsets.schema.json"}
    there = {str(path.relative_to(ROOT)) for path in (ROOT / "formats" / "schema").iterdir()}
    assert there == by_hand | {path for path in GENERATED if path.startswith("formats/")}


@pytest.mark.parametrize("folder", [MAN, OUTPUT_SCHEMAS])
def test_no_other_file_in_a_generated_folder(folder: str) -> None:
    there = {str(path.relative_to(ROOT)) for path in (ROOT / folder).iterdir()}
    assert there == {path for path in GENERATED if path.startswith(f"{folder}/")}


needs_groff = pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")


def _shown(page: Path) -> str:
    """Return the text of a manual page. groff must not complain."""
    command = ["groff", "-man", "-Tutf8", "-ww", "-P-cbou", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


@needs_groff
def test_groff_accepts_every_manual_page() -> None:
    for path in (ROOT / MAN).iterdir():
        assert _shown(path).startswith(path.stem.upper())


@needs_groff
def test_a_manual_page_shows_text_as_it_is(tmp_path: Path) -> None:
    hostile = "a\\b 'quoted' \"twice\" `code` ~/^x --flag … §"

    @click.command("x", help=f".TH begins\n\n{hostile}")
    @click.option("--odd", help=f"'tis {hostile}")
    def command(odd: str) -> None: ...

    page = tmp_path / "x.1"
    page.write_text("\n".join([".TH X 1", *command_page("x", "Do x.", command)]) + "\n", "ascii")
    shown = " ".join(_shown(page).split())
    assert f".TH begins {hostile} OPTIONS" in shown
    assert f"--odd TEXT 'tis {hostile}" in shown


def test_the_table_of_requests_is_counted() -> None:
    page = (ROOT / "infra" / "docs" / "requests.md").read_text("utf-8")
    assert requests_document(page) == page, "run: python -m scripts.docs"
