"""A drill restores its selection, also where the archive grows meanwhile."""

from __future__ import annotations

import pytest

from kbackup.archive.run import open_or_create
from kbackup.archive.segments.writer import Target
from kbackup.config.models import Restore
from kbackup.jobs.drill.job import pinned, scratch_options
from kbackup.jobs.restore.plan import select_content
from kbackup.store import Store
from tests.support.archives import commit_point, group_at, topic_state, write
from tests.support.memory_store import MemoryStore


def _commit(store: Store, seq: int, offsets: range, *groups: str) -> None:
    """A restore point with these offsets of topic orders, and groups at its end."""
    segments = write(store, Target("orders", 1, 0, 1000, "none"), offsets)
    topic = topic_state("orders", seq, "present", [(0, offsets.stop, segments)])
    at_end = [group_at(group, ("orders", 0, offsets.stop)) for group in groups]
    commit_point(open_or_create(store), seq, [topic], segments, at_end)


@pytest.mark.parametrize(
    "options",
    [
        Restore(),
        Restore(restore_point=1),
        Restore(range=("orders:0:3-7",)),
        Restore(from_time="1970-03-01T00:00:00Z"),
        Restore(from_time="1h ago"),
        Restore(from_time="1970-03-01T00:00:00Z", to_time="now", restore_point=1),
    ],
)
def test_pinned_options_select_the_same_content(options: Restore) -> None:
    store = MemoryStore()
    _commit(store, 1, range(10), "billing")
    content = select_content(options, store)
    _commit(store, 2, range(10, 20), "billing", "late")
    again = select_content(pinned(options, content), store)
    assert (again.restore_point, again.topics, again.groups) == (1, content.topics, content.groups)


def test_an_end_in_time_keeps_topics_and_groups_and_takes_late_records() -> None:
    store = MemoryStore()
    _commit(store, 1, range(10), "billing")
    options = Restore(to_time="2026-01-01T12:00:00Z")
    content = select_content(options, store)
    _commit(store, 2, range(10, 20), "billing", "late")
    again = select_content(pinned(options, content), store)
    assert (again.restore_point, again.groups) == (1, content.groups)
    assert [t.segments[-1].last for t in (*content.topics, *again.topics)] == [9, 19]


def test_every_name_is_under_the_prefix() -> None:
    store = MemoryStore()
    _commit(store, 1, range(10), "billing")
    asked = Restore(map={"orders": "orders"}, map_group={"billing": "billing"}, into_existing=True)
    options = scratch_options(asked, select_content(asked, store), "drill.", "an-id")
    assert (options.map, options.map_regex) == ({}, ("^=drill.",))
    assert options.map_group == {"billing": "drill.billing"}
    assert (options.into_existing, options.restore_id) == (False, "an-id")
