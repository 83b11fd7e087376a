"""Changes of many topics: what brokers refuse is reported by topic, what no broker answers is raised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from kbackup.errors import KbackupError, UnreachableError
from kbackup.kafka.admin.cluster import TopicAdmin, TopicToCreate
from kbackup.kafka.client import Connection
from tests.unit.kafka.conftest import answer

NAMES = ["a", "b"]


class TopicsAdmin:
    """Answers each request about a topic with its error code, if it has one."""

    def __init__(self, **codes: int) -> None:
        self.codes = codes
        self.batches: list[int] = []

    def answer(self, names: Sequence[str]) -> dict[str, Future[Any]]:
        self.batches.append(len(names))
        return {name: answer(self.codes.get(name)) for name in names}

    def create_topics(self, topics: Sequence[Any], **_: object) -> dict[str, Future[Any]]:
        return self.answer([topic.topic for topic in topics])

    create_partitions = create_topics

    def incremental_alter_configs(self, resources: Sequence[Any], **_: object) -> dict[Any, Future[Any]]:
        answers = self.answer([resource.name for resource in resources])
        return {resource: answers[resource.name] for resource in resources}


def topics(fake: TopicsAdmin) -> TopicAdmin:
    return TopicAdmin(Connection({"bootstrap.servers": "h:1"}, "target"), cast(AdminClient, fake))


Change = Callable[[TopicAdmin, list[str]], dict[str, KbackupError]]
CHANGES: dict[str, Change] = {
    "Create on the cluster, or on topics": lambda admin, names: admin.create([TopicToCreate(n, 1, 1) for n in names]),
    "Alter on the topic": lambda admin, names: admin.add_partitions(dict.fromkeys(names, 3)),
    "AlterConfigs on the topic": lambda admin, names: admin.alter_configs({n: {"retention.ms": None} for n in names}),
}


@pytest.mark.parametrize("right", CHANGES)
def test_refusals_name_the_missing_right(right: str) -> None:
    refused = CHANGES[right](topics(TopicsAdmin(b=KafkaError.TOPIC_AUTHORIZATION_FAILED)), NAMES)
    assert refused.keys() == {"b"}
    assert f"it takes {right}" in refused["b"].message


@pytest.mark.parametrize("right", CHANGES)
def test_a_cluster_that_does_not_answer_is_an_error(right: str) -> None:
    with pytest.raises(UnreachableError, match="topic a"):
        CHANGES[right](topics(TopicsAdmin(a=KafkaError._TRANSPORT)), NAMES)


@pytest.mark.parametrize(("exist_ok", "refused"), [(True, set()), (False, {"a"})])
def test_a_topic_that_exists_is_refused_unless_that_is_fine(exist_ok: bool, refused: set[str]) -> None:
    admin = topics(TopicsAdmin(a=KafkaError.TOPIC_ALREADY_EXISTS))
    assert admin.create([TopicToCreate(name, 1, 1) for name in NAMES], exist_ok=exist_ok).keys() == refused


BATCHES: dict[str, tuple[Callable[[TopicAdmin], dict[str, KbackupError]], list[int]]] = {
    "none": (lambda admin: admin.create([]), []),
    "small topics": (lambda admin: admin.create([TopicToCreate(f"t{n:04}", 1, 1) for n in range(1200)]), [1000, 200]),
    "wide ones": (
        lambda admin: admin.create([TopicToCreate(f"t{n}", n, 1) for n in (999, 999, 2500, 1, 5000)]),
        [1, 1, 1, 1],
    ),
    "with configs": (
        lambda admin: admin.create([TopicToCreate(f"t{n:04}", 7, 1, {"a": "1", "b": "2"}) for n in range(250)]),
        [200, 50],
    ),
    "partitions": (lambda admin: admin.add_partitions({f"t{n}": 600 for n in range(4)}), [3, 1]),
    "configs": (lambda admin: admin.alter_configs({f"t{n:04}": {"a": None, "b": "1"} for n in range(1001)}), [1000, 1]),
}


@pytest.mark.parametrize("case", BATCHES)
def test_a_request_changes_no_more_than_a_controller_takes(case: str) -> None:
    """A KRaft controller refuses a request of 10,000 records as a whole."""
    change, batches = BATCHES[case]
    fake = TopicsAdmin()
    assert (change(topics(fake)), fake.batches) == ({}, batches)
