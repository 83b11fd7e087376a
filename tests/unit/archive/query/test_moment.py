"""A moment selects topics, records and groups, on archives whose runs were captured a day apart."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from kbackup.archive.models import TopicState
from kbackup.archive.query.content import Content
from kbackup.archive.run import open_or_create
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.writer import Target
from kbackup.errors import UsageError
from tests.support.archives import T0, commit_point, group_at, make_archive, topic_state, write
from tests.support.faulty_store import FaultyStore
from tests.support.moments import BETWEEN, FIRST, SECOND, chosen, sizes_of


def groups(content: Content) -> dict[str, list[tuple[str, int, int]]]:
    return {g: [(o.topic, o.partition, o.offset) for o in some] for g, some in content.groups.items()}


@pytest.mark.parametrize("moment", [FIRST, BETWEEN, "2026-01-01T23:59:59.999Z"])
def test_topics_and_groups_of_the_newest_capture_records_of_every_run(
    store: FaultyStore, moment: str
) -> None:
    """A topic that is gone since is back; what run 2 added to orders has old timestamps and belongs to it."""
    make_archive(store)
    content = chosen(store, to_time=moment)
    assert {t.name: t.as_of for t in content.topics} == {"clicks": 1, "orders": 1}
    assert [sum(r for r, _ in some) for some in sizes_of(content).values()] == [20, 10 + 24 + 12]
    assert groups(content) == {"billing": [("clicks", 0, 5), ("orders", 0, 4), ("orders", 1, 12)]}
    assert content.choice is not None
    assert (content.restore_point, content.choice.as_of, content.choice.groups_as_of) == (1, 1, 1)
    assert content.choice.groups_captured_at == "2026-01-01T00:00:00.000Z"
    assert "restore point 1, captured at 2026-01-01T00:00:00.000Z" in content.choice.notes[1]


def test_a_topic_deleted_by_then_comes_where_it_is_named(store: FaultyStore) -> None:
    make_archive(store)
    assert list(sizes_of(chosen(store, to_time=SECOND))) == ["orders"]
    content = chosen(store, to_time=SECOND, topics=["clicks"])
    assert groups(content) == {"billing": [("clicks", 0, 5)]}
    with pytest.raises(UsageError, match="there is no topic nowhere in restore point 2"):
        chosen(store, to_time=SECOND, topics=["nowhere"])


def test_before_the_first_capture_there_are_records_but_no_groups(store: FaultyStore) -> None:
    make_archive(store)
    content = chosen(store, to_time=str(T0 + 5_000))
    assert sum(p.records for t in content.topics for p in t.partitions) >= 6 + 6 + 6
    assert all(s.min_timestamp <= T0 + 5_000 for t in content.topics for s in t.segments if s.min_timestamp)
    assert content.groups == {}
    assert content.choice is not None
    assert (content.choice.as_of, content.choice.groups_as_of) == (None, None)
    assert "no restore point was captured at or before 2023-11-14T22:13:25.000Z" in content.choice.notes[0]
    with pytest.raises(UsageError, match="there is no topic x in the archive at that time"):
        chosen(store, to_time=str(T0 - 1), topics=["/or.*/", "x"])


def test_from_a_time_on_it_is_the_restore_point_that_was_asked_for(store: FaultyStore) -> None:
    make_archive(store)
    content = chosen(store, from_time=str(T0 + 15_000), restore_point=1)
    assert sizes_of(content)["orders"][0] == (0, 0)
    assert groups(content)["billing"] == [("clicks", 0, 5), ("orders", 0, 4), ("orders", 1, 12)]
    newest = chosen(store, from_time=str(T0 + 15_000))
    assert newest.restore_point == 2
    assert sizes_of(newest)["orders"][0][0] >= 24
    with pytest.raises(UsageError, match="--from-time now is later than --to-time 2h ago"):
        chosen(store, from_time="now", to_time="2h ago")


def reborn(name: str, captured: int, incarnation: int, segments: Sequence[Segment]) -> TopicState:
    state = topic_state(name, captured, "present", [(0, 50, segments)])
    return msgspec.structs.replace(state, incarnation=incarnation)


def test_topics_new_in_the_next_point_are_selected_if_they_have_records(store: FaultyStore) -> None:
    """Run 2 finds topics that are new, one with records and one without; run 3 finds another, and orders anew."""
    archive = open_or_create(store)
    orders = write(store, Target("orders", 1, 0, 1000, "none"), range(5))
    new = write(store, Target("new", 1, 0, 1000, "none"), range(5))
    late = write(store, Target("late", 1, 0, 1000, "none"), range(5))
    again = write(store, Target("orders", 2, 0, 1000, "none"), range(5))
    one = topic_state("orders", 1, "present", [(0, 5, orders)])
    two = [
        topic_state("empty", 2, "present", [(0, 0, [])]),
        topic_state("new", 2, "present", [(0, 5, new)]),
        topic_state("orders", 2, "present", [(0, 5, orders)]),
    ]
    three = [
        topic_state("empty", 3, "present", [(0, 0, [])]),
        topic_state("late", 3, "present", [(0, 5, late)]),
        topic_state("new", 3, "present", [(0, 5, new)]),
        reborn("orders", 3, 2, again),
    ]
    commit_point(archive, 1, [one], orders, [group_at("g", ("orders", 0, 2))])
    commit_point(archive, 2, two, new, [group_at("g", ("orders", 0, 3), ("new", 0, 1))])
    commit_point(archive, 3, three, [*late, *again], [group_at("g", ("orders", 0, 4), ("new", 0, 4))])

    content = chosen(store, to_time=BETWEEN)
    assert [(t.name, t.incarnation, t.as_of) for t in content.topics] == [("new", 1, 2), ("orders", 1, 1)]
    assert groups(content) == {"g": [("orders", 0, 2)]}
    assert content.choice is not None
    assert content.choice.notes[-1].endswith("the next one, with records in the window: new")
    assert [words.partition(" (")[0] for words in content.choice.left_out] == [
        "topic late was first captured later and has records in the window: it is restored where it is asked for "
        "by name",
        "topic orders was begun anew later",
    ]
    named = chosen(store, to_time=BETWEEN, topics=["late", "new"])
    assert list(sizes_of(named)) == ["late", "new"]
    assert named.choice is not None
    assert named.choice.left_out == ()

    other = chosen(store, to_time=BETWEEN, restore_point=3, topics=["orders"])
    assert [(t.incarnation, t.as_of) for t in other.topics] == [(2, 3)]
    assert other.groups == {}, "they stood in the incarnation before"


def test_a_topic_deleted_by_then_and_made_anew_later(store: FaultyStore) -> None:
    """By its name it comes as it was before then; the other incarnation takes its restore point."""
    archive = open_or_create(store)
    old = write(store, Target("orders", 1, 0, 1000, "none"), range(5))
    again = write(store, Target("orders", 2, 0, 1000, "none"), range(7))
    there = topic_state("orders", 1, "present", [(0, 5, old)])
    gone = msgspec.structs.replace(there, state="deleted")
    commit_point(archive, 1, [there], old, [group_at("g", ("orders", 0, 2))])
    commit_point(archive, 2, [gone], [], [])
    commit_point(archive, 3, [gone], [], [])
    commit_point(archive, 4, [reborn("orders", 4, 2, again)], again, [group_at("g", ("orders", 0, 6))])
    with pytest.raises(UsageError, match="there is no topic x in restore point 2"):
        chosen(store, to_time="2026-01-02T12:00:00Z", topics=["x"])
    content = chosen(store, to_time="2026-01-02T12:00:00Z", topics=["orders"])
    assert sizes_of(content) == {"orders": [(5, 1)]}
    assert groups(content) == {"g": [("orders", 0, 2)]}
    everything = chosen(store, to_time="2026-01-02T12:00:00Z")
    assert everything.topics == ()
    assert everything.choice is not None
    assert "of that time is incarnation 1" in everything.choice.left_out[0]
