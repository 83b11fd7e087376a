"""Damage of a source or of its copy costs no segment of the other."""

from __future__ import annotations

import pytest

from kbackup.archive.catalog.retention import lose_segments
from kbackup.archive.reader import open_archive
from tests.support.copies import change, check_whole, copied, copied_at, keys_of, seen
from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.exhaustive(keep=2)


def test_a_damaged_source_takes_no_segment_from_its_copy() -> None:
    source, target = copied_at(5)
    due = seen(target)
    (damaged, *_) = sorted(open_archive(source).keys())
    change(source, lambda state: lose_segments(state, {damaged: "is missing"}))
    copied(source, target)
    assert {n: each for n, each in seen(target).items() if n <= 5} == due
    assert damaged in keys_of(target)
    assert damaged not in keys_of(source)
    check_whole(target)
    fresh = MemoryStore()
    copied(source, fresh)
    assert seen(fresh) == seen(source)
    check_whole(fresh)


def test_a_damaged_copy_says_what_it_lacks() -> None:
    source, target = copied_at(5)
    (damaged, *_) = sorted(open_archive(target).keys())
    target.delete([damaged])
    change(target, lambda state: lose_segments(state, {damaged: "is missing"}))
    before = open_archive(target)
    for _ in range(2):
        copied(source, target)
        after = open_archive(target)
        assert damaged not in keys_of(target)
        manifest = after.restore_point(1)
        assert after.losses(manifest) == before.losses(before.restore_point(1))
        check_whole(target)
