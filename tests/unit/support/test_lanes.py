"""The files of the lane with servers: groups and places name files that are there."""

from __future__ import annotations

from pathlib import Path

from tests.support.lanes import LONGEST, TOGETHER, unit_of

TESTS = Path(__file__).parents[2]


def test_the_tests_of_a_file_are_one_unit() -> None:
    assert unit_of("tests/contract/test_store.py::test_a[x::y]") == "contract/test_store"


def test_the_files_of_a_group_are_one_unit() -> None:
    for group, files in TOGETHER.items():
        assert [file for file in files if not (TESTS / "integration" / f"{file}.py").exists()] == [], group
        assert {unit_of(f"tests/integration/{file}.py::test_a") for file in files} == {group}


def test_what_runs_first_is_a_group_or_a_file() -> None:
    assert [unit for unit in LONGEST if unit not in TOGETHER and not (TESTS / f"{unit}.py").exists()] == []
