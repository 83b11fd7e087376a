"""Records of the source that a restore point lacks, counted by offsets."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kbackup.archive.models import Manifest, PartitionState
from kbackup.errors import RefusedError
from kbackup.jobs.newer import (
    NewerRecords,
    UnarchivedPartition,
    backup_first,
    newer_in_source,
    newer_sentences,
    refused_with,
)
from kbackup.kafka.control.topics import Topic
from kbackup.types import TopicPartition
from tests.unit.jobs.backup.test_plan import archived

CLUSTER = "the cluster"


class Source:
    """In place of `Cluster`: the topic orders, with start and end of each log."""

    def __init__(self, *logs: tuple[int, int], id: str = "A", offline: tuple[int, ...] = ()) -> None:
        self._logs = logs
        self._topic = Topic("orders", id, False, tuple(range(len(logs))), 1, offline=offline)

    def topic_names(self) -> list[str]:
        return ["orders", "unknown"]

    def topics(self, names: set[str]) -> dict[str, Topic]:
        return dict.fromkeys(names, self._topic)

    def log_starts(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self._logs[tp.partition][0] for tp in partitions}

    def log_ends(self, partitions: list[TopicPartition], isolation: str) -> dict[TopicPartition, int]:
        assert isolation == "read_uncommitted"
        return {tp: self._logs[tp.partition][1] for tp in partitions}


class Points:
    """In place of `Archive`: restore point 1, and the newest one."""

    def __init__(self, one: Manifest, newest: Manifest) -> None:
        self.state: Any = self
        self.restore_points = (1, 2)
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


def newer(source: Source, one: Manifest, newest: Manifest | None = None, cluster_id: str = CLUSTER) -> Any:
    cluster: Any = source
    archive: Any = Points(one, newest or one)
    return newer_in_source(cluster, cluster_id, archive, 1, {"orders"})


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
    assert newer(Source((0, 50)), point(10), cluster_id="another") == ()
    unknown = msgspec.structs.replace(point(10), cluster_id="")
    assert newer(Source((0, 50)), unknown) == ()
    assert newer_in_source(Source((0, 50)), CLUSTER, None, 0, {"orders"}) == ()  # type: ignore[arg-type]


def test_every_topic_has_a_sentence_up_to_a_limit() -> None:
    found = [NewerRecords(topic=f"t{n}", records=1000) for n in range(23)]
    sentences = newer_sentences(found, 7)
    assert sentences[0] == "topic t0: 1,000 records in the source are newer than restore point 7"
    assert (len(sentences), sentences[-1].partition(":")[0]) == (21, "3 more topics")
    assert "3,000 records" in sentences[-1]
    (one,) = newer_sentences([NewerRecords(topic="t", records=1, in_later_points=1)], 7)
    assert one == "topic t: 1 record in the source is newer than restore point 7; 1 of them are in later restore points"
    (again,) = newer_sentences([NewerRecords(topic="t", records=9, recreated=True)], 7)
    assert "was created again in the source" in again


def test_a_sentence_names_the_partitions_whose_records_are_in_no_restore_point() -> None:
    topic = NewerRecords(topic="orders", records=1234, in_later_points=1000, unarchived=unarchived(p0=200, p2=34))
    (sentence,) = newer_sentences([topic], 7)
    assert sentence == (
        "topic orders: 1,234 records in the source are newer than restore point 7; 1,000 of them are in later restore "
        "points; in no restore point: 200 of partition 0, 34 of partition 2"
    )


def test_a_backup_is_advised_where_records_are_in_no_restore_point() -> None:
    archived = NewerRecords(topic="t", records=3, in_later_points=3)
    assert backup_first([archived]) == []
    (advice,) = backup_first([archived, NewerRecords(topic="u", records=5, unarchived=unarchived(p0=5))])
    assert advice.startswith("5 records of the source are in no restore point: run 'kbackup backup' first")


def test_a_refusal_says_it_before_its_hints() -> None:
    error = RefusedError("topic orders is not empty", "delete it")
    assert refused_with(error, []) is error
    told = refused_with(error, ["topic orders: 5 records"]).message
    assert told.index("5 records") < told.index("is not empty")
