"""librdkafka's own functions, from the library that confluent-kafka brings: those that are needed with every kernel.

Types follow `rdkafka.h`, its public and stable interface. That a client's `rd_kafka_t *` comes first in its Python
object is no public promise: `client_of` checks it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from importlib.metadata import version
from typing import Any

from confluent_kafka import Consumer, Producer, cimpl

from kbackup.errors import UsageError

TEXT = 512
"""Bytes for the text of a function's error."""

_RELEASE = "2"
"""Of confluent-kafka. Reading the pointer of another release's client could end the process: nothing is tried."""

_CONNECTION = 10.0  # s


class PartitionStruct(ctypes.Structure):
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


class PartitionListStruct(ctypes.Structure):
    """`rd_kafka_topic_partition_list_t`"""

    _fields_ = (("cnt", c_int), ("size", c_int), ("elems", POINTER(PartitionStruct)))


Signature = tuple[Any, tuple[Any, ...]]
"""The type of a function's result, and the types of its arguments."""

_List = POINTER(PartitionListStruct)

_SIGNATURES: Mapping[str, Signature] = {
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
    "rd_kafka_event_destroy": (None, (c_void_p,)),
    "rd_kafka_topic_partition_list_new": (_List, (c_int,)),
    "rd_kafka_topic_partition_list_add": (POINTER(PartitionStruct), (_List, c_char_p, c_int32)),
    "rd_kafka_topic_partition_list_destroy": (None, (_List,)),
}


def bind(library: Any, signatures: Mapping[str, Signature]) -> str:
    """Declare results and arguments of functions; return the name of one that the library lacks, or ''."""
    for name, (result, arguments) in signatures.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            return name
        function.restype, function.argtypes = result, arguments
    return ""


def _load() -> Any:
    """Load the library. `UsageError` if its release is not one whose objects and functions are known."""
    if version("confluent-kafka").partition(".")[0] != _RELEASE:
        raise _unknown_release("keeps its clients in a way that is not known")
    library: Any = ctypes.CDLL(cimpl.__file__)  # its dependencies' symbols are found through it
    if missing := bind(library, _SIGNATURES):
        raise _unknown_release(f"brings a librdkafka without {missing}")
    return library


def _unknown_release(reason: str) -> UsageError:
    return UsageError(
        f"confluent-kafka {version('confluent-kafka')} {reason}",
        "install the release that kbackup is locked to (requirements/run.txt)",
    )


lib = _load()


def client_of(owner: Consumer | Producer) -> int:
    """Return the `rd_kafka_t *` of a client: the one whose opaque is the object itself."""
    handle = c_void_p.from_address(id(owner) + object.__basicsize__).value
    if not handle or lib.rd_kafka_opaque(handle) != id(owner):
        raise _unknown_release("keeps its client in another way than is known")
    return handle


def text(words: bytes | None) -> str:
    """Return text of librdkafka's or of a broker's, with U+FFFD in the place of what is no UTF-8."""
    return (words or b"").decode(errors="replace")


def await_connection(client: int, timeout: float) -> None:
    """Wait until a broker answers, for up to 10 s or `timeout` (s).

    A transactional producer looks for its coordinator at once, and without a connection half a second later again.
    """
    metadata = c_void_p()
    milliseconds = int(min(timeout, _CONNECTION) * 1000)
    if not lib.rd_kafka_metadata(client, False, None, ctypes.byref(metadata), milliseconds):
        lib.rd_kafka_metadata_destroy(metadata)
