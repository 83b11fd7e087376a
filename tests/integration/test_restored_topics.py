"""A topic that a restore has brought back into its own cluster is no loss; one that somebody else created is."""

from __future__ import annotations

from typing import Any

from kbackup.archive import layout
from kbackup.archive.models import load
from kbackup.archive.reader import open_archive
from kbackup.archive.restores.target_topics import TargetTopics
from scripts.dev.kafka import Broker
from tests.integration import topics
from tests.integration.conftest import Archive, Kbackup


def back_up(broker: Broker, kbackup: Kbackup, archive: Archive, name: str, partitions: int = 2) -> dict[str, Any]:
    broker.create_topic(name, partitions)
    topics.produce(broker, name, 0, topics.numbered(10))
    return kbackup.backup(archive, "-t", name)


def restore_deleted(broker: Broker, kbackup: Kbackup, archive: Archive, name: str, *words: str) -> dict[str, Any]:
    topics.delete_topic(broker, name)
    return kbackup.restore(archive, "-t", name, *words)


def about(report: dict[str, Any], name: str) -> list[str]:
    """The warnings of a report about a topic."""
    warnings: list[str] = report["warnings"]
    return [warning for warning in warnings if name in warning]


def test_a_topic_that_a_restore_brought_back_is_no_loss(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str
) -> None:
    back_up(broker, kbackup, archive, topic_name)
    restored = restore_deleted(broker, kbackup, archive, topic_name, "--restore-id", "r-1")
    assert restored["records"] == 10
    second = kbackup.backup(archive, "-t", topic_name, code=0)
    assert second["losses"] == []
    assert second["new_records"] == {topic_name: 10}
    assert about(second, topic_name) == [
        f"topic {topic_name} was created again by restore r-1 of restore point 1 (incarnation 2); its records are "
        "archived anew, so the archive has them twice until restore point 1 and those before it expire; records that "
        "the former topic got after restore point 1 are in no restore point"
    ]
    assert open_archive(archive.store).state.losses.dicts() == []
    third = kbackup.backup(archive, "-t", topic_name, code=0)
    assert about(third, topic_name) == [], "it is told once"
    status = kbackup.run("status", archive.url)
    assert [finding["subject"] for finding in status["findings"]] == []


def test_a_topic_that_somebody_else_created_again_is_a_loss(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str
) -> None:
    back_up(broker, kbackup, archive, topic_name)
    topics.delete_topic(broker, topic_name)
    broker.create_topic(topic_name)
    second = kbackup.backup(archive, "-t", topic_name, code=3)
    (loss,) = second["losses"]
    assert loss["kind"] == "recreated"
    assert loss["message"] == (
        f"topic {topic_name} was deleted and created again (incarnation 2); lost are at most the records that the "
        "former topic got after restore point 1 and before its deletion"
    )


def test_a_restored_topic_that_somebody_deleted_and_created_again_is_a_loss(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str
) -> None:
    back_up(broker, kbackup, archive, topic_name)
    restore_deleted(broker, kbackup, archive, topic_name)
    topics.delete_topic(broker, topic_name)
    broker.create_topic(topic_name)
    second = kbackup.backup(archive, "-t", topic_name, code=3)
    assert [loss["kind"] for loss in second["losses"]] == ["recreated"], "its name alone proves nothing"


def test_a_restore_into_an_empty_topic_that_was_created_before_is_no_loss(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str
) -> None:
    back_up(broker, kbackup, archive, topic_name)
    topics.delete_topic(broker, topic_name)
    broker.create_topic(topic_name, 2)
    kbackup.restore(archive, "-t", topic_name, "--restore-id", "r-1")
    (warning,) = about(kbackup.backup(archive, "-t", topic_name, code=0), topic_name)
    assert warning.startswith(f"topic {topic_name} was created again, and filled by restore r-1 of restore point 1")


def test_a_restore_that_is_not_finished_is_told_and_is_no_loss(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str
) -> None:
    back_up(broker, kbackup, archive, topic_name)
    restore_deleted(broker, kbackup, archive, topic_name, "--restore-id", "r-1")
    # as a restore leaves it that was killed before its report
    archive.store.delete([layout.restore_key("r-1", layout.REPORT)])
    planned = kbackup.restore(archive, "-t", topic_name, "--map", f"{topic_name}=x-{topic_name}", "--dry-run")
    (newer,) = planned["newer"]
    assert newer["restored_by"]["outcome"] == "unfinished"
    assert newer["exact"] is False
    second = kbackup.backup(archive, "-t", topic_name, code=0)
    (warning,) = about(second, topic_name)
    assert "by restore r-1 of restore point 1, which is not finished (incarnation 2)" in warning
    assert "restore point 1 is the last with the former topic" in warning
    assert "to finish the restore, run it again with --restore-id r-1" in warning


def test_a_topic_restored_under_another_name_is_no_loss_when_it_is_restored_again(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str
) -> None:
    back_up(broker, kbackup, archive, topic_name)
    copy = f"{topic_name}-copy"
    both = ("-t", topic_name, "-t", copy)
    kbackup.restore(archive, "-t", topic_name, "--map", f"{topic_name}={copy}")
    kbackup.backup(archive, *both, code=0)
    topics.delete_topic(broker, copy)
    kbackup.restore(archive, "-t", topic_name, "--map", f"{topic_name}={copy}", "--restore-id", "r-2")
    (warning,) = about(kbackup.backup(archive, *both, code=0), copy)
    words = f"topic {copy} was created again by restore r-2 of restore point 2 with the records of topic {topic_name}"
    assert warning.startswith(words)


def test_a_restore_from_another_archive_is_unknown_to_this_one(
    broker: Broker, kbackup: Kbackup, archive: Archive, new_archive: Any, topic_name: str
) -> None:
    back_up(broker, kbackup, archive, topic_name)
    other = new_archive()
    kbackup.backup(other, "-t", topic_name)
    restore_deleted(broker, kbackup, other, topic_name)
    kbackup.backup(archive, "-t", topic_name, code=3)
    kbackup.backup(other, "-t", topic_name, code=0)


def test_only_what_came_after_a_restore_is_newer_in_its_topic(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str
) -> None:
    back_up(broker, kbackup, archive, topic_name)
    restore_deleted(broker, kbackup, archive, topic_name, "--restore-id", "r-1")
    aside = ("-t", topic_name, "--map", f"{topic_name}=x-{topic_name}", "--dry-run")

    (newer,) = kbackup.restore(archive, *aside)["newer"]
    assert (newer["records"], newer["recreated"], newer["exact"], newer["unarchived"]) == (0, True, True, [])
    assert newer["restored_by"]["restore_id"] == "r-1"

    topics.produce(broker, topic_name, 0, topics.numbered(3))
    planned = kbackup.restore(archive, *aside)
    (newer,) = planned["newer"]
    assert (newer["records"], newer["exact"], newer["unarchived"]) == (3, True, [{"partition": 0, "records": 3}])
    created = f"in the source, topic {topic_name} was created again by restore r-1 of restore point 1"
    told = f"{created}: 3 records in it are newer than restore point 1; in no restore point: 3 of partition 0"
    assert told in planned["warnings"]

    kbackup.backup(archive, "-t", topic_name)
    (newer,) = kbackup.restore(archive, *aside, "--restore-point", "1")["newer"]
    assert (newer["records"], newer["in_later_points"], newer["unarchived"]) == (3, 3, [])


def test_a_restore_writes_down_the_ids_of_its_topics_before_the_records(
    broker: Broker, kbackup: Kbackup, archive: Archive, topic_name: str
) -> None:
    back_up(broker, kbackup, archive, topic_name)
    kbackup.restore(archive, "-t", topic_name, "--map", f"{topic_name}=x-{topic_name}", "--restore-id", "r-1")
    key = layout.restore_key("r-1", "topics-1.json")
    document = load(TargetTopics, archive.store.get(key), key)
    (topic,) = document.topics
    assert (topic.source, topic.target, topic.created) == (topic_name, f"x-{topic_name}", True)
    assert (document.restore_point, document.selected) == (1, False)
    assert len(topic.id) == 22, "Kafka's id in base64"
    verified = kbackup.run("verify", archive.url)
    assert (verified["findings"], verified["notes"]) == ([], [])
