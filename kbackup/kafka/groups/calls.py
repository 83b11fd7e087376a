"""Calls about groups through librdkafka's own functions, which confluent-kafka does not bind.

Types follow `rdkafka.h`, its public and stable interface. That a client's `rd_kafka_t *` comes first in its Python
object is no public promise: `client_of` checks it.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ctypes import POINTER, c_char_p, c_int, c_int32, c_size_t, c_void_p
from itertools import count
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError

from kbackup.kafka.native.library import TEXT, PartitionListStruct, PartitionStruct, bind, client_of, lib, text
from kbackup.types import CommittedOffset, TopicPartition

ANY_API = 0

AT_ONCE = 200
"""Requests under way: those that wait longer in librdkafka than its timeout would fail."""

_POLL_MS = 1000

Answer = list[CommittedOffset] | KafkaError
"""The offsets of a group (none after a change), or why the request was refused."""


class BrokerStruct(ctypes.Structure):
    """`rd_kafka_metadata_broker_t`"""

    _fields_ = (("id", c_int32), ("host", c_char_p), ("port", c_int))


class GroupInfoStruct(ctypes.Structure):
    """`struct rd_kafka_group_info`"""

    _fields_ = (
        ("broker", BrokerStruct),
        ("group", c_char_p),
        ("err", c_int),
        ("state", c_char_p),
        ("protocol_type", c_char_p),
        ("protocol", c_char_p),
        ("members", c_void_p),
        ("member_cnt", c_int),
    )


class GroupList(ctypes.Structure):
    """`struct rd_kafka_group_list`"""

    _fields_ = (("groups", POINTER(GroupInfoStruct)), ("group_cnt", c_int))


_Many = (c_void_p, c_void_p, c_size_t, c_void_p, c_void_p)

_SIGNATURES: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "rd_kafka_event_opaque": (c_void_p, (c_void_p,)),
    "rd_kafka_AdminOptions_new": (c_void_p, (c_void_p, c_int)),
    "rd_kafka_AdminOptions_destroy": (None, (c_void_p,)),
    "rd_kafka_AdminOptions_set_request_timeout": (c_int, (c_void_p, c_int, c_char_p, c_size_t)),
    "rd_kafka_AdminOptions_set_opaque": (None, (c_void_p, c_void_p)),
    "rd_kafka_AdminOptions_set_require_stable_offsets": (c_void_p, (c_void_p, c_int)),
    "rd_kafka_topic_partition_get_leader_epoch": (c_int32, (POINTER(PartitionStruct),)),
    "rd_kafka_topic_partition_set_leader_epoch": (None, (POINTER(PartitionStruct), c_int32)),
    "rd_kafka_list_groups": (c_int, (c_void_p, c_char_p, POINTER(POINTER(GroupList)), c_int)),
    "rd_kafka_group_list_destroy": (None, (POINTER(GroupList),)),
    "rd_kafka_group_result_error": (c_void_p, (c_void_p,)),
    "rd_kafka_group_result_partitions": (POINTER(PartitionListStruct), (c_void_p,)),
} | {
    name: signature
    for call in ("ListConsumerGroupOffsets", "AlterConsumerGroupOffsets", "DeleteConsumerGroupOffsets")
    for name, signature in {
        f"rd_kafka_{call}_new": (c_void_p, (c_char_p, POINTER(PartitionListStruct))),
        f"rd_kafka_{call}_destroy": (None, (c_void_p,)),
        f"rd_kafka_{call}": (None, _Many),
        f"rd_kafka_event_{call}_result": (c_void_p, (c_void_p,)),
        f"rd_kafka_{call}_result_groups": (POINTER(c_void_p), (c_void_p, POINTER(c_size_t))),
    }.items()
}


bind(lib, _SIGNATURES)


def partitions_of(offsets: Sequence[CommittedOffset], whole: bool = False) -> Any:
    """Return a `rd_kafka_topic_partition_list_t *` of the places; `whole`: with what is committed."""
    made = lib.rd_kafka_topic_partition_list_new(len(offsets))
    for each in offsets:
        entry = lib.rd_kafka_topic_partition_list_add(made, each.tp.topic.encode(), each.tp.partition)
        if whole:
            entry.contents.offset = each.offset
            if each.leader_epoch is not None:
                lib.rd_kafka_topic_partition_set_leader_epoch(entry, each.leader_epoch)
            if metadata := each.metadata.encode():
                entry.contents.metadata = lib.rd_kafka_mem_malloc(None, len(metadata))
                entry.contents.metadata_size = len(metadata)
                ctypes.memmove(entry.contents.metadata, metadata, len(metadata))
    return made


def committed_of(entry: PartitionStruct) -> CommittedOffset:
    """Brokers give text: what a client committed in other bytes comes with U+FFFD in their place."""
    epoch = lib.rd_kafka_topic_partition_get_leader_epoch(ctypes.byref(entry))
    size = entry.metadata_size if entry.metadata else 0
    metadata = ctypes.string_at(entry.metadata, size).decode(errors="replace") if size else ""
    place = TopicPartition(text(entry.topic), entry.partition)
    return CommittedOffset(place, entry.offset, epoch if epoch >= 0 else None, metadata)


class DescribedGroup(NamedTuple):
    """A group as DescribeGroups of the classic protocol knows it: of another protocol, `state` is 'Dead' and
    `protocol_type` is ''. Both are '' if its coordinator answered with an `error`."""

    group: str
    state: str
    protocol_type: str
    error: KafkaError | None = None


class GroupCalls:
    """Committed offsets of many groups at once, and the names of all groups, of whatever kind, over one consumer, which
    joins nothing (`GroupAdmin` says why). Each call yields an answer a group, in any order.

    confluent-kafka reads a metadata string to the next NUL byte, which librdkafka does not put behind it: as soon as
    the string fills its memory, what lies behind is read as well, or fails to be decoded. It has nothing that deletes
    offsets, and lists no groups but those of consumers.
    """

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
        places = None if partitions is None else [CommittedOffset(tp, 0, None, "") for tp in partitions]
        return self._call(
            "ListConsumerGroupOffsets", groups, lambda group: None if places is None else partitions_of(places), stable
        )

    def commit(self, offsets_by_group: Mapping[str, Sequence[CommittedOffset]]) -> Iterator[tuple[str, Answer]]:
        """Set the offsets of groups without members."""
        return self._call(
            "AlterConsumerGroupOffsets",
            offsets_by_group,
            lambda group: partitions_of(offsets_by_group[group], whole=True),
        )

    def delete(self, offsets_by_group: Mapping[str, Sequence[CommittedOffset]]) -> Iterator[tuple[str, Answer]]:
        """Delete the offsets committed for these partitions."""
        return self._call(
            "DeleteConsumerGroupOffsets", offsets_by_group, lambda group: partitions_of(offsets_by_group[group])
        )

    def _call(
        self, call: str, groups: Iterable[str], partitions: Callable[[str], Any], stable: bool = False
    ) -> Iterator[tuple[str, Answer]]:
        """Send the requests, at most `AT_ONCE` under way, and yield each group with its answer."""
        waiting, under_way, numbers = deque(groups), dict[int, str](), count(1)
        queue = lib.rd_kafka_queue_new(self._client)
        try:
            while waiting or under_way:
                while waiting and len(under_way) < AT_ONCE:
                    group = waiting.popleft()
                    if not group or "\0" in group:  # librdkafka can't ask for it
                        why = "its name has a NUL byte" if group else "its name is empty"
                        yield group, KafkaError(KafkaError._INVALID_ARG, why)
                        continue
                    number = next(numbers)
                    under_way[number] = group
                    self._send(call, number, group, partitions(group), stable, queue)
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

    def _send(self, call: str, number: int, group: str, partitions: Any, stable: bool, queue: int) -> None:
        """Takes `partitions` over."""
        options = lib.rd_kafka_AdminOptions_new(self._client, ANY_API)
        reason = ctypes.create_string_buffer(TEXT)
        lib.rd_kafka_AdminOptions_set_request_timeout(options, int(self._timeout * 1000), reason, TEXT)
        lib.rd_kafka_AdminOptions_set_opaque(options, number)
        if stable:
            lib.rd_kafka_AdminOptions_set_require_stable_offsets(options, 1)
        request = getattr(lib, f"rd_kafka_{call}_new")(group.encode(), partitions)
        getattr(lib, f"rd_kafka_{call}")(self._client, (c_void_p * 1)(request), 1, options, queue)
        getattr(lib, f"rd_kafka_{call}_destroy")(request)
        if partitions is not None:
            lib.rd_kafka_topic_partition_list_destroy(partitions)
        lib.rd_kafka_AdminOptions_destroy(options)

    def names(self) -> tuple[list[DescribedGroup], KafkaError | None]:
        """Return every group of every broker; and the error of a broker that did not list its groups."""
        listed = POINTER(GroupList)()
        code = lib.rd_kafka_list_groups(self._client, None, ctypes.byref(listed), int(self._timeout * 1000))
        error = KafkaError(code) if code else None
        if not listed:
            return [], error
        try:
            groups = (listed.contents.groups[n] for n in range(listed.contents.group_cnt))
            named = [
                DescribedGroup(
                    text(g.group), text(g.state), text(g.protocol_type), KafkaError(g.err) if g.err else None
                )
                for g in groups
            ]
            return named, error
        finally:
            lib.rd_kafka_group_list_destroy(listed)


def _answer(call: str, event: int) -> Answer:
    if code := lib.rd_kafka_event_error(event):
        return KafkaError(code, text(lib.rd_kafka_event_error_string(event)))
    result = getattr(lib, f"rd_kafka_event_{call}_result")(event)
    count = c_size_t()
    group = getattr(lib, f"rd_kafka_{call}_result_groups")(result, ctypes.byref(count))[0]
    if error := lib.rd_kafka_group_result_error(group):
        return KafkaError(lib.rd_kafka_error_code(error), text(lib.rd_kafka_error_string(error)))
    positions: list[CommittedOffset] = []
    partitions = lib.rd_kafka_group_result_partitions(group)
    for number in range(partitions.contents.cnt if partitions else 0):
        entry = partitions.contents.elems[number]
        if entry.err:
            place = f"{text(entry.topic)}-{entry.partition}"
            return KafkaError(entry.err, f"{place}: {text(lib.rd_kafka_err2str(entry.err))}")
        if entry.offset >= 0:
            positions.append(committed_of(entry))
    return positions
