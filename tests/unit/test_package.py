"""What a wheel has in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from setuptools import Distribution
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parents[2]


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Paths in the wheel, of the files that go into it."""
    monkeypatch.chdir(ROOT)
    distribution = Distribution({"script_name": "setup.py"})
    distribution.parse_config_files()
    command = build_py(distribution)
    command.ensure_finalized()
    command.build_lib = ""
    return {str(Path(file)) for file in command.get_outputs(include_bytecode=False)}


def test_all_of_the_package_is_in_it(packed: set[str]) -> None:
    discovery = ROOT / "kbackup" / "discovery"
    due = {
        str(path.relative_to(discovery if discovery in path.parents else ROOT))
        for path in ROOT.glob("kbackup/**/*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == due


def test_spark_finds_the_data_source(packed: set[str]) -> None:
    assert "pyspark_kbackup/__init__.py" in packed
