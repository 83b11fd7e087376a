"""Changes of many topics: what brokers refuse is reported by topic, what no broker answers is raised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from kbackup.errors import UnreachableError
from kbackup.kafka.admin.cluster import TopicAdmin, TopicToCreate
from kbackup.kafka.client import Connection

NAMES = ["a", "b"]


class Admin:
    """Answers each request about a topic with its error code; 0 is no error."""

    def __init__(self, **codes: int) -> None:
        self.codes = codes
        self.batches: list[int] = []

    def answer(self, names: Sequence[str]) -> dict[str, Future[Any]]:
        self.batches.append(len(names))
        return {name: _answer(self.codes.get(name, 0)) for name in names}

    def create_topics(self, topics: Sequence[Any], **_: object) -> dict[str, Future[Any]]:
        return self.answer([topic.topic for topic in topics])

    def create_partitions(self, topics: Sequence[Any], **_: object) -> dict[str, Future[Any]]:
        return self.answer([topic.topic for topic in topics])

    def incremental_alter_configs(self, resources: Sequence[Any], **_: object) -> dict[Any, Future[Any]]:
        answers = self.answer([resource.name for resource in resources])
        return {resource: answers[resource.name] for resource in resources}


def _answer(code: int) -> Future[Any]:
    future: Future[Any] = Future()
    if code:
        future.set_exception(KafkaException(KafkaError(code)))
    else:
        future.set_result(None)
    return future


Change = Callable[[TopicAdmin, list[str]], dict[str, str]]
CHANGES: dict[str, Change] = {
    "Create on the cluster, or on topics": lambda admin, names: admin.create(
        [TopicToCreate(n, 1, 1) for n in names]
    ),
    "Alter on the topic": lambda admin, names: admin.add_partitions(dict.fromkeys(names, 3)),
    "AlterConfigs on the topic": lambda admin, names: admin.alter_configs(
        {n: {"retention.ms": None} for n in names}
    ),
}


def admin_of(fake: Admin) -> TopicAdmin:
    return TopicAdmin(Connection({"bootstrap.servers": "h:1"}, "target"), cast(AdminClient, fake))


@pytest.mark.parametrize("right", CHANGES)
def test_refusals_name_the_missing_right(right: str) -> None:
    refused = CHANGES[right](admin_of(Admin(b=KafkaError.TOPIC_AUTHORIZATION_FAILED)), NAMES)
    assert refused.keys() == {"b"}
    assert f"it takes {right}" in refused["b"]


@pytest.mark.parametrize("right", CHANGES)
def test_a_cluster_that_does_not_answer_is_an_error(right: str) -> None:
    with pytest.raises(UnreachableError, match="topic a"):
        CHANGES[right](admin_of(Admin(a=KafkaError._TRANSPORT)), NAMES)


def test_a_topic_that_exists_counts_as_created() -> None:
    admin = admin_of(Admin(a=KafkaError.TOPIC_ALREADY_EXISTS))
    assert admin.create([TopicToCreate(name, 1, 1) for name in NAMES]) == {}


@pytest.mark.parametrize("right", CHANGES)
def test_many_topics_take_several_requests(right: str) -> None:
    fake = Admin()
    assert CHANGES[right](admin_of(fake), [f"t{n}" for n in range(1200)]) == {}
    assert fake.batches == [500, 500, 200]
    assert CHANGES[right](admin_of(fake), []) == {}
    assert len(fake.batches) == 3
