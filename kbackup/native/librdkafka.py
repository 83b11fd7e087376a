"""The binding: librdkafka's C functions, from the library that confluent-kafka brings, and its transactions.

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
import logging
from collections.abc import Mapping
from contextlib import suppress
from ctypes import c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_void_p
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from kbackup.errors import UsageError
from kbackup.native.contract import ClusterConnection, CommittedProgress
from kbackup.native.library import TEXT, Signature, bind, text
from kbackup.native.library import lib as library
from kbackup.types import TopicPartition

log = logging.getLogger("kbackup.librdkafka")

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
    kafka_error = KafkaError(
        lib.rd_kafka_error_code(error),
        text(lib.rd_kafka_error_string(error)),
        bool(lib.rd_kafka_error_is_fatal(error)),
        bool(lib.rd_kafka_error_is_retriable(error)),
        bool(lib.rd_kafka_error_txn_requires_abort(error)),
    )
    lib.rd_kafka_error_destroy(error)
    return kafka_error


_SYSLOG_TO_PYTHON = (50, 50, 50, 40, 30, 20, 20, 10)


class Handle:
    """A librdkafka client: `client` is the `rd_kafka_t *`, `main` its queue of events.

    Close it after use; destroy topics and queues made from it before.
    """

    def __init__(self, connection: ClusterConnection, kind: int, extra: Mapping[str, Any], events: int = 0) -> None:
        """`UsageError` for a property that can't be used. Its value is never shown."""
        self.connection = connection
        settings = connection.settings(extra) | {"log.queue": "true"}
        # both live as long as the client
        self._on_error = ErrorCallback(
            lambda client, code, reason, opaque: self._remember(client, error_of(code, text(reason)))
        )
        self._on_token = TokenCallback(self._token_is_due)
        reason = ctypes.create_string_buffer(TEXT)
        conf = lib.rd_kafka_conf_new()
        for name, value in settings.items():
            if lib.rd_kafka_conf_set(conf, name.encode(), value.encode(), reason, TEXT) != 0:
                lib.rd_kafka_conf_destroy(conf)
                raise self._unusable(f"{name}: {text(reason.value)}" if value not in text(reason.value) else name)
        lib.rd_kafka_conf_set_events(conf, EVENT_ERROR | EVENT_LOG | events)
        lib.rd_kafka_conf_set_error_cb(conf, self._on_error)
        lib.rd_kafka_conf_enable_sasl_queue(conf, 1)  # so that its callbacks can go to a thread of librdkafka's
        if connection.tokens is not None:
            lib.rd_kafka_conf_set_oauthbearer_token_refresh_cb(conf, self._on_token)
        client: int | None = lib.rd_kafka_new(kind, conf, reason, TEXT)
        if not client:
            lib.rd_kafka_conf_destroy(conf)
            raise self._unusable(text(reason.value))
        self.client = client
        lib.rd_kafka_set_log_queue(client, None)
        self.main: int = lib.rd_kafka_queue_get_main(client)
        if settings.get("sasl.mechanism", settings.get("sasl.mechanisms", "")).upper() == "OAUTHBEARER":
            # nobody polls a client in the middle of a transaction call, and a token may be due
            failed = taken(lib.rd_kafka_sasl_background_callbacks_enable(client))
            if failed is not None:
                raise connection.error(failed, "starting to log in by tokens")

    def _unusable(self, reason: str) -> UsageError:
        return UsageError(
            f"[{self.connection.role}] has a property librdkafka can't use: {reason}",
            "see librdkafka's CONFIGURATION.md for names and values",
        )

    def topic(self, name: str) -> int:
        """Return a new `rd_kafka_topic_t *`; the caller destroys it."""
        made: int | None = lib.rd_kafka_topic_new(self.client, name.encode(), None)
        if not made:
            raise self.connection.error(error_of(lib.rd_kafka_last_error()), f"opening topic {name}")
        return made

    def listen(self, wait: int = 0) -> None:
        """Take the events that are queued, or come within `wait` ms.

        Not for clients with delivery events: the kernel reads these from the same queue and passes the others to
        `heard`.
        """
        while event := lib.rd_kafka_queue_poll(self.main, wait):
            self.heard(event)
            wait = 0

    def _token_is_due(self, client: int, config: bytes, opaque: int) -> None:
        """Called in a thread of librdkafka's own. What the user's function raises, `tokens.failure` has."""
        assert self.connection.tokens is not None  # noqa: S101 (or nobody would call)
        with suppress(Exception):  # a frame of C is above
            token = self.connection.tokens(text(config))
            pairs = [word.encode() for pair in token.extensions.items() for word in pair]
            value, principal, expires = token.value.encode(), token.principal.encode(), int(token.expires * 1000)
            extensions, reason = (c_char_p * len(pairs))(*pairs), ctypes.create_string_buffer(TEXT)
            code = lib.rd_kafka_oauthbearer_set_token(
                client, value, expires, principal, extensions, len(pairs), reason, TEXT
            )
            if code == 0:
                return
        lib.rd_kafka_oauthbearer_set_token_failure(client, b"the callback gave none that can be used")

    def _remember(self, client: int, error: KafkaError) -> None:
        if error.code() == KafkaError._FATAL:  # without the cause, which ended the client for good
            reason = ctypes.create_string_buffer(TEXT)
            error = error_of(lib.rd_kafka_fatal_error(client, reason, TEXT), text(reason.value), True)
        self.connection.heard(error)

    def heard(self, event: int) -> None:
        """Remember or log an event, and free it."""
        kind = lib.rd_kafka_event_type(event)
        if kind == EVENT_ERROR:
            reason = text(lib.rd_kafka_event_error_string(event))
            fatal = bool(lib.rd_kafka_event_error_is_fatal(event))
            self._remember(self.client, error_of(lib.rd_kafka_event_error(event), reason, fatal))
        elif kind == EVENT_LOG:
            facility, words, level = ctypes.c_char_p(), ctypes.c_char_p(), ctypes.c_int()
            found = (ctypes.byref(facility), ctypes.byref(words), ctypes.byref(level))
            if lib.rd_kafka_event_log(event, *found) == 0:
                log.log(_SYSLOG_TO_PYTHON[min(level.value, 7)], "%s %s", text(facility.value), text(words.value))
        lib.rd_kafka_event_destroy(event)

    def close(self) -> None:
        if not self.client:
            return
        self.listen()
        lib.rd_kafka_queue_destroy(self.main)
        lib.rd_kafka_destroy(self.client)
        self.client = 0


def send_progress(
    client: int, group: str, progress: Mapping[TopicPartition, CommittedProgress], timeout: float
) -> None:
    """Add the progress to the transaction, for a group that has no members."""
    partitions = _partitions_of(progress)
    member = lib.rd_kafka_consumer_group_metadata_new(group.encode())
    try:
        check(lib.rd_kafka_send_offsets_to_transaction(client, partitions, member, ms(timeout)))
    finally:
        lib.rd_kafka_consumer_group_metadata_destroy(member)
        lib.rd_kafka_topic_partition_list_destroy(partitions)


def _partitions_of(progress: Mapping[TopicPartition, CommittedProgress]) -> Any:
    """Return a `rd_kafka_topic_partition_list_t *` with an offset to be committed, and its note, for each partition."""
    made = lib.rd_kafka_topic_partition_list_new(len(progress))
    for tp, at in progress.items():
        entry = lib.rd_kafka_topic_partition_list_add(made, tp.topic.encode(), tp.partition)
        note = f"{at.note}\0".encode()  # confluent-kafka writes a note with the NUL byte, and reads up to one
        entry.contents.offset = at.next
        entry.contents.metadata = lib.rd_kafka_mem_malloc(None, len(note))
        entry.contents.metadata_size = len(note)
        ctypes.memmove(entry.contents.metadata, note, len(note))
    return made


def check(error: int | None) -> None:
    """Raise confluent-kafka's `KafkaException` for a `rd_kafka_error_t *`."""
    failure = taken(error)
    if failure is not None:
        raise KafkaException(failure)


def ms(seconds: float) -> int:
    return int(seconds * 1000)
