"""Records of the source that are newer than the archive are told before anybody deletes a topic."""

from __future__ import annotations

from scripts.dev.kafka import Broker
from tests.integration import topics
from tests.integration.conftest import Archive, Kbackup


def grow(broker: Broker, name: str, count: int) -> None:
    topics.produce(broker, name, 0, topics.numbered(count))


def test_a_restore_into_the_source_counts_what_is_newer_there(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str
) -> None:
    quiet = f"{topic_name}-quiet"
    for name in (topic_name, quiet):
        broker.create_topic(name)
        grow(broker, name, 10)
    only = ["-t", topic_name, "-t", quiet]
    kbackup.backup(archive, *only)
    grow(broker, topic_name, 1000)
    kbackup.backup(archive, *only)
    grow(broker, topic_name, 234)
    count = "1,234 records in the source are newer than restore point 1"
    told = f"topic {topic_name}: {count}; 1,000 of them are in later restore points"
    in_none = [{"partition": 0, "records": 234}]
    counted = [
        {
            "topic": topic_name,
            "records": 1234,
            "in_later_points": 1000,
            "recreated": False,
            "unarchived": in_none,
            "exact": True,
            "restored_by": None,
        }
    ]
    advice = "234 records of the source are in no restore point: run 'kbackup backup' first"
    words = [*only, "--restore-point", "1"]
    beside = ["--map", f"{topic_name}={topic_name}-restored", "--map", f"{quiet}={quiet}-restored"]

    planned = kbackup.restore(archive, *words, *beside, "--dry-run")
    assert planned["newer"] == counted
    assert [w for w in planned["warnings"] if told in w]
    assert [w for w in planned["warnings"] if advice in w]
    refused = kbackup("restore", archive.url, *words, "--dry-run")
    assert refused.code != 0
    assert told in refused.err, "its hints make somebody delete the topic"
    assert advice in refused.err
    assert "is not empty" in refused.err
    done = kbackup.restore(archive, *words, *beside)
    assert done["newer"] == counted

    away = ["--map", f"{topic_name}=x-{topic_name}"]
    newest = kbackup.restore(archive, "-t", topic_name, *away, "--dry-run")
    assert [(each["records"], each["in_later_points"]) for each in newest["newer"]] == [(234, 0)]


def test_a_topic_that_was_created_again_is_told(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str
) -> None:
    broker.create_topic(topic_name)
    grow(broker, topic_name, 10)
    kbackup.backup(archive, "-t", topic_name)
    topics.delete_topic(broker, topic_name)
    gone = kbackup.restore(archive, "-t", topic_name, "--dry-run")
    assert gone["newer"] == [], "nothing is there to lose"
    broker.create_topic(topic_name)
    grow(broker, topic_name, 7)
    planned = kbackup.restore(archive, "-t", topic_name, "--map", f"{topic_name}=x-{topic_name}", "--dry-run")
    (newer,) = planned["newer"]
    assert (newer["records"], newer["recreated"], newer["unarchived"]) == (7, True, [{"partition": 0, "records": 7}])
    told = f"in the source, topic {topic_name} was deleted and created again: it is not the topic of restore point 1"
    assert any(told in warning for warning in planned["warnings"])


def test_markers_and_aborted_records_are_not_counted_as_records(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str
) -> None:
    broker.create_topic(topic_name)
    grow(broker, topic_name, 10)
    kbackup.backup(archive, "-t", topic_name)
    for _ in range(4):
        topics.committed(broker, topic_name, 0, topics.numbered(2))
    topics.aborted(broker, topic_name, 0, topics.numbered(5))
    newest = ["-t", topic_name, "--map", f"{topic_name}=x-{topic_name}", "--dry-run"]
    (newer,) = kbackup.restore(archive, *newest)["newer"]
    assert (newer["records"], newer["exact"]) == (8, True)


def test_records_of_an_open_transaction_are_counted_at_most(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str
) -> None:
    broker.create_topic(topic_name)
    grow(broker, topic_name, 10)
    kbackup.backup(archive, "-t", topic_name)
    open_transaction = topics.begin(broker, topic_name, 0, topics.numbered(3))
    newest = ["-t", topic_name, "--map", f"{topic_name}=x-{topic_name}", "--dry-run"]
    planned = kbackup.restore(archive, *newest)
    open_transaction.abort_transaction(60)
    (newer,) = planned["newer"]
    assert (newer["records"], newer["exact"]) == (3, False)
    told = f"topic {topic_name}: up to 3 records in the source are newer than restore point 1"
    assert [warning for warning in planned["warnings"] if told in warning]


def test_many_newer_offsets_are_not_read(broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str) -> None:
    broker.create_topic(topic_name)
    grow(broker, topic_name, 10)
    kbackup.backup(archive, "-t", topic_name)
    grow(broker, topic_name, 10_001)
    newest = ["-t", topic_name, "--map", f"{topic_name}=x-{topic_name}", "--dry-run"]
    planned = kbackup.restore(archive, *newest)
    (newer,) = planned["newer"]
    assert (newer["records"], newer["exact"]) == (10_001, False)
    told = "up to 10,001 records of the source are in no restore point: run 'kbackup backup' first"
    assert [warning for warning in planned["warnings"] if told in warning]


def test_a_comparison_with_the_source_names_what_it_does_not_compare(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str
) -> None:
    broker.create_topic(topic_name, 2)
    grow(broker, topic_name, 10)
    kbackup.backup(archive, "-t", topic_name)
    against = ["verify", archive.url, "--against", "source", "-t", topic_name]
    assert kbackup.run(*against)["newer"] == []
    grow(broker, topic_name, 5)
    topics.produce(broker, topic_name, 1, topics.numbered(2))
    report = kbackup.run(*against)
    (newer,) = report["newer"]
    assert newer["records"] == 7
    assert newer["unarchived"] == [{"partition": 0, "records": 5}, {"partition": 1, "records": 2}]
    assert report["notes"] == [
        f"topic {topic_name}: 7 records in the source are newer than restore point 1; in no restore point: 5 of "
        "partition 0, 2 of partition 1"
    ]
    assert (report["records"], report["same"], report["findings"]) == (10, 10, [])


def test_another_target_is_not_the_source(broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str) -> None:
    broker.create_topic(topic_name)
    grow(broker, topic_name, 10)
    kbackup.backup(archive, "-t", topic_name)
    grow(broker, topic_name, 5)
    with Broker() as other:
        planned = kbackup.restore(archive, "-t", topic_name, "--bootstrap-server", other.bootstrap, "--dry-run")
    assert planned["newer"] == []
