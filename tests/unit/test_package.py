"""Check the content of a wheel."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from setuptools import Distribution
from setuptools.command.build_py import build_py

from kbackup import __version__
from kbackup.cli import COMMANDS
from kbackup.web.documents import INSTALLED
from tests.project.docs.documents import DOCUMENTS

ROOT = Path(__file__).parents[2]


@pytest.fixture
def distribution(monkeypatch: pytest.MonkeyPatch) -> Distribution:
    monkeypatch.chdir(ROOT)
    distribution = Distribution({"script_name": "setup.py"})
    distribution.parse_config_files()
    return distribution


@pytest.fixture
def packed(distribution: Distribution) -> set[str]:
    """Paths in the wheel, of the files that go into it."""
    command = build_py(distribution)
    command.ensure_finalized()
    command.build_lib = ""
    return {str(Path(file)) for file in command.get_outputs(include_bytecode=False)}


def test_all_of_the_package_is_in_it(packed: set[str]) -> None:
    discovery = ROOT / "kbackup" / "discovery"
    due = {
        str(path.relative_to(discovery if discovery in path.parents else ROOT))
        for path in ROOT.glob("kbackup/**/*")
        if path.is_file() and "__pycache__" not in path.parts and path.name != "README.md"  # the map of the code
    }
    assert packed == due


def test_spark_finds_the_data_source(packed: set[str]) -> None:
    assert "pyspark_kbackup/__init__.py" in packed


def test_manual_pages_are_in_it(distribution: Distribution) -> None:
    pages = dict(distribution.data_files)["share/man/man1"]
    assert {Path(page).name for page in pages} == {"kbackup.1", *(f"kbackup-{name}.1" for name in COMMANDS)}


def test_documents_that_the_web_page_serves_are_in_it(distribution: Distribution) -> None:
    pages = dict(distribution.data_files)[INSTALLED.rstrip("/")]
    assert {ROOT / page for page in pages} == set((ROOT / "infra" / "docs").glob("*.md"))


def test_licences_are_in_it(distribution: Distribution) -> None:
    metadata = distribution.metadata
    assert (metadata.license_expression, metadata.license_files) == ("Apache-2.0", ["LICENSE", "NOTICE"])
    notice = (ROOT / "NOTICE").read_text("utf-8")
    from_kafka = {path.name for path in ROOT.glob("kbackup/**/*.json")}
    assert "records.json" in from_kafka
    unnamed = {name for name in from_kafka if name not in notice}
    assert not unnamed, f"files of Kafka's that NOTICE does not name: {unnamed}"


DISTRIBUTION = "kafka-kbackup"  # on the package index `kbackup` is another project


def test_name_and_version_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["name"] == DISTRIBUTION
    assert [*project["scripts"]] == ["kbackup"]
    released = re.findall(r"^## ([0-9.]+) - 20\d\d-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert __version__ == project["version"] == released[0]


_INSTALLED = re.compile(r"([\w.-]*kbackup)\[|(?:pip|pipx|tool|or) install '?([\w.-]*kbackup)\b(?!:)")
"""A name with an extra, or behind `pip install` and its like."""


def test_documents_and_hints_install_the_distribution() -> None:
    files = [
        *DOCUMENTS,
        *(ROOT / "kbackup").rglob("*.py"),
        *(path for path in (ROOT / "infra").rglob("*") if path.is_file() and path.suffix != ".png"),
    ]
    named = [
        (str(path.relative_to(ROOT)), *found)
        for path in {*files}
        for found in _INSTALLED.findall(path.read_text("utf-8"))
    ]
    assert {"infra/docs/delta.md", "kbackup/cli/ui.py"} <= {file for file, *_ in named}
    assert {name for _, *names in named for name in names if name} == {DISTRIBUTION}
