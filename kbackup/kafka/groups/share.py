"""Share groups (KIP-932), for which librdkafka has no calls: kafka-python's messages to each group's coordinator.

Loading this module takes a third of a second, for kafka-python: import it where there is a share group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from confluent_kafka import KafkaError
from kafka.protocol.admin import ListGroupsRequest
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.metadata import FindCoordinatorRequest

from kbackup.kafka import admin_protocol
from kbackup.kafka.admin_protocol.connection import BrokerConnection
from kbackup.kafka.admin_protocol.endpoint import RefusedRequestError
from kbackup.kafka.admin_protocol.session import ask_broker
from kbackup.kafka.client import Connection
from kbackup.kafka.retry import Answers
from kbackup.types import CommittedOffset, TopicPartition

A = TypeVar("A")

_NONE = -1
"""The start offset of a partition that has none yet: the group's config share.auto.offset.reset decides."""


class DescribeShareGroupOffsetsRequest(ApiMessage, load_json=admin_protocol):  # type: ignore[misc,call-arg]  # kafka-python has no types
    """By a definition of our own: kafka-python has none."""


class DescribeShareGroupOffsetsResponse(ApiMessage, load_json=admin_protocol):  # type: ignore[misc,call-arg]  # the same
    """The same."""


class AlterShareGroupOffsetsRequest(ApiMessage, load_json=admin_protocol):  # type: ignore[misc,call-arg]  # the same
    """The same."""


class AlterShareGroupOffsetsResponse(ApiMessage, load_json=admin_protocol):  # type: ignore[misc,call-arg]  # the same
    """The same."""


class ShareCalls:
    """`GroupCalls` of share groups: a start offset is what such a group has committed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def kinds(self, groups: Iterable[str]) -> Answers[str, tuple[str, str]]:
        """Yield type and state of each group, of whatever type, in lower case."""
        return self._ask(groups, _kinds)

    def committed(self, groups: Iterable[str]) -> Answers[str, list[CommittedOffset]]:
        """Yield the start offsets of each group; none of a group that is not there."""
        return self._ask(groups, _start_offsets)

    def commit(self, offsets_by_group: Mapping[str, Sequence[CommittedOffset]]) -> Answers[str, object]:
        """Set start offsets of groups without members. Brokers make groups that are not there."""
        return self._ask(
            offsets_by_group, lambda broker, groups: ((g, _alter(broker, g, offsets_by_group[g])) for g in groups)
        )

    def delete(self, offsets_by_group: Mapping[str, Sequence[CommittedOffset]]) -> Answers[str, object]:
        """Take the start offsets of these partitions away."""
        return self.commit(
            {g: [CommittedOffset(o.tp, _NONE, None, "") for o in offsets] for g, offsets in offsets_by_group.items()}
        )

    def _ask(
        self, groups: Iterable[str], ask: Callable[[BrokerConnection, list[str]], Answers[str, A]]
    ) -> Answers[str, A]:
        """Yield each group with the answer of its coordinator."""
        by_address = defaultdict[tuple[str, int], list[str]](list)
        for group, place in ask_broker(self._connection, None, list(groups), _coordinators):
            if isinstance(place, KafkaError):
                yield group, place
            else:
                by_address[place].append(group)
        for address, theirs in by_address.items():
            yield from ask_broker(self._connection, address, theirs, ask)


def _coordinators(broker: BrokerConnection, groups: list[str]) -> Answers[str, tuple[str, int]]:
    if DescribeShareGroupOffsetsRequest.API_KEY not in broker.versions:
        raise RefusedRequestError(KafkaError.UNSUPPORTED_VERSION, "the brokers are too old for share groups")
    for each in broker.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=groups)).coordinators:
        yield each.key, _refusal(each) or (each.host, each.port)


def _kinds(broker: BrokerConnection, groups: list[str]) -> Answers[str, tuple[str, str]]:
    answer = broker.ask(ListGroupsRequest(states_filter=[], types_filter=[]))
    listed = {each.group_id: (each.group_type.lower(), each.group_state.lower()) for each in answer.groups}
    for group in groups:
        yield group, listed.get(group) or KafkaError(KafkaError.GROUP_ID_NOT_FOUND)


def _start_offsets(broker: BrokerConnection, groups: list[str]) -> Answers[str, list[CommittedOffset]]:
    kind = DescribeShareGroupOffsetsRequest.Group
    request = DescribeShareGroupOffsetsRequest(groups=[kind(group_id=group, topics=None) for group in groups])
    for each in broker.ask(request).groups:
        found = [(t.topic_name, p) for t in each.topics for p in t.partitions]
        offsets = [
            CommittedOffset(TopicPartition(topic, p.partition_index), p.start_offset, None, "")
            for topic, p in found
            if p.start_offset != _NONE
        ]
        yield each.group_id, _refusal(each) or _first_refusal(found) or offsets


def _alter(broker: BrokerConnection, group: str, offsets: Sequence[CommittedOffset]) -> KafkaError | list[object]:
    kind = AlterShareGroupOffsetsRequest.Topic
    topics = defaultdict[str, list[Any]](list)
    for o in offsets:
        topics[o.tp.topic].append(kind.Partition(partition_index=o.tp.partition, start_offset=o.offset))
    named = [kind(topic_name=topic, partitions=partitions) for topic, partitions in topics.items()]
    try:
        answer = broker.ask(AlterShareGroupOffsetsRequest(group_id=group, topics=named))
    except RefusedRequestError as refused:
        return refused.kafka_error()
    return _first_refusal((t.topic_name, p) for t in answer.responses for p in t.partitions) or []


def _first_refusal(partitions: Iterable[tuple[str, Any]]) -> KafkaError | None:
    refusals = (_refusal(p, f"{topic}-{p.partition_index}: ") for topic, p in partitions)
    return next(filter(None, refusals), None)


def _refusal(answer: Any, where: str = "") -> KafkaError | None:
    if not answer.error_code:
        return None
    return KafkaError(answer.error_code, f"{where}{answer.error_message or KafkaError(answer.error_code).str()}")
