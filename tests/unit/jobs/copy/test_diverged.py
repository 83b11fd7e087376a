"""Copies refuse a source whose history is another one; damage costs no segment."""

from __future__ import annotations

import pytest

from kbackup.archive import layout
from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.retention import lose_points
from kbackup.archive.reader import open_archive
from kbackup.errors import (
    RefusedError,
)
from tests.support.copies import copied, expired, inner_copy, point_copied, unchanged
from tests.support.histories import History
from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.exhaustive(keep=2)


def forked() -> tuple[History, History]:
    """Two archives with one history up to restore point 2, and none of the same after it."""
    one = History(MemoryStore())
    one.run(1, {"a": 3, "b": 2})
    one.run(2, {"a": 2})
    return one, History(inner_copy(one.store), topics={**one.topics})


@pytest.mark.parametrize("last", [0, 2, 1])
def test_a_source_that_went_another_way_is_refused(last: int) -> None:
    """Before anything is written, whatever expired there since."""
    source, other = forked()
    target = MemoryStore()
    source.run(3, {"a": 4})
    copied(source.store, target)
    before = unchanged(target)
    with pytest.raises(RefusedError, match="has restore point 3, the source ends at 2") as rolled_back:
        copied(other.store, target)
    assert "promote the copy" in rolled_back.value.hint
    for number in (3, 4, 5):
        other.run(number, {"a": number})
    if last:
        expired(other.store, last=last)
    with pytest.raises(
        RefusedError, match="has diverged: its restore point 3 is not of the source's history"
    ):
        copied(other.store, target)
    with pytest.raises(RefusedError, match="has diverged"):
        point_copied(other.store, target, "5")
    assert unchanged(target) == before
    assert copied(source.store, target).newest == 3


def test_a_segment_that_another_one_replaced_is_refused() -> None:
    """The source lost its newest restore point, and its next backup wrote the same offsets anew."""
    source, target = MemoryStore(), MemoryStore()
    history = History(source)
    history.run(1, {"a": 3})
    topics = {**history.topics}
    history.run(2, {"a": 2})
    copied(source, target)
    state = open_archive(source)
    commit(source, state.committed, lambda s: lose_points(s, [2]), Author("repair", "", "test"))
    keys = {s.key for s in state.added(1, 2)}
    source.delete([*keys, *map(layout.index_key_of, keys)])
    History(source, topics=topics).run(3, {"a": 3})
    before = unchanged(target)
    with pytest.raises(RefusedError, match="has diverged: the source has another segment topics/a/"):
        copied(source, target)
    assert unchanged(target) == before
