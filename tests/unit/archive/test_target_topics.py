"""Which restore a topic comes from: by the id of the topic in its cluster, and by nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from kbackup.archive import layout
from kbackup.archive.restores.target_topics import (
    FoundRestores,
    TargetTopic,
    TargetTopics,
    TopicRestore,
    created_again,
    find_restores,
    is_brought_back,
    topics_to_note,
)
from kbackup.errors import DeniedError
from tests.support.memory_store import MemoryStore
from tests.support.target_topics import finish_restore, note_topics, target_topic

ARCHIVE, CLUSTER = "the archive", "the cluster"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def note(store: MemoryStore, restore_id: str = "r-1", *topics: TargetTopic, **other: Any) -> None:
    """Write down the topics of a restore into the cluster: by default the topic orders, with id B."""
    given = {"cluster_id": CLUSTER, "archive_id": ARCHIVE, **other}
    note_topics(store, restore_id, topics or [target_topic("B")], **given)


def find(store: MemoryStore, *ids: str) -> FoundRestores:
    return find_restores(store, ARCHIVE, CLUSTER, ids)


def restore(**changes: object) -> TopicRestore:
    members = {
        "restore_id": "r-1",
        "restore_point": 7,
        "source": "orders",
        "created": True,
        "selected": False,
        "outcome": "finished",
    }
    return TopicRestore(**{**members, **changes})  # type: ignore[arg-type]


def test_a_topic_is_found_by_its_id_in_its_cluster(store: MemoryStore) -> None:
    note(store)
    finish_restore(store, "r-1")
    assert find(store, "B", "C") == FoundRestores({"B": restore()})


@pytest.mark.parametrize("other", [{"cluster_id": "another"}, {"archive_id": "another"}], ids=["cluster", "archive"])
def test_a_topic_of_another_cluster_or_archive_is_not_found(store: MemoryStore, other: dict[str, str]) -> None:
    note(store, **other)
    finish_restore(store, "r-1")
    assert find(store, "B").by_topic_id == {}


def test_a_topic_or_cluster_without_an_id_is_not_looked_for(store: MemoryStore) -> None:
    note(store, "r-1", target_topic(""))
    assert find(store, "").by_topic_id == {}
    note(store, "r-2", cluster_id="")
    assert find_restores(store, ARCHIVE, "", ["B"]).by_topic_id == {}


def test_a_restore_without_a_report_is_not_finished(store: MemoryStore) -> None:
    note(store)
    assert find(store, "B").by_topic_id["B"].outcome == "unfinished"


def test_a_topic_that_a_later_run_left_out_is_told_apart(store: MemoryStore) -> None:
    note(store, "r-1", target_topic("B"), target_topic("C", source="clicks", target="clicks"))
    finish_restore(store, "r-1", "orders")
    found = find(store, "B", "C").by_topic_id
    assert {id_: each.outcome for id_, each in found.items()} == {"B": "left out", "C": "finished"}


def test_the_restore_that_created_a_topic_counts_and_not_one_that_filled_it_later(store: MemoryStore) -> None:
    note(store, "r-9")
    note(store, "r-1", target_topic(created=False))
    assert find(store, "B").by_topic_id["B"].restore_id == "r-9"


def test_a_damaged_document_is_named_and_the_others_still_count(store: MemoryStore) -> None:
    note(store, "r-1")
    note(store, "r-2", target_topic("C"))
    key = layout.restore_key("r-2", "topics-1.json")
    store.put(key, store.get(key).replace(b'"C"', b'"D"'))
    found = find(store, "B", "C")
    assert list(found.by_topic_id) == ["B"]
    assert found.problems == (f"file {key} does not match its own checksum",)


def test_an_archive_whose_restores_may_not_be_read_gives_a_problem() -> None:
    class Closed(MemoryStore):
        def list_dirs(self, prefix: str = "") -> object:  # type: ignore[override]
            raise DeniedError("store x denies us the listing")

    assert find(Closed(), "B") == FoundRestores({}, ("store x denies us the listing",))


def test_other_folders_beside_those_of_restores_are_passed_over(store: MemoryStore) -> None:
    store.put("restores/not an id/topics-1.json", b"x")
    note(store)
    assert list(find(store, "B").by_topic_id) == ["B"]


def test_a_topic_under_another_id_is_not_noted_unless_the_restore_created_it() -> None:
    earlier = TargetTopics(
        restore_id="r-1",
        number=1,
        by="restore",
        captured_at="",
        target_cluster_id=CLUSTER,
        archive_id=ARCHIVE,
        restore_point=7,
        selected=False,
        topics=(target_topic("B"),),
    )
    of_others = target_topic("C", created=False)
    made_anew = target_topic("C", created=True)
    more = target_topic("D", target="clicks", created=False)
    without_id = target_topic("", target="old", created=True)
    assert topics_to_note([earlier], [of_others, more, without_id]) == (more,)
    assert topics_to_note([earlier], [made_anew]) == (made_anew,)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "topic orders was created again by restore r-1 of restore point 7"),
        ({"created": False}, "topic orders was created again, and filled by restore r-1 of restore point 7"),
        ({"selected": True}, "topic orders was created again by restore r-1 of restore point 7 with selected records"),
        (
            {"source": "clicks"},
            "topic orders was created again by restore r-1 of restore point 7 with the records of topic clicks",
        ),
        (
            {"outcome": "unfinished"},
            "topic orders was created again by restore r-1 of restore point 7, which is not finished",
        ),
        (
            {"outcome": "left out"},
            "topic orders was created again by restore r-1 of restore point 7, which left the topic out in the end",
        ),
    ],
)
def test_the_words_say_who_created_a_topic_and_what_came_back(changes: dict[str, object], words: str) -> None:
    assert created_again("orders", restore(**changes)) == words


def test_the_words_say_nothing_of_an_unknown_creator() -> None:
    assert created_again("orders", None) == "topic orders was deleted and created again"


def test_only_a_finished_restore_of_all_records_has_brought_a_topic_back() -> None:
    assert is_brought_back(restore())
    others = [None, restore(outcome="unfinished"), restore(outcome="left out"), restore(selected=True)]
    assert [is_brought_back(each) for each in others] == [False] * 4
