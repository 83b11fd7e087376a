"""Share groups (KIP-932): the start offset of a partition is what such a group has committed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError

from kbackup.kafka.control.connection import BrokerConnection
from kbackup.kafka.control.errors import RefusedRequestError
from kbackup.kafka.control.messages import AlterShareGroupOffsetsRequest, DescribeShareGroupOffsetsRequest
from kbackup.kafka.control.router import Answers, Question
from kbackup.types import CommittedOffset, TopicPartition

_NONE = -1
"""The start offset of a partition that has none yet: the group's config share.auto.offset.reset decides."""

_GROUPS_AT_ONCE = 200


def share_offsets() -> Question[str, list[CommittedOffset]]:
    """Ask for the start offsets of share groups; a group that is not there has none."""
    return Question(_offsets_request, _start_offsets, at_once=_GROUPS_AT_ONCE)


def alter_share_offsets(
    offsets_by_group: Mapping[str, Sequence[CommittedOffset]], *, remove: bool = False
) -> Question[str, None]:
    """Ask to set the start offsets of share groups without members, or to `remove` them. Brokers create groups that
    don't exist. An offset that is set twice is the same: so the question is asked again as if it changed nothing."""
    entry = AlterShareGroupOffsetsRequest.Topic

    def request(broker: BrokerConnection, groups: list[str]) -> Any:
        _require_share_groups(broker)
        by_topic: dict[str, list[Any]] = defaultdict(list)
        for each in offsets_by_group[groups[0]]:
            start = _NONE if remove else each.offset
            partition = entry.Partition(partition_index=each.tp.partition, start_offset=start)
            by_topic[each.tp.topic].append(partition)
        topics = [entry(topic_name=topic, partitions=partitions) for topic, partitions in by_topic.items()]
        return AlterShareGroupOffsetsRequest(group_id=groups[0], topics=topics)

    return Question(request, _altered, at_once=1)


def _require_share_groups(broker: BrokerConnection) -> None:
    if DescribeShareGroupOffsetsRequest.API_KEY not in broker.versions:
        raise RefusedRequestError(KafkaError.UNSUPPORTED_VERSION, "the brokers are too old for share groups")


def _offsets_request(broker: BrokerConnection, groups: list[str]) -> Any:
    _require_share_groups(broker)
    kind = DescribeShareGroupOffsetsRequest.Group
    # No list of topics is every topic.
    asked = [kind(group_id=group, topics=None) for group in groups]
    return DescribeShareGroupOffsetsRequest(groups=asked)


def _start_offsets(response: Any, groups: list[str]) -> Answers[str, list[CommittedOffset]]:
    for each in response.groups:
        refusal = _refusal(each) or _first_refusal(each.topics)
        yield each.group_id, refusal or _offsets_of(each.topics)


def _offsets_of(topics: Iterable[Any]) -> list[CommittedOffset]:
    found: list[CommittedOffset] = []
    for topic in topics:
        for each in topic.partitions:
            if each.start_offset != _NONE:
                tp = TopicPartition(topic.topic_name, each.partition_index)
                found.append(CommittedOffset(tp, each.start_offset, None, ""))
    return found


def _altered(response: Any, groups: list[str]) -> Answers[str, None]:
    yield groups[0], _first_refusal(response.responses)


def _first_refusal(topics: Iterable[Any]) -> KafkaError | None:
    """Return the error of the first partition that has one."""
    for topic in topics:
        for each in topic.partitions:
            refusal = _refusal(each, f"{topic.topic_name}-{each.partition_index}: ")
            if refusal is not None:
                return refusal
    return None


def _refusal(answer: Any, where: str = "") -> KafkaError | None:
    if not answer.error_code:
        return None
    reason = answer.error_message or KafkaError(answer.error_code).str()
    return KafkaError(answer.error_code, f"{where}{reason}")
