"""A client of librdkafka's that the kernels use, and the progress that it adds to a transaction."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Mapping
from contextlib import suppress
from ctypes import c_char_p
from typing import Any

from confluent_kafka import KafkaError

from kbackup.errors import UsageError
from kbackup.native.contract import ClusterConnection, CommittedProgress
from kbackup.native.library import TEXT, text
from kbackup.native.librdkafka import (
    EVENT_ERROR,
    EVENT_LOG,
    ErrorCallback,
    TokenCallback,
    check,
    error_of,
    lib,
    ms,
    taken,
)
from kbackup.types import TopicPartition

log = logging.getLogger("kbackup.librdkafka")

_SYSLOG_TO_PYTHON = (50, 50, 50, 40, 30, 20, 20, 10)
"""Levels of `logging` by syslog's, from 0 (emergency) to 7 (debug)."""


class Handle:
    """A librdkafka client: `client` is the `rd_kafka_t *`, `main` its queue of events.

    Close it after use; destroy topics and queues made from it before.
    """

    def __init__(self, connection: ClusterConnection, kind: int, extra: Mapping[str, Any], events: int = 0) -> None:
        """`UsageError` for a property that can't be used. Its value is never shown."""
        self.connection = connection
        settings = connection.settings(extra) | {"log.queue": "true"}
        # both live as long as the client
        self._on_error = ErrorCallback(self._error_came)
        self._on_token = TokenCallback(self._token_is_due)
        reason = ctypes.create_string_buffer(TEXT)
        conf = lib.rd_kafka_conf_new()
        for name, value in settings.items():
            if lib.rd_kafka_conf_set(conf, name.encode(), value.encode(), reason, TEXT) != 0:
                lib.rd_kafka_conf_destroy(conf)
                # librdkafka's words may show the value, which may be a secret
                words = text(reason.value)
                raise self._unusable(name if value in words else f"{name}: {words}")
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
        # librdkafka takes both names, and so does a user
        mechanism = settings.get("sasl.mechanism", settings.get("sasl.mechanisms", ""))
        if mechanism.upper() == "OAUTHBEARER":
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
        `take_event`.
        """
        while event := lib.rd_kafka_queue_poll(self.main, wait):
            self.take_event(event)
            wait = 0

    def _error_came(self, client: int, code: int, reason: bytes, opaque: int) -> None:
        self._remember(client, error_of(code, text(reason)))

    def _token_is_due(self, client: int, config: bytes, opaque: int) -> None:
        """Called in a thread of librdkafka's own. What the user's function raises, `tokens.failure` has."""
        assert self.connection.tokens is not None  # noqa: S101 (or nobody would call)
        # The caller is C, through which no exception can go.
        with suppress(Exception):
            token = self.connection.tokens(text(config))
            words: list[bytes] = []
            for name, value in token.extensions.items():
                words += [name.encode(), value.encode()]
            extensions = (c_char_p * len(words))(*words)
            expires = int(token.expires * 1000)
            login = token.value.encode(), expires, token.principal.encode()
            reason = ctypes.create_string_buffer(TEXT)
            code = lib.rd_kafka_oauthbearer_set_token(client, *login, extensions, len(words), reason, TEXT)
            if code == 0:
                return
        lib.rd_kafka_oauthbearer_set_token_failure(client, b"the callback gave none that can be used")

    def _remember(self, client: int, error: KafkaError) -> None:
        if error.code() == KafkaError._FATAL:  # without the cause, which ended the client for good
            reason = ctypes.create_string_buffer(TEXT)
            error = error_of(lib.rd_kafka_fatal_error(client, reason, TEXT), text(reason.value), True)
        self.connection.heard(error)

    def take_event(self, event: int) -> None:
        """Remember or log an event, and free it."""
        kind = lib.rd_kafka_event_type(event)
        if kind == EVENT_ERROR:
            reason = text(lib.rd_kafka_event_error_string(event))
            fatal = bool(lib.rd_kafka_event_error_is_fatal(event))
            self._remember(self.client, error_of(lib.rd_kafka_event_error(event), reason, fatal))
        elif kind == EVENT_LOG:
            self._log(event)
        lib.rd_kafka_event_destroy(event)

    def _log(self, event: int) -> None:
        facility, words, level = ctypes.c_char_p(), ctypes.c_char_p(), ctypes.c_int()
        code = lib.rd_kafka_event_log(event, ctypes.byref(facility), ctypes.byref(words), ctypes.byref(level))
        if code == 0:
            severity = _SYSLOG_TO_PYTHON[min(level.value, 7)]
            log.log(severity, "%s %s", text(facility.value), text(words.value))

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
