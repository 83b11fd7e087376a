"""The files of the lane with servers: groups and places name files that are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.lanes import LONGEST, TOGETHER, unit_of

TESTS = Path(__file__).parents[2]


def test_the_tests_of_a_file_are_one_unit() -> None:
    assert unit_of("tests/contract/test_store.py::test_a[x::y]") == "contract/test_store"


@pytest.mark.parametrize(("group", "file"), [(group, file) for group, files in TOGETHER.items() for file in files])
def test_the_files_of_a_group_are_one_unit(group: str, file: str) -> None:
    assert (TESTS / "integration" / f"{file}.py").exists()
    assert unit_of(f"tests/integration/{file}.py::test_a") == group


@pytest.mark.parametrize("unit", LONGEST)
def test_what_runs_first_is_a_group_or_a_file(unit: str) -> None:
    assert unit in TOGETHER or (TESTS / f"{unit}.py").exists()
