"""The binding of what is asked about groups: librdkafka's functions, from the library that confluent-kafka brings, over
the client that it made.

Types are those of `rdkafka.h`, its public and stable interface. That a client's `rd_kafka_t *` is the first thing in
its Python object is not: `client_of` checks it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from confluent_kafka import Consumer, Producer, cimpl
from confluent_kafka.admin import AdminClient

from kbackup.errors import UsageError
from kbackup.types import TopicPartition

TEXT = 512
"""Bytes for what a function says was wrong."""

ANY_API = 0

_RELEASE = "2"
"""Of confluent-kafka. Reading the pointer of another release's client could end the process: nothing is tried."""


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


class Broker(ctypes.Structure):
    """`rd_kafka_metadata_broker_t`"""

    _fields_ = (("id", c_int32), ("host", c_char_p), ("port", c_int))


class GroupInfo(ctypes.Structure):
    """`struct rd_kafka_group_info`"""

    _fields_ = (
        ("broker", Broker),
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

    _fields_ = (("groups", POINTER(GroupInfo)), ("group_cnt", c_int))


class _Partitions(ctypes.Structure):
    """`rd_kafka_topic_partition_list_t`"""

    _fields_ = (("cnt", c_int), ("size", c_int), ("elems", POINTER(_Partition)))


_List = POINTER(_Partitions)
_Many = (c_void_p, c_void_p, c_size_t, c_void_p, c_void_p)

_SIGNATURES: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "rd_kafka_opaque": (c_void_p, (c_void_p,)),
    "rd_kafka_brokers_add": (c_int, (c_void_p, c_char_p)),
    "rd_kafka_metadata": (c_int, (c_void_p, c_int, c_void_p, POINTER(c_void_p), c_int)),
    "rd_kafka_metadata_destroy": (None, (c_void_p,)),
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
    "rd_kafka_list_groups": (c_int, (c_void_p, c_char_p, POINTER(POINTER(GroupList)), c_int)),
    "rd_kafka_group_list_destroy": (None, (POINTER(GroupList),)),
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
    """Load the library. `UsageError` where its release is not one whose objects and functions are known."""
    if version("confluent-kafka").partition(".")[0] != _RELEASE:
        raise _unknown_release("keeps its clients in a way that is not known")
    library: Any = ctypes.CDLL(cimpl.__file__)  # its dependencies' symbols are found through it
    for name, (result, arguments) in _SIGNATURES.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise _unknown_release(f"brings a librdkafka without {name}") from None
        function.restype, function.argtypes = result, arguments
    return library


def _unknown_release(reason: str) -> UsageError:
    return UsageError(
        f"confluent-kafka {version('confluent-kafka')} {reason}",
        "install the release that kbackup is locked to (requirements/run.txt)",
    )


lib = _load()


def partitions_of(offsets: Sequence[Committed], whole: bool = False) -> Any:
    """A `rd_kafka_topic_partition_list_t *` of the places; `whole`: with what is committed."""
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


def client_of(owner: AdminClient | Consumer | Producer) -> int:
    """Its `rd_kafka_t *`: the one whose opaque is the object itself."""
    handle = c_void_p.from_address(id(owner) + object.__basicsize__).value
    if not handle or lib.rd_kafka_opaque(handle) != id(owner):
        raise _unknown_release("keeps its client in another way than is known")
    return handle


def committed_of(entry: _Partition) -> Committed:
    """Brokers give text: what a client committed in other bytes comes with U+FFFD in their place."""
    epoch = lib.rd_kafka_topic_partition_get_leader_epoch(ctypes.byref(entry))
    size = entry.metadata_size if entry.metadata else 0
    metadata = ctypes.string_at(entry.metadata, size).decode(errors="replace") if size else ""
    place = TopicPartition(text(entry.topic), entry.partition)
    return Committed(place, entry.offset, epoch if epoch >= 0 else None, metadata)


def text(words: bytes | None) -> str:
    return (words or b"").decode(errors="replace")
