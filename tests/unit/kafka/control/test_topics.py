"""Descriptions of topics, and changes of many at once.

What brokers refuse is reported by topic; what no broker answers is raised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import KafkaError
from kafka.protocol.admin import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kafka.protocol.metadata import MetadataRequest

from kbackup.errors import KbackupError, UnreachableError
from kbackup.kafka.control.topics import (
    RefusedConfigError,
    Topic,
    TopicAdmin,
    TopicToCreate,
    describe_topics,
    missing_rights,
    topic_names,
)
from tests.support.fake_broker import FakeCluster, HangUp

NAMES = ["a", "b"]
WRITE, DESCRIBE = 4, 8


class Changes:
    """Answers every kind of change. `codes` are what topics are refused with, again and again; `once` are refused the
    first time alone. `batches` are the topics of each request."""

    def __init__(self, brokers: FakeCluster, words: str | None = None, **codes: int) -> None:
        self.codes = codes
        self.words = words
        self.once: dict[str, int] = {}
        self.batches: list[list[str]] = []
        brokers.on(CreateTopicsRequest, self.create)
        brokers.on(CreatePartitionsRequest, self.add_partitions)
        brokers.on(IncrementalAlterConfigsRequest, self.alter_configs)
        brokers.on(DeleteTopicsRequest, self.delete)

    def create(self, request: Any) -> Any:
        entry = CreateTopicsResponse.CreatableTopicResult
        results = self._results(entry, "name", [topic.name for topic in request.topics])
        return CreateTopicsResponse(throttle_time_ms=0, topics=results)

    def add_partitions(self, request: Any) -> Any:
        entry = CreatePartitionsResponse.CreatePartitionsTopicResult
        results = self._results(entry, "name", [topic.name for topic in request.topics])
        return CreatePartitionsResponse(throttle_time_ms=0, results=results)

    def alter_configs(self, request: Any) -> Any:
        entry = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
        results = self._results(entry, "resource_name", [each.resource_name for each in request.resources])
        return IncrementalAlterConfigsResponse(throttle_time_ms=0, responses=results)

    def delete(self, request: Any) -> Any:
        entry = DeleteTopicsResponse.DeletableTopicResult
        names = [topic.name for topic in request.topics or ()] or request.topic_names
        return DeleteTopicsResponse(throttle_time_ms=0, responses=self._results(entry, "name", names))

    def _results(self, entry: Any, key: str, names: list[str]) -> list[Any]:
        self.batches.append(names)
        results = []
        for name in names:
            code = self.once.pop(name, 0) or self.codes.get(name, 0)
            results.append(entry(**{key: name}, error_code=code, error_message=self.words if code else None))
        return results


def admin(brokers: FakeCluster) -> TopicAdmin:
    return TopicAdmin(brokers.router())


Change = Callable[[TopicAdmin, list[str]], dict[str, KbackupError]]
CHANGES: dict[str, Change] = {
    "Create on the cluster, or on topics": lambda topics, names: topics.create([TopicToCreate(n, 1, 1) for n in names]),
    "Alter on the topic": lambda topics, names: topics.add_partitions(dict.fromkeys(names, 3)),
    "AlterConfigs on the topic": lambda topics, names: topics.alter_configs({n: {"retention.ms": None} for n in names}),
}
"""Each kind of change, by the right that it takes."""


@pytest.mark.parametrize("right", CHANGES)
def test_refusals_name_the_missing_right(right: str, brokers: FakeCluster) -> None:
    Changes(brokers, b=KafkaError.TOPIC_AUTHORIZATION_FAILED)
    refused = CHANGES[right](admin(brokers), NAMES)
    assert refused.keys() == {"b"}
    assert f"it takes {right}" in refused["b"].message


@pytest.mark.parametrize("right", CHANGES)
def test_a_change_that_no_broker_answers_is_an_error_and_not_repeated(right: str, brokers: FakeCluster) -> None:
    """It may have been carried out."""
    Changes(brokers)

    def hang_up(request: object) -> None:
        raise HangUp

    for request in (CreateTopicsRequest, CreatePartitionsRequest, IncrementalAlterConfigsRequest):
        brokers.on(request, hang_up)
    with pytest.raises(UnreachableError, match="topic a"):
        CHANGES[right](admin(brokers), NAMES)
    asked = [CreateTopicsRequest, CreatePartitionsRequest, IncrementalAlterConfigsRequest]
    assert sum(len(brokers.asked(request)) for request in asked) == 1


@pytest.mark.parametrize("right", CHANGES)
def test_a_change_goes_to_the_controller(right: str, brokers: FakeCluster, clock: list[float]) -> None:
    """Where there is a new one, it is looked up again: the old one has not carried the change out."""
    changes = Changes(brokers)
    changes.once = dict.fromkeys(NAMES, KafkaError.NOT_CONTROLLER)
    brokers.controller = 2
    assert CHANGES[right](admin(brokers), NAMES) == {}
    assert changes.batches == [NAMES, NAMES]
    asked = [CreateTopicsRequest, CreatePartitionsRequest, IncrementalAlterConfigsRequest]
    assert sum(len(brokers.asked(request, node=1)) for request in asked) == 0
    assert len(clock) == 1


def test_the_next_controller_is_asked(brokers: FakeCluster, clock: list[float]) -> None:
    changes = Changes(brokers)
    changes.once = {"a": KafkaError.NOT_CONTROLLER}
    topics = admin(brokers)

    def elect(request: Any) -> Any:
        brokers.controller = 2
        return changes.create(request)

    brokers.on(CreateTopicsRequest, elect, node=1)
    assert topics.create([TopicToCreate("a", 1, 1)]) == {}
    assert len(brokers.asked(CreateTopicsRequest, node=2)) == 1


@pytest.mark.parametrize(("exist_ok", "refused"), [(True, set()), (False, {"a"})])
def test_a_topic_that_exists_is_refused_unless_that_is_fine(
    exist_ok: bool, refused: set[str], brokers: FakeCluster
) -> None:
    Changes(brokers, a=KafkaError.TOPIC_ALREADY_EXISTS)
    found = admin(brokers).create([TopicToCreate(name, 1, 1) for name in NAMES], exist_ok=exist_ok)
    assert found.keys() == refused


@pytest.mark.parametrize("code", [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.POLICY_VIOLATION])
def test_what_the_controller_refuses_is_not_asked_again(code: int, brokers: FakeCluster, clock: list[float]) -> None:
    Changes(brokers, a=code)
    assert admin(brokers).add_partitions({"a": 2}).keys() == {"a"}
    assert clock == []


def test_a_refused_config_comes_with_the_words_of_the_broker(brokers: FakeCluster) -> None:
    Changes(brokers, words="Unknown topic config name: x", a=KafkaError.INVALID_CONFIG)
    refused = admin(brokers).create([TopicToCreate("a", 1, 1, {"x": "1"})])["a"]
    assert isinstance(refused, RefusedConfigError)
    assert refused.reason == "Unknown topic config name: x"
    assert "failed creating topic a: Unknown topic config name: x" in refused.message


def test_a_topic_is_created_as_it_was_asked_for(brokers: FakeCluster) -> None:
    Changes(brokers)
    assert admin(brokers).create([TopicToCreate("a", 3, 2, {"cleanup.policy": "compact"})]) == {}
    (request,) = brokers.asked(CreateTopicsRequest)
    (topic,) = request.topics
    assert (topic.name, topic.num_partitions, topic.replication_factor) == ("a", 3, 2)
    assert [(config.name, config.value) for config in topic.configs] == [("cleanup.policy", "compact")]
    assert topic.assignments == []
    assert request.validate_only is False


def test_configs_are_set_or_removed(brokers: FakeCluster) -> None:
    Changes(brokers)
    assert admin(brokers).alter_configs({"a": {"retention.ms": "1", "cleanup.policy": None}}) == {}
    (request,) = brokers.asked(IncrementalAlterConfigsRequest)
    (resource,) = request.resources
    assert (resource.resource_type, resource.resource_name) == (2, "a")
    changes = [(each.name, each.config_operation, each.value) for each in resource.configs]
    assert changes == [("retention.ms", 0, "1"), ("cleanup.policy", 1, None)]


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_dry_run_has_brokers_check_alone(dry_run: bool, brokers: FakeCluster) -> None:
    Changes(brokers)
    topics = admin(brokers)
    topics.create([TopicToCreate("a", 1, 1)], dry_run=dry_run)
    topics.add_partitions({"a": 2}, dry_run=dry_run)
    topics.alter_configs({"a": {"b": "1"}}, dry_run=dry_run)
    for kind in (CreateTopicsRequest, CreatePartitionsRequest, IncrementalAlterConfigsRequest):
        (request,) = brokers.asked(kind)
        assert request.validate_only is dry_run


def test_a_broker_that_can_not_check_alone_creates_nothing(brokers: FakeCluster) -> None:
    changes = Changes(brokers)
    brokers.on(CreateTopicsRequest, changes.create, newest=0)
    refused = admin(brokers).create([TopicToCreate("a", 1, 1)], dry_run=True)
    assert "too old" in refused["a"].message
    assert changes.batches == []


BATCHES: dict[str, tuple[Callable[[TopicAdmin], dict[str, KbackupError]], list[int]]] = {
    "none": (lambda topics: topics.create([]), []),
    "small topics": (lambda topics: topics.create([TopicToCreate(f"t{n:04}", 1, 1) for n in range(1200)]), [1000, 200]),
    "wide ones": (
        lambda topics: topics.create([TopicToCreate(f"t{n}", n, 1) for n in (999, 999, 2500, 1, 5000)]),
        [1, 1, 1, 1],
    ),
    "with configs": (
        lambda topics: topics.create([TopicToCreate(f"t{n:04}", 7, 1, {"a": "1", "b": "2"}) for n in range(250)]),
        [200, 50],
    ),
    "partitions": (lambda topics: topics.add_partitions({f"t{n}": 600 for n in range(4)}), [3, 1]),
    "configs": (
        lambda topics: topics.alter_configs({f"t{n:04}": {"a": None, "b": "1"} for n in range(1001)}),
        [1000, 1],
    ),
}


@pytest.mark.parametrize("case", BATCHES)
def test_a_request_changes_no_more_than_a_controller_takes(case: str, brokers: FakeCluster) -> None:
    """A KRaft controller refuses a request of 10,000 records as a whole."""
    change, sizes = BATCHES[case]
    changes = Changes(brokers)
    assert change(admin(brokers)) == {}
    assert [len(batch) for batch in changes.batches] == sizes


@pytest.mark.parametrize("newest", [6, 5], ids=["new", "without topic ids"])
def test_topics_are_deleted_by_name(newest: int, brokers: FakeCluster) -> None:
    changes = Changes(brokers)
    brokers.on(DeleteTopicsRequest, changes.delete, newest=newest)
    assert admin(brokers).delete(["b", "a"]) == {"a": "", "b": ""}
    assert changes.batches == [["a", "b"]]


def test_a_topic_that_is_missing_counts_as_deleted(brokers: FakeCluster, clock: list[float]) -> None:
    Changes(brokers, a=KafkaError.UNKNOWN_TOPIC_OR_PART, b=KafkaError.POLICY_VIOLATION)
    deleted = admin(brokers).delete(NAMES)
    assert deleted["a"] == ""
    assert "failed deleting topic b" in deleted["b"]
    assert clock == []


# Until brokers show what was changed.


def test_new_partitions_are_waited_for_until_all_have_leaders(brokers: FakeCluster) -> None:
    answer = brokers.metadata
    states: list[dict[str, list[int]]] = [{}, {"a": [1]}, {"a": [1, -1]}, {"a": [1, 2]}]

    def show_the_next(request: Any) -> Any:
        brokers.topics = states.pop(0) if len(states) > 1 else states[0]
        return answer(request)

    brokers.on(MetadataRequest, show_the_next)
    assert admin(brokers).wait_visible({"a": 2}) == {}
    assert len(states) == 1


def test_new_partitions_that_do_not_show_are_an_error(brokers: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbackup.kafka.control.topics._VISIBLE_SECONDS", 0.3)
    brokers.topics = {"a": [1, -1], "b": [1, 2]}
    missing = admin(brokers).wait_visible({"a": 2, "b": 2})
    assert missing.keys() == {"a"}
    assert isinstance(missing["a"], UnreachableError)
    assert "does not show the new partitions of topic a" in missing["a"].message


def test_nothing_to_wait_for_asks_nobody(brokers: FakeCluster) -> None:
    assert admin(brokers).wait_visible({}) == {}
    assert brokers.brokers[1].accepted == 0


# What there is.


class Described:
    """Answers Metadata: each topic with an entry of its own, or with the next of its errors."""

    def __init__(self, brokers: FakeCluster, newest: int = 13, **errors: list[int]) -> None:
        self.errors = errors
        self.fields: dict[str, Any] = {}
        self._all = brokers.metadata
        brokers.on(MetadataRequest, self, newest=newest)

    def __call__(self, request: Any) -> Any:
        response = self._all(request)
        for topic in response.topics:
            errors = self.errors.get(topic.name)
            if errors:
                topic.error_code = errors.pop(0)
                topic.partitions = []
            for name, value in self.fields.items():
                setattr(topic, name, value)
        return response


def test_names_of_topics_are_sorted(brokers: FakeCluster) -> None:
    brokers.topics = {"b": [1], "a": [1]}
    assert topic_names(brokers.router()) == ["a", "b"]


def test_a_description_has_what_the_broker_returns(brokers: FakeCluster) -> None:
    described = Described(brokers)
    described.fields = {"topic_id": UUID("2d00622c-85f8-4078-922e-4fb19a429e82"), "is_internal": True}
    brokers.topics = {"a": [2, -1, 1]}
    found, errors = describe_topics(brokers.router(), ["a"])
    assert errors == {}
    assert found["a"] == Topic(
        name="a",
        id="LQBiLIX4QHiSLk-xmkKegg",
        internal=True,
        partitions=(0, 1, 2),
        replication_factor=1,
        replicas=((2,), (1,), (1,)),
        offline=(1,),
    )


def test_a_broker_without_topic_ids_gives_none(brokers: FakeCluster) -> None:
    Described(brokers, newest=9)
    brokers.topics = {"a": [1]}
    found, _ = describe_topics(brokers.router(), ["a"])
    assert found["a"].id == ""


def test_a_topic_that_is_not_there_is_left_out_at_once(brokers: FakeCluster, clock: list[float]) -> None:
    brokers.topics = {"a": [1]}
    found, errors = describe_topics(brokers.router(), NAMES)
    assert found.keys() == {"a"}
    assert errors == {}
    assert clock == []


def test_topics_are_never_made_by_asking(brokers: FakeCluster) -> None:
    describe_topics(brokers.router(), ["a"])
    assert not any(request.allow_auto_topic_creation for request in brokers.asked(MetadataRequest))


def test_a_topic_that_is_not_ready_is_asked_about_again(brokers: FakeCluster, clock: list[float]) -> None:
    Described(brokers, a=[KafkaError.LEADER_NOT_AVAILABLE, KafkaError.LEADER_NOT_AVAILABLE])
    brokers.topics = {"a": [1], "b": [1]}
    found, errors = describe_topics(brokers.router(), NAMES)
    assert found.keys() == {"a", "b"}
    assert errors == {}
    assert len(clock) == 2


def test_a_topic_that_is_hidden_from_us_is_an_error_of_its_own(brokers: FakeCluster) -> None:
    Described(brokers, a=[KafkaError.TOPIC_AUTHORIZATION_FAILED])
    brokers.topics = {"a": [1], "b": [1]}
    found, errors = describe_topics(brokers.router(), NAMES)
    assert found.keys() == {"b"}
    assert "it takes Describe on the topic" in errors["a"].message


def test_a_cluster_that_does_not_answer_describes_nothing(brokers: FakeCluster, clock: list[float]) -> None:
    router = brokers.router()
    for broker in brokers.brokers.values():
        broker.stop()
    with pytest.raises(UnreachableError, match="describing topic a"):
        describe_topics(router, ["a"])
    assert 30 <= sum(clock) < 31


def test_missing_rights_are_those_that_the_brokers_do_not_list(brokers: FakeCluster) -> None:
    described = Described(brokers)
    described.fields = {"authorized_operations": {DESCRIBE}}
    brokers.topics = {"a": [1]}
    assert missing_rights(brokers.router(), ["a", "gone"], ["WRITE", "DESCRIBE"]) == {"a": ["WRITE"]}
    described.fields = {"authorized_operations": {DESCRIBE, WRITE}}
    assert missing_rights(brokers.router(), ["a"], ["WRITE", "DESCRIBE"]) == {}


@pytest.mark.parametrize("newest", [13, 7], ids=["not returned", "not known"])
def test_rights_that_brokers_do_not_return_are_not_missing(newest: int, brokers: FakeCluster) -> None:
    described = Described(brokers, newest=newest)
    described.fields = {"authorized_operations": None}
    brokers.topics = {"a": [1]}
    assert missing_rights(brokers.router(), ["a"], ["WRITE"]) == {}


def test_a_description_is_of_no_more_topics_than_a_request_takes(brokers: FakeCluster) -> None:
    brokers.topics = {f"t{n:04}": [1] for n in range(4500)}
    found, _ = describe_topics(brokers.router(), brokers.topics)
    assert len(found) == 4500
    sizes = [len(request.topics) for request in brokers.asked(MetadataRequest)]
    assert sizes == [2000, 2000, 500]
