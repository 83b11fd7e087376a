"""`--sample` runs a part of the exhaustive tests, `--soak` more than all others, and nothing drops the rest."""

from __future__ import annotations

import pytest

from tests.support.exhaustive import _Run, sample

pytest_plugins = ["pytester"]

TESTS = """
import pytest
from hypothesis import given, settings, strategies

ran = []

def test_plain(): pass

@pytest.mark.exhaustive
def test_process(): pass

@pytest.mark.parametrize("n", range(5))
@pytest.mark.exhaustive(keep=2)
def test_cases(n): pass

@pytest.mark.soak
def test_long(): pass

@given(strategies.integers())
def test_examples(n): ran.append(n)

def test_how_many_examples(): assert len(ran) == {examples}
"""


@pytest.mark.parametrize(
    ("options", "examples", "passed", "deselected"),
    [([], 100, 9, 1), (["--soak"], 100, 10, 0), (["--sample"], 5, 5, 5), (["-m", "exhaustive"], 0, 7, 3)],
)
@pytest.mark.exhaustive(keep=4)
def test_options_select_tests_and_examples(
    options: list[str],
    examples: int,
    passed: int,
    deselected: int,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_Run, "sampled", _Run.sampled)  # the run below sets it in this process
    pytester.makepyfile(TESTS.replace("{examples}", str(examples)))
    ended = pytester.runpytest_inprocess("-p", "tests.support.exhaustive", "-p", "no:cacheprovider", *options)
    ended.assert_outcomes(passed=passed, deselected=deselected)


def test_all_cases_where_nothing_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Run, "sampled", False)
    assert [*sample(range(100))] == [*range(100)]


def test_a_sample_has_the_first_and_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Run, "sampled", True)
    assert [*sample(range(1, 101))] == [1, 34, 67, 100]
    assert [*sample([1, 2, 3, 4])] == [1, 2, 3, 4]
    assert [*sample([])] == []
