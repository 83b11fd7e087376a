"""The demo's comparison finds what it is there to find."""

from __future__ import annotations

import pytest

from kbackup.types import TopicPartition
from scripts.demo.__main__ import main, report
from scripts.demo.state import Record, Standing, State, compare_groups, compare_partitions

ORDERS = TopicPartition("orders", 0)
EMPTY = TopicPartition("orders", 1)


def state(*records: tuple[int, bytes], standing: Standing | None = None, group: str = "shipping") -> State:
    groups = {} if standing is None else {(group, ORDERS): standing}
    return State({ORDERS: [Record(*r) for r in records], EMPTY: []}, groups)


BEFORE = state((3, b"a"), (7, b"b"), (8, b"c"), standing=Standing(5, 1, b"b", "note"))
RESTORED = state((0, b"a"), (1, b"b"), (2, b"c"), standing=Standing(1, 1, b"b", "note"))


def test_other_offsets_are_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(BEFORE, RESTORED)
    assert "The same: 3 records in 2 partitions, 1 positions" in capsys.readouterr().out


@pytest.mark.parametrize(
    "after",
    [
        state((0, b"a"), (1, b"b")),
        state((0, b"a"), (1, b"b"), (2, b"c"), (3, b"c")),
        state((0, b"b"), (1, b"a"), (2, b"c")),
        state((0, b"a"), (1, b"b"), (2, b"x")),
        State({EMPTY: []}, {}),
    ],
)
def test_records_missing_doubled_moved_or_changed(after: State, capsys: pytest.CaptureFixture[str]) -> None:
    assert [row.tp for row in compare_partitions(BEFORE, after) if not row.same] == [ORDERS]
    assert not report(BEFORE, after)
    assert "DIFFERENT after the restore: orders-0" in capsys.readouterr().out


@pytest.mark.parametrize(
    "standing", [None, Standing(2, 2, b"c", "note"), Standing(1, 1, b"b", ""), Standing(3, 3, None, "note")]
)
def test_groups_that_stand_elsewhere(standing: Standing | None, capsys: pytest.CaptureFixture[str]) -> None:
    after = state((0, b"a"), (1, b"b"), (2, b"c"), standing=standing)
    assert [row.same for row in compare_groups(BEFORE, after)] == [False]
    assert not report(BEFORE, after)
    assert "shipping on orders-0" in capsys.readouterr().out


def test_a_group_that_was_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert not report(BEFORE, State(RESTORED.records, {**RESTORED.groups, ("x", ORDERS): Standing(0, 0, b"a", "")}))


def test_unknown_arguments_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--fast"]) == 2
    assert "make demo" in capsys.readouterr().err
