"""Which archived records are of keys that the log has no more, and when nothing is concluded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive.segments.window import ranges_of
from kbackup.formats.key_digests import KEYS, keys_of
from kbackup.jobs.backup.recheck import DigestFiles, Keys, deleted_records, strangers
from kbackup.types import OffsetRange, Offsets
from tests.support.plain_records import Plain, block_of

Entry = tuple[int, str, bool]
"""Offset, key, and whether it has a value."""


def keys(*entries: Entry) -> Keys:
    if not entries:
        return np.empty(0, KEYS)
    records = [Plain(key.encode(), b"v" if has_value else None) for _, key, has_value in entries]
    return keys_of(block_of(records, [offset for offset, _, _ in entries]))


def deleted(archived: Sequence[Entry], present: Sequence[Entry], log_start: int = 0) -> list[int]:
    return sorted(deleted_records(keys(*archived), keys(*present), log_start).tolist())


ANNA, BERT = (3, "anna", True), (4, "bert", True)


def test_a_key_that_the_log_has_no_more_was_deleted() -> None:
    assert deleted([ANNA, BERT], [BERT]) == [3]


def test_all_values_of_a_deleted_key_are_left_out() -> None:
    assert deleted([(1, "anna", True), (2, "anna", True), BERT], [BERT]) == [1, 2]


@pytest.mark.parametrize("has_value", [True, False])
def test_a_key_with_a_later_record_in_the_log_was_not_deleted_unseen(has_value: bool) -> None:
    assert deleted([ANNA], [(9, "anna", has_value)]) == []


def test_a_key_whose_last_archived_record_is_a_deletion_needs_nothing() -> None:
    assert deleted([ANNA, (5, "anna", False)], []) == []


def test_a_key_that_was_written_again_after_an_archived_deletion_and_is_gone_was_deleted() -> None:
    assert deleted([ANNA, (5, "anna", False), (6, "anna", True)], []) == [3, 6]


def test_a_record_below_the_start_of_the_log_may_have_gone_by_retention() -> None:
    assert deleted([ANNA, BERT], [], log_start=4) == [4]


def test_nothing_is_deleted_of_an_empty_archive() -> None:
    assert deleted([], [BERT]) == []


def model(archived: Iterable[Entry], present: Iterable[Entry], log_start: int) -> list[int]:
    last = {key: (offset, has_value) for offset, key, has_value in sorted(archived)}
    alive = {key for _, key, _ in present}
    gone = {key for key, (offset, has_value) in last.items() if has_value and offset >= log_start and key not in alive}
    return sorted(offset for offset, key, has_value in archived if has_value and key in gone)


entries = st.lists(
    st.tuples(st.integers(0, 30), st.sampled_from("abcdef"), st.booleans()), unique_by=lambda e: e[0], max_size=20
).map(sorted)


@given(entries, entries, st.integers(0, 30))
def test_deleted_records_are_those_of_a_model_by_key(
    archived: list[Entry], present: list[Entry], log_start: int
) -> None:
    assert deleted(archived, present, log_start) == model(archived, present, log_start)


def strange(archived: Sequence[Entry], present: Sequence[Entry], held: Offsets = ()) -> list[int]:
    offsets = strangers(keys(*archived), keys(*present), OffsetRange("t", 0, 2, 8), held)
    return [int(offset) for offset in offsets]


def test_a_record_of_the_log_that_the_archive_lacks_is_strange() -> None:
    assert strange([ANNA], [ANNA, (5, "carl", True)]) == [5]
    assert strange([], [ANNA]) == [3]


def test_a_record_of_the_log_with_another_key_than_in_the_archive_is_strange() -> None:
    assert strange([ANNA], [(3, "carl", True)]) == [3]


def test_records_outside_of_the_archived_range_and_held_ones_are_not_strange() -> None:
    assert strange([ANNA], [(1, "old", True), ANNA, (5, "held", True), (8, "new", True)], held=((5, 6),)) == []


def test_a_record_that_the_archive_has_compacted_away_is_not_strange() -> None:
    archived, present = keys(ANNA, (6, "carl", True)), keys((4, "carl", True), (5, "bert", True), (6, "carl", True))
    compared = OffsetRange("t", 0, 2, 8)
    assert strangers(archived, present, compared, ()).tolist() == [4, 5]
    # It has no other record of bert, and nothing of that segment is missing but superseded records.
    assert strangers(archived, present, compared, (), [(3, 7)]).tolist() == [5]
    assert strangers(archived, present, compared, (), [(5, 7)]).tolist() == [4, 5]


def test_offsets_become_ranges_without_the_gaps_between_them() -> None:
    assert ranges_of(np.array([3, 4, 5, 9, 11, 12], np.int64)) == ((3, 6), (9, 10), (11, 13))
    assert ranges_of(np.empty(0, np.int64)) == ()


def test_both_sides_have_a_key_in_the_same_bucket(tmp_path: Path) -> None:
    names = [f"key-{number}" for number in range(50)]
    with DigestFiles(tmp_path / "one", 3) as one, DigestFiles(tmp_path / "other", 3) as other:
        for number, name in enumerate(names):
            one.add(keys((number, name, True)))
        other.add(keys(*((100 + number, name, True) for number, name in enumerate(names))))
        sizes = []
        for bucket in range(3):
            ours, theirs = one.load(bucket), other.load(bucket)
            assert set(ours["digest"]) == set(theirs["digest"])
            sizes.append(len(ours))
    assert sum(sizes) == len(names)
    assert min(sizes) > 0, "one bucket has all keys"
