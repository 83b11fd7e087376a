"""Committed offsets by librdkafka's own functions: reading, setting and deleting those of many groups at once; and the
names of all groups there are, of whatever kind.

confluent-kafka reads a metadata string to the next NUL byte, which librdkafka does not put behind it: as soon as the
string fills its memory, what lies behind is read as well, or fails to be decoded. It has nothing that deletes
offsets, and lists no groups but those of consumers.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ctypes import POINTER, c_size_t, c_void_p
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError

from kbackup.kafka.groups.binding import (
    ANY_API,
    TEXT,
    Committed,
    GroupInfo,
    GroupList,
    client_of,
    committed_of,
    lib,
    partitions_of,
    text,
)
from kbackup.types import TopicPartition

__all__ = ["AT_ONCE", "Committed", "GroupCalls", "Named"]

AT_ONCE = 200
"""Requests under way: those that wait longer in librdkafka than its timeout would fail."""

_POLL_MS = 1000

Answer = list[Committed] | KafkaError
"""The offsets of a group (none after a change), or why the request was refused."""


class Named(NamedTuple):
    """A group as DescribeGroups of the classic protocol knows it: of another protocol, `state` is 'Dead' and
    `protocol_type` is ''. Both are '' where its coordinator answered with an `error`."""

    group: str
    state: str
    protocol_type: str
    error: KafkaError | None = None


class GroupCalls:
    """The calls over one consumer, which joins nothing (`GroupAdmin` says why).

    Each yields an answer a group, in any order."""

    def __init__(self, owner: Consumer, timeout: float) -> None:
        self._owner = owner  # of the client, which ends with it
        self._client = client_of(owner)
        self._timeout = timeout

    def committed(
        self, groups: Iterable[str], partitions: Sequence[TopicPartition] | None = None, stable: bool = False
    ) -> Iterator[tuple[str, Answer]]:
        """Yield the committed offsets of each group, for these partitions or all.

        `stable`: refused with UNSTABLE_OFFSET_COMMIT while a transaction that commits offsets is open.
        """

        def asked(group: str) -> Any:
            return (
                None
                if partitions is None
                else partitions_of([Committed(tp, 0, None, "") for tp in partitions])
            )

        return self._call("ListConsumerGroupOffsets", groups, asked, stable)

    def commit(self, offsets_by_group: Mapping[str, Sequence[Committed]]) -> Iterator[tuple[str, Answer]]:
        """Set the offsets of groups without members."""
        return self._call(
            "AlterConsumerGroupOffsets",
            offsets_by_group,
            lambda group: partitions_of(offsets_by_group[group], whole=True),
        )

    def delete(self, offsets_by_group: Mapping[str, Sequence[Committed]]) -> Iterator[tuple[str, Answer]]:
        """Delete the offsets committed for these partitions."""
        return self._call(
            "DeleteConsumerGroupOffsets",
            offsets_by_group,
            lambda group: partitions_of(offsets_by_group[group]),
        )

    def _call(
        self, call: str, groups: Iterable[str], partitions: Callable[[str], Any], stable: bool = False
    ) -> Iterator[tuple[str, Answer]]:
        """Send the requests, at most `AT_ONCE` under way, and yield each group with its answer."""
        waiting, under_way = deque(groups), dict[int, str]()
        queue = lib.rd_kafka_queue_new(self._client)
        try:
            number = 0
            while waiting or under_way:
                while waiting and len(under_way) < AT_ONCE:
                    group = waiting.popleft()
                    if why := _unusable(group):
                        yield group, KafkaError(KafkaError._INVALID_ARG, why)
                        continue
                    number += 1
                    under_way[number] = group
                    options = self._options(number, stable)
                    self._send(call, group, partitions(group), options, queue)
                    lib.rd_kafka_AdminOptions_destroy(options)
                if not under_way:
                    break
                event = lib.rd_kafka_queue_poll(queue, _POLL_MS)
                if event:
                    try:
                        yield under_way.pop(lib.rd_kafka_event_opaque(event)), _answer(call, event)
                    finally:
                        lib.rd_kafka_event_destroy(event)
        finally:
            lib.rd_kafka_queue_destroy(queue)

    def _options(self, number: int, stable: bool) -> int:
        options: int = lib.rd_kafka_AdminOptions_new(self._client, ANY_API)
        reason = ctypes.create_string_buffer(TEXT)
        lib.rd_kafka_AdminOptions_set_request_timeout(options, int(self._timeout * 1000), reason, TEXT)
        lib.rd_kafka_AdminOptions_set_opaque(options, number)
        if stable:
            lib.rd_kafka_AdminOptions_set_require_stable_offsets(options, 1)
        return options

    def _send(self, call: str, group: str, partitions: Any, options: int, queue: int) -> None:
        """Takes `partitions` over."""
        request = getattr(lib, f"rd_kafka_{call}_new")(group.encode(), partitions)
        getattr(lib, f"rd_kafka_{call}")(self._client, (c_void_p * 1)(request), 1, options, queue)
        getattr(lib, f"rd_kafka_{call}_destroy")(request)
        if partitions is not None:
            lib.rd_kafka_topic_partition_list_destroy(partitions)

    def names(self) -> tuple[list[Named], KafkaError | None]:
        """Every group of every broker; and the error of a broker that did not list its groups."""
        listed = POINTER(GroupList)()
        code = lib.rd_kafka_list_groups(self._client, None, ctypes.byref(listed), int(self._timeout * 1000))
        error = KafkaError(code) if code else None
        if not listed:
            return [], error
        try:
            return [_named(listed.contents.groups[n]) for n in range(listed.contents.group_cnt)], error
        finally:
            lib.rd_kafka_group_list_destroy(listed)


def _named(group: GroupInfo) -> Named:
    error = KafkaError(group.err) if group.err else None
    return Named(text(group.group), text(group.state), text(group.protocol_type), error)


def _unusable(group: str) -> str:
    """Why librdkafka can't ask for a group of that name."""
    if not group:
        return "its name is empty"
    if "\0" in group:
        return "its name has a NUL byte"
    return ""


def _answer(call: str, event: int) -> Answer:
    if code := lib.rd_kafka_event_error(event):
        return KafkaError(code, text(lib.rd_kafka_event_error_string(event)))
    result = getattr(lib, f"rd_kafka_event_{call}_result")(event)
    count = c_size_t()
    group = getattr(lib, f"rd_kafka_{call}_result_groups")(result, ctypes.byref(count))[0]
    if error := lib.rd_kafka_group_result_error(group):
        return KafkaError(lib.rd_kafka_error_code(error), text(lib.rd_kafka_error_string(error)))
    positions: list[Committed] = []
    partitions = lib.rd_kafka_group_result_partitions(group)
    for number in range(partitions.contents.cnt if partitions else 0):
        entry = partitions.contents.elems[number]
        if entry.err:
            place = f"{text(entry.topic)}-{entry.partition}"
            return KafkaError(entry.err, f"{place}: {text(lib.rd_kafka_err2str(entry.err))}")
        if entry.offset >= 0:
            positions.append(committed_of(entry))
    return positions
