"""Requests that a cluster refuses because a leader, coordinator or controller was just elected."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, NewTopic

from kbackup.errors import ClusterError
from kbackup.kafka import retry
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.retry import COORDINATOR_NOT_READY, Answers, ask_until_ready
from kbackup.types import TopicPartition

TP = TopicPartition("t", 0)


class Admin:
    """Refuses every request with the next of `errors`; then it answers."""

    def __init__(self, *errors: int) -> None:
        self.errors = list(errors)
        self.refreshed = 0

    def list_topics(self, **_: object) -> None:
        self.refreshed += 1

    def list_offsets(self, asked: Iterable[Any], **_: object) -> dict[Any, Future[Any]]:
        return {tp: self._answer(SimpleNamespace(offset=7, leader_epoch=3)) for tp in asked}

    def describe_topics(self, asked: TopicCollection, **_: object) -> dict[str, Future[Any]]:
        described = SimpleNamespace(topic_id="id", is_internal=False, partitions=[])
        return {name: self._answer(described) for name in asked.topic_names}

    def describe_configs(self, asked: list[ConfigResource], **_: object) -> dict[Any, Future[Any]]:
        entry = SimpleNamespace(name="c", value="v", source=ConfigSource.DYNAMIC_TOPIC_CONFIG.value)
        return {resource: self._answer({"c": entry}) for resource in asked}

    def create_topics(self, asked: list[NewTopic], **_: object) -> dict[str, Future[Any]]:
        return {new.topic: self._answer(None) for new in asked}

    def delete_topics(self, asked: list[str], **_: object) -> dict[str, Future[Any]]:
        return {name: self._answer(None) for name in asked}

    def delete_consumer_groups(self, asked: list[str], **_: object) -> dict[str, Future[Any]]:
        return {name: self._answer(None) for name in asked}

    def _answer(self, value: object) -> Future[Any]:
        future: Future[Any] = Future()
        if self.errors:
            future.set_exception(KafkaException(KafkaError(self.errors.pop(0))))
        else:
            future.set_result(value)
        return future


def cluster(admin: Admin) -> Cluster:
    made = Cluster({"bootstrap.servers": "127.0.0.1:1", "log_level": "0"}, "target")
    made._admin = made.groups._admin = cast(AdminClient, admin)
    return made


REQUESTS: dict[str, tuple[Callable[[Cluster], object], object]] = {
    "log starts": (lambda c: c.log_starts([TP]), {TP: 7}),
    "log ends": (lambda c: c.log_ends([TP], "read_committed"), {TP: 7}),
    "leader epochs": (lambda c: c.leader_epochs([TP]), {TP: 3}),
    "topics": (lambda c: [*c.topics(["t"])], ["t"]),
    "configs": (lambda c: c.topic_configs(["t"]), {"t": {"c": "v"}}),
    "all configs": (lambda c: c.all_topic_configs("t"), {"c": "v"}),
}


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize(
    "code",
    [
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._NOENT,
    ],
)
def test_a_new_leader_is_asked_again(name: str, code: int, clock: list[float]) -> None:
    request, expected = REQUESTS[name]
    admin = Admin(code, code)
    assert request(cluster(admin)) == expected
    assert (len(clock), admin.refreshed) == (2, 2)  # a client keeps a leader that it knows


@pytest.mark.parametrize("name", ["log starts", "configs"])
def test_a_new_topic_is_asked_for_again(name: str, clock: list[float]) -> None:
    request, expected = REQUESTS[name]
    assert request(cluster(Admin(KafkaError.UNKNOWN_TOPIC_OR_PART))) == expected


def test_a_broker_that_is_gone_is_not_asked_again(clock: list[float]) -> None:
    admin = Admin(KafkaError._TIMED_OUT)
    assert cluster(admin).topic_configs(["t"]) == {"t": {"c": "v"}}
    assert admin.refreshed == 1  # the client learns which brokers there are


def test_a_topic_that_is_not_there_is_left_out_at_once(clock: list[float]) -> None:
    assert (cluster(Admin(KafkaError.UNKNOWN_TOPIC_OR_PART)).topics(["t"]), clock) == ({}, [])


@pytest.mark.parametrize(
    ("code", "seconds"),
    [
        (KafkaError.NOT_LEADER_FOR_PARTITION, 30),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, 10),
        (KafkaError.INVALID_REQUEST, 0),
    ],
)
def test_patience_ends(code: int, seconds: float, clock: list[float]) -> None:
    with pytest.raises(ClusterError, match="asking for offsets of t-0"):
        cluster(Admin(*[code] * 1000)).log_starts([TP])
    assert seconds <= sum(clock) < seconds + 1


def test_a_new_controller_is_asked_again(clock: list[float]) -> None:
    cluster(Admin(KafkaError.NOT_CONTROLLER)).create_topic("t", 1, 1, {})
    deleted = cluster(Admin(KafkaError.NOT_CONTROLLER, KafkaError.NOT_CONTROLLER)).delete_topics(["t", "u"])
    assert (deleted, len(clock)) == ({"t": "", "u": ""}, 2)


def test_refusals_of_a_controller_are_reported(clock: list[float]) -> None:
    with pytest.raises(ClusterError, match="creating topic t"):
        cluster(Admin(KafkaError.TOPIC_ALREADY_EXISTS)).create_topic("t", 1, 1, {})
    deleted = cluster(Admin(KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.POLICY_VIOLATION)).delete_topics(
        ["t", "u"]
    )
    assert deleted["t"] == ""
    assert "deleting topic u" in deleted["u"]
    assert clock == []


def test_a_group_whose_coordinator_moves_is_deleted(clock: list[float]) -> None:
    cluster(Admin(KafkaError.NOT_COORDINATOR)).groups.delete(["g"])
    assert len(clock) == 1
    gone = Admin(KafkaError.GROUP_ID_NOT_FOUND, KafkaError.GROUP_AUTHORIZATION_FAILED)
    deleted = cluster(gone).groups.delete_each(["g", "h"])
    assert deleted["g"] == ""
    assert "deleting group h" in deleted["h"]


def test_only_what_is_not_ready_is_asked_again(clock: list[float]) -> None:
    loading, denied = (
        KafkaError(code)
        for code in (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.GROUP_AUTHORIZATION_FAILED)
    )
    answers: dict[str, list[Any]] = {"at once": [1], "later": [loading, loading, 2], "never": [denied]}
    requests: list[list[str]] = []

    def ask(items: list[str]) -> Answers[str, int]:
        requests.append(items)
        for item in items:
            yield item, answers[item].pop(0)

    assert ask_until_ready(answers, ask, COORDINATOR_NOT_READY) == (
        {"at once": 1, "later": 2},
        {"never": denied},
    )
    assert requests == [["at once", "later", "never"], ["later"], ["later"]]


def test_a_request_that_takes_long_is_repeated_once(clock: list[float]) -> None:
    requests: list[list[int]] = []

    def ask(items: list[int]) -> Answers[int, str]:
        requests.append(items)
        clock.append(31)
        for item in items:
            yield item, KafkaError(KafkaError.NOT_COORDINATOR) if item or len(requests) == 1 else "answer"

    answers, refused = ask_until_ready([0, 1], ask, COORDINATOR_NOT_READY)
    assert (answers, [*refused], requests) == ({0: "answer"}, [1], [[0, 1], [0, 1]])


def test_a_request_without_an_answer_timed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "TIMEOUT", 0.01)
    silent: Future[None] = Future()
    item, error = retry.answered("orders", silent)
    assert (item, error.code()) == ("orders", KafkaError._TIMED_OUT)
