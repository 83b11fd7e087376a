"""Select the cases of exhaustive tests: many of them, a sample (`pytest --sample`), or all (`pytest --soak`).

Exhaustive are loops over every crash point, Hypothesis tests of 50 examples or more, and tests that start processes
or wait for real time. The sample of a parametrized test is its first `keep` cases: `@pytest.mark.exhaustive(keep=2)`.
A test that loops over its cases takes them from `sample`. Hypothesis tests need no mark.
What takes long and shows little more than its neighbours is marked `soak`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import settings

_MANY = 50
_EXAMPLES = 5

T = TypeVar("T")


CRASHES = 20
"""Moments at which a regular run lets work crash, where a soak takes every one."""


class _Run:
    sampled = False
    soaked = False


def sample(cases: Sequence[T], number: int = 2, regular: int | None = None) -> Sequence[T]:
    """Return the cases that are to run: `number` of them in a sample, `regular` in a regular run, and all in a soak, or
    where `regular` is None. They are the first, the last, and evenly between."""
    most = number if _Run.sampled else regular
    if most is None or _Run.soaked or len(cases) <= most:
        return cases
    return [cases[at * (len(cases) - 1) // (most - 1)] for at in range(most)]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sample", action="store_true", help="run a sample of the exhaustive tests")
    parser.addoption("--soak", action="store_true", help="run the tests marked 'soak' as well")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "exhaustive(keep=0): what `--sample` runs a part of")
    config.addinivalue_line("markers", "soak: what only `--soak` runs")
    _Run.sampled = config.getoption("--sample")
    _Run.soaked = config.getoption("--soak")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        _mark_examples(item)
    dropped = _beyond_the_sample(items) if _Run.sampled else {}
    if not config.getoption("--soak"):
        dropped |= dict.fromkeys(item for item in items if item.get_closest_marker("soak"))
    if dropped:
        items[:] = [item for item in items if item not in dropped]
        config.hook.pytest_deselected(items=[*dropped])


def _mark_examples(item: pytest.Item) -> None:
    test: Any = getattr(item, "obj", None)
    if not getattr(test, "is_hypothesis_test", False):
        return
    selected: settings = test._hypothesis_internal_use_settings
    if selected.max_examples >= _MANY:
        item.add_marker(pytest.mark.exhaustive(keep=1))
    if _Run.sampled:
        test._hypothesis_internal_use_settings = settings(selected, max_examples=min(selected.max_examples, _EXAMPLES))


def _beyond_the_sample(items: list[pytest.Item]) -> dict[pytest.Item, None]:
    kept: Counter[str] = Counter()
    dropped: dict[pytest.Item, None] = {}
    for item in items:
        mark = item.get_closest_marker("exhaustive")
        if mark is None:
            continue
        test = item.nodeid.partition("[")[0]
        if kept[test] >= mark.kwargs.get("keep", 0):
            dropped[item] = None
        kept[test] += 1
    return dropped
