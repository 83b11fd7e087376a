"""Writers, expirers, undos, sweepers, readers and copies at once: every interleaving of their store calls.

A crash at every step is in it: the invariants, and what later runs make of it, are checked in every state
(`interleaving`). Schedules go by rising number of changes between actors, up to a bound. No actor has a lease: each
may sleep for any time before any call. Seven ways to break the protocol show that the checker finds what it should."""

from __future__ import annotations

import pytest

from tests.support.exhaustive import sample
from tests.support.memory_store import MemoryStore
from tests.unit.archive.catalog.actors import backup, copy, expire
from tests.unit.archive.catalog.beginnings import empty_copy, made
from tests.unit.archive.catalog.scenarios import SCENARIOS, run, sweeper, sweeper_beside
from tests.unit.archive.catalog.stepping import Actor

SOAKED = 5000  # executions of each scenario


def sampled() -> int:
    """Limit executions, by rising number of changes between actors: few for a sample, `SOAKED` for a soak."""
    return len(sample(range(300), 30))


def with_copy() -> MemoryStore:
    """A copy of an archive that went on since; its source is `SOURCE`."""
    source = made(2, 4)
    target = empty_copy(source)
    copy(source, target)
    return target


def source_of_copy() -> MemoryStore:
    source = made(2, 4)
    backup(source, 6)
    expire(source, 1)
    return source


@pytest.mark.exhaustive(keep=3)
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_interleaving(name: str) -> None:
    check_interleavings(name, sampled())


@pytest.mark.soak
@pytest.mark.parametrize("name", SCENARIOS)
def test_more_interleavings(name: str) -> None:
    check_interleavings(name, SOAKED)


def check_interleavings(name: str, limit: int) -> None:
    base, actors, visible = SCENARIOS[name]
    report = run(base, actors, visible, limit)
    print(f"{name}: {report}")  # `pytest -rP`
    errors = {error for end in report.ends for error in end}
    assert errors <= {"", "LeaseLostError", "RefusedError"}
    assert any("" in end for end in report.ends), "nobody ever succeeds"


@pytest.mark.parametrize(
    "others", [[sweeper], [lambda store: copy(_source(), store)]], ids=["sweeper", "another copy"]
)
def test_every_interleaving_at_the_address_of_a_copy(others: list[Actor]) -> None:
    report = run(with_copy, [lambda store: copy(_source(), store), *others], sweeper_beside, sampled())
    print(report)
    assert {error for end in report.ends for error in end} <= {"", "LeaseLostError", "RefusedError"}


_sources: list[MemoryStore] = []


def _source() -> MemoryStore:
    if not _sources:
        _sources.append(source_of_copy())
    return _sources[0]
