"""Topics: which there are, what they look like, and changes of many at once."""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from confluent_kafka import KafkaError

from kbackup.errors import ClusterError, KbackupError
from kbackup.kafka.control.configs import TOPIC, alteration
from kbackup.kafka.control.connection import BrokerConnection
from kbackup.kafka.control.errors import REQUEST_SECONDS, broker_error
from kbackup.kafka.control.messages import (
    ACLOperation,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    IncrementalAlterConfigsRequest,
)
from kbackup.kafka.control.router import Answers, AnyBroker, Controller, Question, Router, explaining, metadata_request
from kbackup.util.system import attempts

_MOST_RECORDS = 2000
"""Records of the metadata log that one request of a change makes: controllers refuse 10,000."""

_VISIBLE_SECONDS, _PAUSE_SECONDS = 30.0, 0.1
"""How long we wait until brokers show what the controller has agreed to, and how often we look."""

_FIRST_WITH_DRY_RUN = 1
"""The first version of CreateTopics that can check without creating (brokers since 0.10.2)."""

_FIRST_WITH_RIGHTS = 8
"""The first version of Metadata that returns what our user may do (brokers since 2.3)."""

_NO_ID = UUID(int=0)
_TIMEOUT_MS = int(REQUEST_SECONDS * 1000)


@dataclass(frozen=True, slots=True)
class Topic:
    """`id` is the broker's own (base64), '' for brokers before 2.8; `partitions` are the partition numbers. `replicas`
    has the ids of each one's brokers, the preferred leader first. `offline` are the partitions without a leader."""

    name: str
    id: str
    internal: bool
    partitions: tuple[int, ...]
    replication_factor: int
    replicas: tuple[tuple[int, ...], ...] = ()
    offline: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicToCreate:
    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str] = field(default_factory=dict)


class RefusedConfigError(ClusterError):
    """The brokers don't know a config of a topic, or don't take its value. `reason` is in their own words."""

    def __init__(self, message: str, hint: str, reason: str) -> None:
        super().__init__(message, hint)
        self.reason = reason


# What there is.


def topic_names(router: Router) -> list[str]:
    """Return the names of all topics that our user may see."""
    with explaining(router.connection, "listing topics"):
        response = router.metadata(None)
    return sorted(topic.name for topic in response.topics)


def describe_topics(router: Router, names: Iterable[str]) -> tuple[dict[str, Topic], dict[str, KbackupError]]:
    """Return the descriptions of topics, and the error of each topic that the brokers don't describe to us; a topic
    that is not there is in neither. Raise where no broker answers."""
    answers, refused = _ask_for_metadata(router, names, rights=False)
    errors: dict[str, KbackupError] = {}
    for name, error in refused.items():
        explained = router.connection.error(error, f"describing topic {name}")
        # Codes below zero are librdkafka's, for a connection: no broker answered, and none would for the others.
        if error.code() < 0:
            raise explained
        if error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            errors[name] = explained
    topics: dict[str, Topic] = {}
    for name, described in sorted(answers.items()):
        topics[name] = _topic_of(described)
    return topics, errors


def missing_rights(router: Router, names: Iterable[str], rights: Collection[str]) -> dict[str, list[str]]:
    """Return, by topic, which of the `rights` our user lacks, such as WRITE. Topics on which no right is lacking, or of
    which the brokers return no rights, are left out."""
    answers, _ = _ask_for_metadata(router, names, rights=True)
    missing: dict[str, list[str]] = {}
    for name, described in answers.items():
        granted = _names_of_rights(described.authorized_operations)
        lacking = [right for right in rights if right not in granted]
        # Brokers that return no rights at all don't say that we lack any.
        if granted and lacking:
            missing[name] = lacking
    return missing


def _names_of_rights(codes: Collection[int] | None) -> set[str]:
    """Return the names of the rights that we know."""
    known = {operation.value: operation.name for operation in ACLOperation}
    return {known[code] for code in codes or () if code in known}


def _ask_for_metadata(
    router: Router, names: Iterable[str], *, rights: bool
) -> tuple[dict[str, Any], dict[str, KafkaError]]:
    """Return what Kafka's Metadata says of each topic; a topic that is not there is refused at once."""

    def request(broker: BrokerConnection, batch: list[str]) -> Any:
        return metadata_request(batch, rights=rights)

    oldest = _FIRST_WITH_RIGHTS if rights else 0
    question = Question[str, Any](request, _metadata_of_topics, oldest=oldest)
    topics = sorted({*names})
    return router.ask_each(topics, question, AnyBroker(), final=[KafkaError.UNKNOWN_TOPIC_OR_PART])


def _metadata_of_topics(response: Any, batch: list[str]) -> Answers[str, Any]:
    for topic in response.topics:
        if topic.error_code:
            yield topic.name, KafkaError(topic.error_code)
        else:
            yield topic.name, topic


def _topic_of(described: Any) -> Topic:
    numbers: list[int] = []
    replicas: list[tuple[int, ...]] = []
    offline: list[int] = []
    # Brokers name partitions in any order.
    for partition in sorted(described.partitions, key=_partition_number):
        numbers.append(partition.partition_index)
        replicas.append(tuple(partition.replica_nodes))
        if partition.leader_id < 0:
            offline.append(partition.partition_index)
    # While partitions are reassigned, some have more replicas than others for a time.
    replication_factor = max(map(len, replicas), default=0)
    return Topic(
        name=described.name,
        id=_id_of(described.topic_id),
        internal=bool(described.is_internal),
        partitions=tuple(numbers),
        replication_factor=replication_factor,
        replicas=tuple(replicas),
        offline=tuple(offline),
    )


def _partition_number(partition: Any) -> int:
    number: int = partition.partition_index
    return number


def _id_of(topic_id: UUID | None) -> str:
    """Return the id of a topic as Kafka's own tools show it, '' for none."""
    if topic_id is None or topic_id == _NO_ID:
        return ""
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


# Changes.


@dataclass(frozen=True, slots=True)
class TopicAdmin:
    """Changes many topics at once. Each method maps the topics that the brokers refused to the error, and raises where
    no broker answers."""

    router: Router

    def create(
        self, topics: Iterable[TopicToCreate], *, exist_ok: bool = False, dry_run: bool = False
    ) -> dict[str, KbackupError]:
        """Create topics. `exist_ok`: a topic that exists already counts as created, another process was faster.
        `dry_run`: the brokers only check whether they would."""
        named = {topic.name: topic for topic in topics}

        def request(broker: BrokerConnection, names: list[str]) -> Any:
            entries = [_creatable(named[name]) for name in names]
            return CreateTopicsRequest(topics=entries, timeout_ms=_TIMEOUT_MS, validate_only=dry_run)

        def records(name: str) -> int:
            return 1 + named[name].partitions + len(named[name].configs)

        question = Question[str, None](
            request, _created, batches=_batches_by(records), change=True, oldest=_FIRST_WITH_DRY_RUN
        )
        harmless = KafkaError.TOPIC_ALREADY_EXISTS if exist_ok else None
        return self._refused("creating topic", named, question, harmless)

    def wait_visible(self, totals: Mapping[str, int]) -> dict[str, KbackupError]:
        """Wait until the brokers show so many partitions of each topic, with their leaders."""
        missing = dict(totals)
        if not totals:
            return {}
        # A controller answers when it has agreed to a topic. Brokers learn of it later, and partitions have
        # their leaders later still.
        for _ in attempts(_VISIBLE_SECONDS, _PAUSE_SECONDS):
            with explaining(self.router.connection, "listing topics"):
                shown = self.router.metadata([*missing]).topics
            led = {topic.name: _count_led(topic) for topic in shown}
            missing = {name: total for name, total in missing.items() if led.get(name, 0) < total}
            if not missing:
                break
        errors: dict[str, KbackupError] = {}
        for name in missing:
            errors[name] = self.router.connection.silent(f"does not show the new partitions of topic {name}")
        return errors

    def add_partitions(self, totals: Mapping[str, int], *, dry_run: bool = False) -> dict[str, KbackupError]:
        """Raise each topic's number of partitions to the total given. `dry_run`: the brokers only check whether they
        would."""

        def request(broker: BrokerConnection, names: list[str]) -> Any:
            entry = CreatePartitionsRequest.CreatePartitionsTopic
            entries = [entry(name=name, count=totals[name], assignments=None) for name in names]
            return CreatePartitionsRequest(topics=entries, timeout_ms=_TIMEOUT_MS, validate_only=dry_run)

        def records(name: str) -> int:
            return totals[name]

        question = Question[str, None](request, _partitions_added, batches=_batches_by(records), change=True)
        return self._refused("adding partitions to topic", totals, question)

    def alter_configs(
        self, changes: Mapping[str, Mapping[str, str | None]], *, dry_run: bool = False
    ) -> dict[str, KbackupError]:
        """Set configs of topics; None removes one, so that the default of the brokers holds. `dry_run`: the brokers
        only check whether they would."""

        def request(broker: BrokerConnection, names: list[str]) -> Any:
            resources = [alteration(TOPIC, name, changes[name]) for name in names]
            return IncrementalAlterConfigsRequest(resources=resources, validate_only=dry_run)

        def records(name: str) -> int:
            return len(changes[name])

        question = Question[str, None](request, _configs_altered, batches=_batches_by(records), change=True)
        return self._refused("setting configs of topic", changes, question)

    def delete(self, names: Iterable[str]) -> dict[str, str]:
        """Delete topics and return, by topic, '' or why the broker refused. A missing topic counts as deleted, and
        brokers may list a deleted topic for some time yet."""

        def request(broker: BrokerConnection, batch: list[str]) -> Any:
            entry = DeleteTopicsRequest.DeleteTopicState
            states = [entry(name=name, topic_id=_NO_ID) for name in batch]
            # Versions before 6 have names alone, and leave the states out; later ones leave the names out.
            return DeleteTopicsRequest(topics=states, topic_names=batch, timeout_ms=_TIMEOUT_MS)

        question = Question[str, None](request, _deleted, change=True)
        deleted, refused = self._change(names, question)
        results = dict.fromkeys(deleted, "")
        for name, error in refused.items():
            results[name] = ""
            if error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                explained = self.router.connection.error(error, f"deleting topic {name}")
                results[name] = explained.message
        return results

    def _refused(
        self, doing: str, names: Iterable[str], question: Question[str, None], harmless: int | None = None
    ) -> dict[str, KbackupError]:
        """Carry a change out, and return the error of each topic that was refused with another code than `harmless`."""
        _, refused = self._change(names, question)
        errors: dict[str, KbackupError] = {}
        for name, error in refused.items():
            explained = self.router.connection.error(error, f"{doing} {name}")
            if error.code() < 0:
                # No broker answered: that is not about this topic.
                raise explained
            if error.code() == KafkaError.INVALID_CONFIG:
                errors[name] = RefusedConfigError(explained.message, explained.hint, error.str())
            elif error.code() != harmless:
                errors[name] = explained
        return errors

    def _change(
        self, names: Iterable[str], question: Question[str, None]
    ) -> tuple[dict[str, None], dict[str, KafkaError]]:
        # The controller knows every topic: one that it doesn't know is not there.
        final = [KafkaError.UNKNOWN_TOPIC_OR_PART]
        topics = sorted({*names})
        return self.router.ask_each(topics, question, Controller(self.router), final=final)


def _batches_by(records: Callable[[str], int]) -> Callable[[Iterable[str]], Iterator[list[str]]]:
    """Return a function that cuts topics into batches, by how many records of the metadata log the change of each
    makes. Those of one batch make `_MOST_RECORDS` at most, but for a topic that makes more alone."""

    def cut(names: Iterable[str]) -> Iterator[list[str]]:
        batch: list[str] = []
        room = _MOST_RECORDS
        for name in names:
            size = records(name)
            if batch and size > room:
                yield batch
                batch = []
                room = _MOST_RECORDS
            batch.append(name)
            room -= size
        if batch:
            yield batch

    return cut


def _count_led(topic: Any) -> int:
    """Return how many partitions of a topic have a leader."""
    return sum(partition.leader_id >= 0 for partition in topic.partitions)


def _creatable(topic: TopicToCreate) -> Any:
    entry = CreateTopicsRequest.CreatableTopic
    configs = [entry.CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()]
    return entry(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        assignments=[],
        configs=configs,
    )


# The responses to changes are alike, but for the names of their parts.


def _created(response: Any, batch: list[str]) -> Answers[str, None]:
    for each in response.topics:
        yield each.name, _refusal(each)


def _partitions_added(response: Any, batch: list[str]) -> Answers[str, None]:
    for each in response.results:
        yield each.name, _refusal(each)


def _configs_altered(response: Any, batch: list[str]) -> Answers[str, None]:
    for each in response.responses:
        yield each.resource_name, _refusal(each)


def _deleted(response: Any, batch: list[str]) -> Answers[str, None]:
    for each in response.responses:
        yield each.name, _refusal(each)


def _refusal(result: Any) -> KafkaError | None:
    """Return why one topic was not changed, None if it was."""
    if not result.error_code:
        return None
    return broker_error(result.error_code, result.error_message)
