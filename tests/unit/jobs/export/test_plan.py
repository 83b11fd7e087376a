"""Additions to export: by restore point, also where some of them were expired."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kbackup.archive.query.selection import Selection
from kbackup.archive.reader import Archive, open_archive
from kbackup.cli import main
from kbackup.errors import RefusedError, UsageError
from kbackup.jobs.export.run import Additions
from tests.support.archives import make_archive
from tests.support.growing_archive import grow
from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.usefixtures("addressed")


@pytest.fixture
def archive() -> Archive:
    return make_archive(MemoryStore())


def additions(archive: Archive, topics: Sequence[str] = (), excluded: Sequence[str] = ()) -> Additions:
    return Additions(open_archive(archive.store), Selection.of(topics, excluded))


def records(selected: Additions, number: int, topic: str | None = None) -> dict[int, int]:
    """By restore point, after `number`."""
    return {addition.point.number: addition.records for addition in selected.after(number, topic)}


def test_restore_points_in_order(archive: Archive) -> None:
    selected = additions(archive)
    assert selected.newest == 2
    assert records(selected, 0) == {1: 42, 2: 24}
    assert records(selected, 1) == {2: 24}
    assert records(selected, 2) == {}
    assert records(selected, 0, "clicks") == {1: 20}
    assert selected.topics_after(0) == ["clicks", "orders"]
    assert selected.topics_after(1) == ["orders"]
    first, second = selected.after(0, "orders")
    assert first.partitions == second.partitions == {("orders", 1): 3}
    for ahead in (lambda: list(selected.after(3)), lambda: selected.topics_after(3)):
        with pytest.raises(RefusedError, match=r"up to restore point 3, the newest of .* is 2"):
            ahead()
    places = [(s.partition, s.first) for s in first.segments]
    assert places == sorted(places)


def test_a_selection(archive: Archive) -> None:
    assert additions(archive, ["clicks"]).topics_after(0) == ["clicks"]
    assert records(additions(archive, excluded=["/cl.*/"]), 0) == {1: 22, 2: 24}
    additions(archive, ["clicks"]).check_names()
    with pytest.raises(UsageError, match="no topic nothing"):
        additions(archive, ["clicks", "nothing"]).check_names()
    with pytest.raises(UsageError, match=r"no topic odrers in .*did you mean orders"):
        additions(archive, ["odrers"]).check_names()
    with pytest.raises(UsageError, match=r"matches /x.*/"):
        additions(archive, ["/x.*/"]).check_names()


def test_records_of_expired_points_come_with_the_next_restore_point(archive: Archive) -> None:
    assert main(["expire", archive.store.url, "--keep-last", "1", "--confirm", "--quiet"]) == 0
    selected = additions(archive)
    assert records(selected, 0) == {2: 66}
    assert records(selected, 1) == {2: 24}  # for a table that had restore point 1 before it went
    assert selected.topics_after(1) == ["orders"]


def lose(archive: Archive, number: int) -> None:
    """And repair."""
    folder = f"points/{number:010d}-"
    archive.store.delete([e.key for e in archive.store.list(folder) if e.key.endswith("/manifest.json")])
    assert main(["repair", archive.store.url, "--confirm", "--quiet"]) in (0, 3)


def expire(archive: Archive, keep: int) -> None:
    assert main(["expire", archive.store.url, "--keep-last", str(keep), "--confirm", "--quiet"]) == 0


def test_repaired_points_are_not_exported_twice(archive: Archive) -> None:
    """A restore point keeps its number and its records, whatever was lost of it."""
    grow(archive.store, 3, 50, 60)
    for lost in (3, 2):
        lose(archive, lost)
        selected = additions(archive)
        assert selected.newest == 3
        assert records(selected, 0) == {1: 42, 2: 24, 3: 10}
        assert records(selected, 1) == {2: 24, 3: 10}
        assert records(selected, 2) == {3: 10}
        assert records(selected, 3) == {}


@pytest.mark.parametrize("keep", [2, 1])
def test_a_repair_and_then_an_expiration(archive: Archive, keep: int) -> None:
    lose(archive, 2)
    grow(archive.store, 3, 50, 60)
    expire(archive, keep)
    selected = additions(archive)
    assert sum(records(selected, 0).values()) == 76
    assert sum(records(selected, 1).values()) == 34
    assert records(selected, 2) == {3: 10}


def test_an_expiration_and_then_a_repair(archive: Archive) -> None:
    grow(archive.store, 3, 50, 60)
    expire(archive, 2)
    lose(archive, 3)
    for number, due in {0: 76, 1: 34, 2: 10, 3: 0}.items():
        assert sum(records(additions(archive), number).values()) == due
    grow(archive.store, 4, 60, 70)
    expire(archive, 1)
    for number, due in {0: 86, 1: 44, 2: 20, 3: 10, 4: 0}.items():
        assert sum(records(additions(archive), number).values()) == due
