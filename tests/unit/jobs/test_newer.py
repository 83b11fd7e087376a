"""Records of the source that a restore point lacks: read where they are few, else counted by offsets."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from kbackup.archive import layout
from kbackup.archive.models import Manifest, PartitionState
from kbackup.archive.restores.journal import RestoreJournal
from kbackup.archive.restores.offset_map import encode, runs_table
from kbackup.errors import ClusterError, RefusedError
from kbackup.jobs.newer import (
    NewerRecords,
    UnarchivedPartition,
    backup_first,
    newer_in_source,
    newer_sentences,
    refused_with,
)
from kbackup.kafka.control.topics import Topic
from kbackup.store.base import Store
from kbackup.types import OffsetRange, TopicPartition
from tests.support.archives import restore_plan
from tests.support.memory_store import MemoryStore
from tests.support.target_topics import finish_restore, note_topics, target_topic
from tests.unit.jobs.backup.test_plan import archived

CLUSTER = "the cluster"


class Source:
    """In place of `Cluster` and `LiveCluster`: the topic orders, with start and end of each log. Offsets in `empty`
    have no record, and consumers see the logs up to `stable`. `denied`: nothing can be read."""

    def __init__(
        self,
        *logs: tuple[int, int],
        id: str = "A",
        offline: tuple[int, ...] = (),
        empty: Collection[int] = (),
        stable: int | None = None,
        denied: bool = False,
    ) -> None:
        self._logs = logs
        self._topic = Topic("orders", id, False, tuple(range(len(logs))), 1, offline=offline)
        self._empty, self._stable, self._denied = empty, stable, denied
        self.cluster = self
        self.id = CLUSTER
        self.read: list[OffsetRange] = []

    def offsets_of_records(self, ranges: Sequence[OffsetRange], isolation: str) -> dict[TopicPartition, list[int]]:
        assert isolation == "read_committed"
        if self._denied:
            raise ClusterError("reading orders-0: not authorized")
        self.read += ranges
        return {each.tp: [n for n in range(each.start, each.end) if n not in self._empty] for each in ranges}

    def topic_names(self) -> list[str]:
        return ["orders", "unknown"]

    def topics(self, names: set[str]) -> dict[str, Topic]:
        return dict.fromkeys(names, self._topic)

    def log_starts(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self._logs[tp.partition][0] for tp in partitions}

    def log_ends(self, partitions: list[TopicPartition], isolation: str) -> dict[TopicPartition, int]:
        ends = {tp: self._logs[tp.partition][1] for tp in partitions}
        if isolation == "read_committed" and self._stable is not None:
            return dict.fromkeys(ends, self._stable)
        return ends


class Points:
    """In place of `Archive`: restore point 1, and the newest one."""

    def __init__(self, one: Manifest, newest: Manifest) -> None:
        self.state: Any = self
        self.restore_points = (1, 2)
        self.info: Any = SimpleNamespace(id="x")
        self._points: dict[object, Manifest] = {1: one, "latest": newest}

    def restore_point(self, name: object) -> Manifest:
        return self._points[name]


def point(*ends: int, **changes: Any) -> Manifest:
    """A restore point of the topic orders with these ends; `changes` are of its first partition."""
    made = msgspec.structs.replace(archived(*ends), cluster_id=CLUSTER)
    (topic,) = made.topics
    first: PartitionState = msgspec.structs.replace(topic.partitions[0], **changes)
    topic = msgspec.structs.replace(topic, partitions=(first, *topic.partitions[1:]))
    return msgspec.structs.replace(made, topics=(topic,))


def newer(source: Source, one: Manifest, newest: Manifest | None = None, journals: Store | None = None) -> Any:
    live: Any = source
    archive: Any = Points(one, newest or one)
    return newer_in_source(live, archive, 1, {"orders"}, journals or MemoryStore())


def unarchived(**records: int) -> tuple[UnarchivedPartition, ...]:
    """Records that no restore point has, by partition: `unarchived(p0=5)`."""
    partitions: list[UnarchivedPartition] = []
    for name, count in records.items():
        partitions.append(UnarchivedPartition(partition=int(name[1:]), records=count))
    return tuple(partitions)


@pytest.mark.parametrize(
    ("source", "behind"),
    [
        (Source((0, 15)), unarchived(p0=5)),
        (Source((12, 15)), unarchived(p0=3)),
        (Source((0, 15), (3, 9)), unarchived(p0=5, p1=6)),
        (Source((0, 15), (3, 9), offline=(1,)), unarchived(p0=5)),
    ],
    ids=["new records", "retention took two", "a new partition", "one without a leader"],
)
def test_records_behind_the_archived_end_are_newer(source: Source, behind: tuple[UnarchivedPartition, ...]) -> None:
    (found,) = newer(source, point(10))
    assert found.records == sum(partition.records for partition in behind)
    assert found.unarchived == behind


@pytest.mark.parametrize("source", [Source((0, 10)), Source((0, 4))], ids=["nothing new", "a cut log"])
def test_a_topic_without_newer_records_is_not_named(source: Source) -> None:
    assert newer(source, point(10)) == ()


def test_records_of_open_transactions_are_newer() -> None:
    (found,) = newer(Source((0, 12)), point(10, held=((3, 6), (8, 9))))
    assert (found.records, found.unarchived) == (6, unarchived(p0=6))


def test_records_of_later_restore_points_are_told_apart() -> None:
    (found,) = newer(Source((0, 50)), point(10), point(30))
    assert (found.records, found.in_later_points, found.unarchived) == (40, 20, unarchived(p0=20))
    (found,) = newer(Source((25, 28)), point(10), point(30))
    assert (found.records, found.in_later_points, found.unarchived) == (3, 3, ())


def test_records_of_a_transaction_that_the_newest_restore_point_holds_back_are_in_none() -> None:
    (found,) = newer(Source((0, 30)), point(10), point(30, held=((20, 24),)))
    assert (found.records, found.in_later_points, found.unarchived) == (20, 16, unarchived(p0=4))


def test_another_topic_of_the_same_name_counts_whole() -> None:
    (found,) = newer(Source((5, 12), id="B"), point(10))
    assert (found.records, found.recreated, found.unarchived) == (7, True, unarchived(p0=7))


def test_a_topic_that_was_made_anew_and_backed_up_since_is_in_a_later_restore_point() -> None:
    newest = point(9)
    (topic,) = newest.topics
    topic = msgspec.structs.replace(topic, id="B", incarnation=2)
    newest = msgspec.structs.replace(newest, topics=(topic,))
    (found,) = newer(Source((0, 12), id="B"), point(10), newest)
    assert (found.records, found.in_later_points, found.unarchived) == (12, 9, unarchived(p0=3))


def test_without_ids_of_topics_a_topic_of_the_same_name_counts_as_the_same() -> None:
    (found,) = newer(Source((5, 12), id=""), point(10))
    assert (found.records, found.recreated) == (2, False)


def test_another_cluster_is_not_counted() -> None:
    another = Source((0, 50))
    another.id = "another"
    assert newer(another, point(10)) == ()
    unknown = msgspec.structs.replace(point(10), cluster_id="")
    assert newer(Source((0, 50)), unknown) == ()
    assert newer_in_source(Source((0, 50)), None, 0, {"orders"}, MemoryStore()) == ()  # type: ignore[arg-type]


# Few offsets are read; many are an upper bound.


def test_offsets_without_a_record_do_not_count_where_they_are_read() -> None:
    (found,) = newer(Source((0, 15), empty=(10, 14)), point(10))
    assert (found.records, found.exact, found.unarchived) == (3, True, unarchived(p0=3))


def test_a_topic_whose_newer_offsets_have_no_record_is_not_named() -> None:
    assert newer(Source((0, 12), empty=(10, 11)), point(10)) == ()


def test_records_of_later_restore_points_are_read_apart() -> None:
    (found,) = newer(Source((0, 50), empty=(11, 31, 32)), point(10), point(30))
    assert (found.records, found.in_later_points, found.unarchived) == (37, 19, unarchived(p0=18))


def test_only_the_offsets_that_the_restore_point_lacks_are_read() -> None:
    source = Source((0, 12), empty=(4,))
    (found,) = newer(source, point(10, held=((3, 6), (8, 9))))
    assert (found.records, source.read) == (5, [OffsetRange("orders", 0, 3, 12)])


@pytest.mark.parametrize(
    ("source", "records"),
    [(Source((0, 10_011)), 10_001), (Source((0, 15), stable=13), 5), (Source((0, 15), denied=True), 5)],
    ids=["many", "an open transaction", "no right to read"],
)
def test_elsewhere_the_count_is_an_upper_bound(source: Source, records: int) -> None:
    (found,) = newer(source, point(10))
    assert (found.records, found.exact) == (records, False)


def test_large_records_are_not_read_in_great_numbers() -> None:
    source = Source((0, 110))
    (found,) = newer(source, point(10, bytes=10 << 20))
    assert (found.exact, source.read) == (False, []), "100 records of 1 MiB"


# A topic that a restore has created again.


def restored(*runs: tuple[int, int], restore_point: int = 1, outcome: str = "finished") -> MemoryStore:
    """Return the documents of restore r, which made the topic orders with id B. `runs` are the offsets and the counts
    of the restored records in partition 0."""
    store = MemoryStore()
    journal = RestoreJournal(store, "r")
    journal.begin(restore_plan(restore_point=restore_point))
    note_topics(store, "r", [target_topic("B")], cluster_id=CLUSTER, archive_id="x", restore_point=restore_point)
    if outcome == "finished":
        columns = (
            np.arange(len(runs), dtype=np.int64),
            np.array([start for start, _ in runs], np.int64),
            np.array([count for _, count in runs], np.int64),
        )
        table = runs_table({TopicPartition("orders", 0): columns})
        journal.write_offset_map(encode(table, journal.key(layout.OFFSETS)))
        finish_restore(store, "r")
    return store


def test_records_that_a_restore_brought_back_are_not_newer() -> None:
    source = Source((0, 14), id="B", empty=(11,))
    (found,) = newer(source, point(10), journals=restored((0, 6), (7, 4)))
    assert (found.records, found.unarchived) == (2, unarchived(p0=2)), "offsets 6 and 11 are markers"
    assert found.restored_by.restore_id == "r"


def test_a_restored_topic_with_nothing_newer_is_named() -> None:
    source = Source((0, 12), id="B")
    (found,) = newer(source, point(10), journals=restored((0, 11)))
    assert (found.records, found.recreated, found.exact, source.read) == (0, True, True, [])
    (sentence,) = newer_sentences([found], 1)
    assert sentence == (
        "in the source, topic orders was created again by restore r of restore point 1: every record in it is archived"
    )


def test_a_gap_that_is_wider_than_a_marker_may_hold_records_of_others() -> None:
    (found,) = newer(Source((0, 12), id="B"), point(10), journals=restored((0, 5), (7, 4)))
    assert found.unarchived == unarchived(p0=2)


def test_records_that_a_later_restore_point_brought_back_are_newer_and_archived() -> None:
    (found,) = newer(Source((0, 12), id="B"), point(10), journals=restored((0, 11), restore_point=2))
    assert (found.records, found.in_later_points, found.unarchived) == (12, 12, ())


def test_an_unfinished_restore_does_not_say_which_records_came_back() -> None:
    source = Source((0, 12), id="B")
    (found,) = newer(source, point(10), journals=restored(outcome="unfinished"))
    assert (found.records, found.exact, source.read) == (12, False, [])
    (sentence,) = newer_sentences([found], 1)
    assert sentence == (
        "in the source, topic orders was created again by restore r of restore point 1, which is not finished: it has "
        "up to 12 records, with those that came back; in no restore point: up to 12 of partition 0"
    )


def test_a_damaged_offset_map_does_not_say_which_records_came_back() -> None:
    store = restored((0, 11))
    store.put("restores/r/offsets.parquet", b"damaged")
    (found,) = newer(Source((0, 12), id="B"), point(10), journals=store)
    assert (found.records, found.exact) == (12, False)


# In words.


def test_every_topic_has_a_sentence_up_to_a_limit() -> None:
    found = [NewerRecords(topic=f"t{n}", records=1000, exact=True) for n in range(23)]
    sentences = newer_sentences(found, 7)
    assert sentences[0] == "topic t0: 1,000 records in the source are newer than restore point 7"
    assert (len(sentences), sentences[-1].partition(":")[0]) == (21, "3 more topics")
    assert "3,000 records" in sentences[-1]
    (one,) = newer_sentences([NewerRecords(topic="t", records=1, in_later_points=1, exact=True)], 7)
    assert one == "topic t: 1 record in the source is newer than restore point 7; it is in a later restore point"
    (all_of_them,) = newer_sentences([NewerRecords(topic="t", records=9, in_later_points=9, exact=True)], 7)
    assert all_of_them.endswith(
        "9 records in the source are newer than restore point 7; all of them are in later restore points"
    )
    (again,) = newer_sentences([NewerRecords(topic="t", records=9, recreated=True)], 7)
    assert again == (
        "in the source, topic t was deleted and created again: it is not the topic of restore point 7, which lacks all "
        "its records, up to 9 records"
    )


def test_a_sentence_names_the_partitions_whose_records_are_in_no_restore_point() -> None:
    in_none = unarchived(p0=200, p2=34)
    topic = NewerRecords(topic="orders", records=1234, in_later_points=1000, unarchived=in_none, exact=True)
    (sentence,) = newer_sentences([topic], 7)
    assert sentence == (
        "topic orders: 1,234 records in the source are newer than restore point 7; 1,000 of them are in later restore "
        "points; in no restore point: 200 of partition 0, 34 of partition 2"
    )


def test_upper_bounds_are_told_as_such() -> None:
    topic = NewerRecords(topic="orders", records=12, in_later_points=8, unarchived=unarchived(p0=4))
    (sentence,) = newer_sentences([topic], 7)
    assert sentence == (
        "topic orders: up to 12 records in the source are newer than restore point 7; up to 8 of them are in later "
        "restore points; in no restore point: up to 4 of partition 0"
    )


def test_a_backup_is_advised_where_records_are_in_no_restore_point() -> None:
    archived = NewerRecords(topic="t", records=3, in_later_points=3)
    assert backup_first([archived]) == []
    counted = NewerRecords(topic="u", records=5, unarchived=unarchived(p0=5), exact=True)
    (advice,) = backup_first([archived, counted])
    assert advice.startswith("5 records of the source are in no restore point: run 'kbackup backup' first")
    (at_most,) = backup_first([counted, msgspec.structs.replace(counted, exact=False)])
    assert at_most.startswith("up to 10 records of the source are in no restore point")


def test_a_refusal_says_it_before_its_hints() -> None:
    error = RefusedError("topic orders is not empty", "delete it")
    assert refused_with(error, []) is error
    told = refused_with(error, ["topic orders: 5 records"]).message
    assert told.index("5 records") < told.index("is not empty")
