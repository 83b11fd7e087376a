"""Committed offsets by librdkafka's own functions: reading, setting and deleting those of many groups at once.

confluent-kafka reads a metadata string to the next NUL byte, which librdkafka does not put behind it: as soon as the
string fills its memory, what lies behind is read as well, or fails to be decoded. It has nothing that deletes
offsets. So both go to the library that it brings, over the client that it made.

Types are those of `rdkafka.h`, its public and stable interface. That a client's `rd_kafka_t *` is the first thing in
its Python object is not: `_client_of` checks it.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, cimpl
from confluent_kafka.admin import AdminClient

from kbackup.errors import UsageError
from kbackup.types import TopicPartition

AT_ONCE = 200  # requests under way: those that wait longer in librdkafka than its timeout would fail
_POLL_MS = 1000
_TEXT = 512
_ANY_API = 0


@dataclass(frozen=True, slots=True)
class Committed:
    """A group's committed offset of a partition: the next to read."""

    tp: TopicPartition
    offset: int
    leader_epoch: int | None
    metadata: str


class _Partition(ctypes.Structure):
    """`rd_kafka_topic_partition_t`"""

    _fields_ = (
        ("topic", c_char_p),
        ("partition", c_int32),
        ("offset", c_int64),
        ("metadata", c_void_p),
        ("metadata_size", c_size_t),
        ("opaque", c_void_p),
        ("err", c_int),
        ("_private", c_void_p),
    )


class _Partitions(ctypes.Structure):
    """`rd_kafka_topic_partition_list_t`"""

    _fields_ = (("cnt", c_int), ("size", c_int), ("elems", POINTER(_Partition)))


_List = POINTER(_Partitions)
_Many = (c_void_p, c_void_p, c_size_t, c_void_p, c_void_p)

_SIGNATURES: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "rd_kafka_opaque": (c_void_p, (c_void_p,)),
    "rd_kafka_err2str": (c_char_p, (c_int,)),
    "rd_kafka_error_code": (c_int, (c_void_p,)),
    "rd_kafka_error_string": (c_char_p, (c_void_p,)),
    "rd_kafka_mem_malloc": (c_void_p, (c_void_p, c_size_t)),
    "rd_kafka_queue_new": (c_void_p, (c_void_p,)),
    "rd_kafka_queue_poll": (c_void_p, (c_void_p, c_int)),
    "rd_kafka_queue_destroy": (None, (c_void_p,)),
    "rd_kafka_event_error": (c_int, (c_void_p,)),
    "rd_kafka_event_error_string": (c_char_p, (c_void_p,)),
    "rd_kafka_event_opaque": (c_void_p, (c_void_p,)),
    "rd_kafka_event_destroy": (None, (c_void_p,)),
    "rd_kafka_AdminOptions_new": (c_void_p, (c_void_p, c_int)),
    "rd_kafka_AdminOptions_destroy": (None, (c_void_p,)),
    "rd_kafka_AdminOptions_set_request_timeout": (c_int, (c_void_p, c_int, c_char_p, c_size_t)),
    "rd_kafka_AdminOptions_set_opaque": (None, (c_void_p, c_void_p)),
    "rd_kafka_AdminOptions_set_require_stable_offsets": (c_void_p, (c_void_p, c_int)),
    "rd_kafka_topic_partition_list_new": (_List, (c_int,)),
    "rd_kafka_topic_partition_list_add": (POINTER(_Partition), (_List, c_char_p, c_int32)),
    "rd_kafka_topic_partition_list_destroy": (None, (_List,)),
    "rd_kafka_topic_partition_get_leader_epoch": (c_int32, (POINTER(_Partition),)),
    "rd_kafka_topic_partition_set_leader_epoch": (None, (POINTER(_Partition), c_int32)),
    "rd_kafka_group_result_error": (c_void_p, (c_void_p,)),
    "rd_kafka_group_result_partitions": (_List, (c_void_p,)),
} | {
    name: signature
    for call in ("ListConsumerGroupOffsets", "AlterConsumerGroupOffsets", "DeleteConsumerGroupOffsets")
    for name, signature in {
        f"rd_kafka_{call}_new": (c_void_p, (c_char_p, _List)),
        f"rd_kafka_{call}_destroy": (None, (c_void_p,)),
        f"rd_kafka_{call}": (None, _Many),
        f"rd_kafka_event_{call}_result": (c_void_p, (c_void_p,)),
        f"rd_kafka_{call}_result_groups": (POINTER(c_void_p), (c_void_p, POINTER(c_size_t))),
    }.items()
}


def _load() -> Any:
    library: Any = ctypes.CDLL(cimpl.__file__)  # its dependencies' symbols are found through it
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


_lib = _load()

Answer = list[Committed] | KafkaError
"""What a group has (after a change: nothing), or why it was refused."""


class GroupCalls:
    """The calls over one client of confluent-kafka's. Each yields an answer a group, in any order."""

    def __init__(self, owner: AdminClient | Consumer, timeout: float) -> None:
        self._owner = owner  # of the client, which ends with it
        self._client = _client_of(owner)
        self._timeout = timeout

    def committed(
        self, groups: Iterable[str], partitions: Sequence[TopicPartition] | None = None, stable: bool = False
    ) -> Iterator[tuple[str, Answer]]:
        """Of these partitions, or all. `stable`: refused with UNSTABLE_OFFSET_COMMIT while a transaction that
        commits offsets is open."""

        def asked(group: str) -> Any:
            return None if partitions is None else _list_of([Committed(tp, 0, None, "") for tp in partitions])

        return self._call("ListConsumerGroupOffsets", groups, asked, stable)

    def commit(self, wanted: Mapping[str, Sequence[Committed]]) -> Iterator[tuple[str, Answer]]:
        """Sets the offsets of groups without members."""
        return self._call(
            "AlterConsumerGroupOffsets", wanted, lambda group: _list_of(wanted[group], whole=True)
        )

    def delete(self, wanted: Mapping[str, Sequence[Committed]]) -> Iterator[tuple[str, Answer]]:
        """Takes away what is committed for these partitions."""
        return self._call("DeleteConsumerGroupOffsets", wanted, lambda group: _list_of(wanted[group]))

    def _call(
        self, call: str, groups: Iterable[str], partitions: Callable[[str], Any], stable: bool = False
    ) -> Iterator[tuple[str, Answer]]:
        """Never too many requests on the way."""
        waiting, under_way = deque(groups), dict[int, str]()
        queue = _lib.rd_kafka_queue_new(self._client)
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
                    _lib.rd_kafka_AdminOptions_destroy(options)
                if not under_way:
                    break
                event = _lib.rd_kafka_queue_poll(queue, _POLL_MS)
                if event:
                    try:
                        yield under_way.pop(_lib.rd_kafka_event_opaque(event)), _answer(call, event)
                    finally:
                        _lib.rd_kafka_event_destroy(event)
        finally:
            _lib.rd_kafka_queue_destroy(queue)

    def _options(self, number: int, stable: bool) -> int:
        options: int = _lib.rd_kafka_AdminOptions_new(self._client, _ANY_API)
        reason = ctypes.create_string_buffer(_TEXT)
        _lib.rd_kafka_AdminOptions_set_request_timeout(options, int(self._timeout * 1000), reason, _TEXT)
        _lib.rd_kafka_AdminOptions_set_opaque(options, number)
        if stable:
            _lib.rd_kafka_AdminOptions_set_require_stable_offsets(options, 1)
        return options

    def _send(self, call: str, group: str, partitions: Any, options: int, queue: int) -> None:
        """Takes `partitions` over."""
        request = getattr(_lib, f"rd_kafka_{call}_new")(group.encode(), partitions)
        getattr(_lib, f"rd_kafka_{call}")(self._client, (c_void_p * 1)(request), 1, options, queue)
        getattr(_lib, f"rd_kafka_{call}_destroy")(request)
        if partitions is not None:
            _lib.rd_kafka_topic_partition_list_destroy(partitions)


def _list_of(offsets: Sequence[Committed], whole: bool = False) -> Any:
    """A `rd_kafka_topic_partition_list_t *` of the places; `whole`: with what is committed."""
    made = _lib.rd_kafka_topic_partition_list_new(len(offsets))
    for each in offsets:
        entry = _lib.rd_kafka_topic_partition_list_add(made, each.tp.topic.encode(), each.tp.partition)
        if whole:
            entry.contents.offset = each.offset
            if each.leader_epoch is not None:
                _lib.rd_kafka_topic_partition_set_leader_epoch(entry, each.leader_epoch)
            if metadata := each.metadata.encode():
                entry.contents.metadata = _lib.rd_kafka_mem_malloc(None, len(metadata))
                entry.contents.metadata_size = len(metadata)
                ctypes.memmove(entry.contents.metadata, metadata, len(metadata))
    return made


def _unusable(group: str) -> str:
    """Why librdkafka can't ask for a group of that name."""
    if not group:
        return "its name is empty"
    if "\0" in group:
        return "its name has a NUL byte"
    return ""


def _client_of(owner: AdminClient | Consumer) -> int:
    """Its `rd_kafka_t *`: the one whose opaque is the object itself."""
    found = c_void_p.from_address(id(owner) + object.__basicsize__).value
    if not found or _lib.rd_kafka_opaque(found) != id(owner):
        raise UsageError(
            "this confluent-kafka keeps its client in another way than is known here",
            "install the version that kbackup is locked to",
        )
    return found


def _answer(call: str, event: int) -> Answer:
    if code := _lib.rd_kafka_event_error(event):
        return KafkaError(code, _text(_lib.rd_kafka_event_error_string(event)))
    result = getattr(_lib, f"rd_kafka_event_{call}_result")(event)
    count = c_size_t()
    group = getattr(_lib, f"rd_kafka_{call}_result_groups")(result, ctypes.byref(count))[0]
    if error := _lib.rd_kafka_group_result_error(group):
        return KafkaError(_lib.rd_kafka_error_code(error), _text(_lib.rd_kafka_error_string(error)))
    found: list[Committed] = []
    partitions = _lib.rd_kafka_group_result_partitions(group)
    for number in range(partitions.contents.cnt if partitions else 0):
        entry = partitions.contents.elems[number]
        if entry.err:
            place = f"{_text(entry.topic)}-{entry.partition}"
            return KafkaError(entry.err, f"{place}: {_text(_lib.rd_kafka_err2str(entry.err))}")
        if entry.offset >= 0:
            found.append(_committed(entry))
    return found


def _committed(entry: _Partition) -> Committed:
    """Brokers give text: what a client committed in other bytes comes with U+FFFD in their place."""
    epoch = _lib.rd_kafka_topic_partition_get_leader_epoch(ctypes.byref(entry))
    size = entry.metadata_size if entry.metadata else 0
    metadata = ctypes.string_at(entry.metadata, size).decode(errors="replace") if size else ""
    place = TopicPartition(_text(entry.topic), entry.partition)
    return Committed(place, entry.offset, epoch if epoch >= 0 else None, metadata)


def _text(words: bytes | None) -> str:
    return (words or b"").decode(errors="replace")
