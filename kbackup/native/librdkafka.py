"""The binding: librdkafka's C functions, from the library that confluent-kafka brings, and its errors.

Functions here are called a few times per block; functions that are called for every record are in `machine`. Types
follow `rdkafka.h`: `rd_kafka_message_t`, `rd_kafka_vu_t` and every function named below are its public, stable
interface. One thing is not: the length of a header's name stands before the name (`HEADER_NAME_LENGTH`); that is tried
out when this module is imported.

Rules of life-time:

- A client is made in the process and thread pool that use it, never before a fork.
- A message that a queue gave is destroyed before its client is, or destroying the client never ends.
- A topic handle and a queue are destroyed before their client, after all partitions were stopped.
- The memory of a record that is being produced stays as it is until its delivery report is in.
- The error callback is called from within whatever polls the client, the kernels among them; it takes the GIL.
- Header lists pass to librdkafka with a successful produce; otherwise they are ours to destroy.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_void_p
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from kbackup.native.library import Signature, bind, text
from kbackup.native.library import lib as library

PRODUCER, CONSUMER = 0, 1

ErrorCallback = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_void_p)
"""Client, code, reason, opaque. A simple consumer gets some errors of topics in no other way."""

TokenCallback = ctypes.CFUNCTYPE(None, c_void_p, c_char_p, c_void_p)
"""Client, `sasl.oauthbearer.config`, opaque. Called from a thread of librdkafka's own when a token is due."""

EVENT_DELIVERY, EVENT_LOG, EVENT_ERROR = 0x1, 0x4, 0x8

_OLDEST, _NEWEST = 0x02050000, 0x03000000
"""Versions whose interface is the one below: [oldest, newest)."""

HEADER_NAME_LENGTH = 16
"""Bytes from a header's length to its name: in `rd_kafka_header_s`, which is not in `rdkafka.h`."""

_SIGNATURES: Mapping[str, Signature] = {
    "rd_kafka_version": (c_int, ()),
    "rd_kafka_version_str": (c_char_p, ()),
    "rd_kafka_conf_new": (c_void_p, ()),
    "rd_kafka_conf_destroy": (None, (c_void_p,)),
    "rd_kafka_conf_set": (c_int, (c_void_p, c_char_p, c_char_p, c_char_p, c_size_t)),
    "rd_kafka_conf_set_events": (None, (c_void_p, c_int)),
    "rd_kafka_conf_set_error_cb": (None, (c_void_p, c_void_p)),
    "rd_kafka_conf_set_oauthbearer_token_refresh_cb": (None, (c_void_p, c_void_p)),
    "rd_kafka_conf_enable_sasl_queue": (None, (c_void_p, c_int)),
    "rd_kafka_oauthbearer_set_token": (
        c_int,
        (c_void_p, c_char_p, c_int64, c_char_p, c_void_p, c_size_t, c_char_p, c_size_t),
    ),
    "rd_kafka_oauthbearer_set_token_failure": (c_int, (c_void_p, c_char_p)),
    "rd_kafka_new": (c_void_p, (c_int, c_void_p, c_char_p, c_size_t)),
    "rd_kafka_destroy": (None, (c_void_p,)),
    "rd_kafka_set_log_queue": (c_int, (c_void_p, c_void_p)),
    "rd_kafka_sasl_background_callbacks_enable": (c_void_p, (c_void_p,)),
    "rd_kafka_last_error": (c_int, ()),
    "rd_kafka_error_is_fatal": (c_int, (c_void_p,)),
    "rd_kafka_error_is_retriable": (c_int, (c_void_p,)),
    "rd_kafka_error_txn_requires_abort": (c_int, (c_void_p,)),
    "rd_kafka_error_destroy": (None, (c_void_p,)),
    "rd_kafka_topic_new": (c_void_p, (c_void_p, c_char_p, c_void_p)),
    "rd_kafka_topic_destroy": (None, (c_void_p,)),
    "rd_kafka_queue_get_main": (c_void_p, (c_void_p,)),
    "rd_kafka_event_type": (c_int, (c_void_p,)),
    "rd_kafka_event_error_is_fatal": (c_int, (c_void_p,)),
    "rd_kafka_event_log": (c_int, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "rd_kafka_event_message_array": (c_size_t, (c_void_p, c_void_p, c_size_t)),
    "rd_kafka_consume_start_queue": (c_int, (c_void_p, c_int32, c_int64, c_void_p)),
    "rd_kafka_consume_stop": (c_int, (c_void_p, c_int32)),
    "rd_kafka_consume_batch_queue": (c_ssize_t, (c_void_p, c_int, c_void_p, c_size_t)),
    "rd_kafka_query_watermark_offsets": (c_int, (c_void_p, c_char_p, c_int32, c_void_p, c_void_p, c_int)),
    "rd_kafka_message_destroy": (None, (c_void_p,)),
    "rd_kafka_message_produce_errstr": (c_char_p, (c_void_p,)),
    "rd_kafka_message_timestamp": (c_int64, (c_void_p, c_void_p)),
    "rd_kafka_message_leader_epoch": (c_int32, (c_void_p,)),
    "rd_kafka_message_headers": (c_int, (c_void_p, c_void_p)),
    "rd_kafka_headers_new": (c_void_p, (c_size_t,)),
    "rd_kafka_headers_destroy": (None, (c_void_p,)),
    "rd_kafka_header_add": (c_int, (c_void_p, c_char_p, c_ssize_t, c_void_p, c_ssize_t)),
    "rd_kafka_header_get_all": (c_int, (c_void_p, c_size_t, c_void_p, c_void_p, c_void_p)),
    "rd_kafka_produceva": (c_void_p, (c_void_p, c_void_p, c_size_t)),
    "rd_kafka_outq_len": (c_int, (c_void_p,)),
    "rd_kafka_flush": (c_int, (c_void_p, c_int)),
    "rd_kafka_purge": (c_int, (c_void_p, c_int)),
    "rd_kafka_fatal_error": (c_int, (c_void_p, c_char_p, c_size_t)),
    "rd_kafka_init_transactions": (c_void_p, (c_void_p, c_int)),
    "rd_kafka_begin_transaction": (c_void_p, (c_void_p,)),
    "rd_kafka_send_offsets_to_transaction": (c_void_p, (c_void_p, c_void_p, c_void_p, c_int)),
    "rd_kafka_commit_transaction": (c_void_p, (c_void_p, c_int)),
    "rd_kafka_abort_transaction": (c_void_p, (c_void_p, c_int)),
    "rd_kafka_consumer_group_metadata_new": (c_void_p, (c_char_p,)),
    "rd_kafka_consumer_group_metadata_destroy": (None, (c_void_p,)),
}


def _load() -> Any:
    """Declare this module's functions. `ImportError` if the library's layout is not the one that is described here."""
    if missing := bind(library, _SIGNATURES):
        raise ImportError(f"this librdkafka has no {missing}")
    if not _OLDEST <= library.rd_kafka_version() < _NEWEST:
        raise ImportError(f"librdkafka {library.rd_kafka_version_str().decode()} is not one of those known")
    _check_header_names()
    return library


def _check_header_names() -> None:
    """Check that the length of a header's name lies `HEADER_NAME_LENGTH` bytes before the name."""
    name, value = b"a\0bc", b"v"
    headers = library.rd_kafka_headers_new(1)
    try:
        library.rd_kafka_header_add(headers, name, len(name), value, len(value))
        found = (c_void_p(), c_void_p(), c_size_t())
        library.rd_kafka_header_get_all(headers, 0, *map(ctypes.byref, found))
        at = found[0].value
        if (
            at is None
            or c_size_t.from_address(at - HEADER_NAME_LENGTH).value != len(name)
            or ctypes.string_at(at, len(name)) != name
        ):
            raise ImportError("this librdkafka keeps header names in another way")
    finally:
        library.rd_kafka_headers_destroy(headers)


lib = _load()
version = lib.rd_kafka_version_str().decode()


def address(name: str) -> int:
    """Return the address of a function, for compiled code to call it."""
    found = ctypes.cast(getattr(lib, name), c_void_p).value
    assert found  # noqa: S101 (it was loaded)
    return found


def error_of(code: int, reason: str = "", fatal: bool = False) -> KafkaError:
    """Return the object that confluent-kafka would raise for `code`."""
    return KafkaError(code, reason or text(lib.rd_kafka_err2str(code)), fatal)


def taken(error: int | None) -> KafkaError | None:
    """Return a `rd_kafka_error_t *` as an object, freed; None for success."""
    if not error:
        return None
    code, reason = lib.rd_kafka_error_code(error), text(lib.rd_kafka_error_string(error))
    is_fatal = bool(lib.rd_kafka_error_is_fatal(error))
    is_retriable = bool(lib.rd_kafka_error_is_retriable(error))
    requires_abort = bool(lib.rd_kafka_error_txn_requires_abort(error))
    kafka_error = KafkaError(code, reason, is_fatal, is_retriable, requires_abort)
    lib.rd_kafka_error_destroy(error)
    return kafka_error


def check(error: int | None) -> None:
    """Raise confluent-kafka's `KafkaException` for a `rd_kafka_error_t *`."""
    failure = taken(error)
    if failure is not None:
        raise KafkaException(failure)


def ms(seconds: float) -> int:
    return int(seconds * 1000)
