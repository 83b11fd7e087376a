"""One librdkafka client with its errors, which are remembered, and its log lines."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError

from kbackup.kafka.client.client import Connection, log
from kbackup.kafka.native.librdkafka import (
    EVENT_ERROR,
    EVENT_LOG,
    ErrorCallback,
    TokenCallback,
    error_of,
    fatal_error_of,
    lib,
    new_client,
    set_token,
    taken,
    text,
)

_SYSLOG_TO_PYTHON = (50, 50, 50, 40, 30, 20, 20, 10)


class Handle:
    """A librdkafka client: `client` is the `rd_kafka_t *`, `main` its queue of events.

    Close it after use; destroy topics and queues made from it before.
    """

    def __init__(self, connection: Connection, kind: int, extra: Mapping[str, Any], events: int = 0) -> None:
        self.connection = connection
        settings = connection.settings(extra) | {"log.queue": "true"}
        self._on_error = ErrorCallback(self._remember_error)
        self._on_token = TokenCallback(self._token_is_due) if connection.tokens is not None else None
        every = EVENT_ERROR | EVENT_LOG | events
        self.client = new_client(kind, settings, every, self._on_error, self._on_token, connection.role)
        lib.rd_kafka_set_log_queue(self.client, None)
        self.main: int = lib.rd_kafka_queue_get_main(self.client)
        if settings.get("sasl.mechanism", settings.get("sasl.mechanisms", "")).upper() == "OAUTHBEARER":
            # nobody polls a client in the middle of a transaction call, and a token may be due
            failed = taken(lib.rd_kafka_sasl_background_callbacks_enable(self.client))
            if failed is not None:
                raise connection.error(failed, "starting to log in by tokens")

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

    def _remember_error(self, client: int, code: int, reason: bytes, opaque: int) -> None:
        self._remember(client, error_of(code, text(reason)))

    def _token_is_due(self, client: int, config: bytes, opaque: int) -> None:
        assert self.connection.tokens is not None  # noqa: S101 (or nobody would call)
        try:
            set_token(client, self.connection.tokens(text(config)))
        except Exception:  # noqa: BLE001 (it is the user's function, and a frame of C is above: `tokens.failure` says it)
            lib.rd_kafka_oauthbearer_set_token_failure(client, b"the callback gave none that can be used")

    def _remember(self, client: int, error: KafkaError) -> None:
        fatal = error.code() == KafkaError._FATAL
        self.connection.heard(fatal_error_of(client) if fatal else error)

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
                log.log(
                    _SYSLOG_TO_PYTHON[min(level.value, 7)], "%s %s", text(facility.value), text(words.value)
                )
        lib.rd_kafka_event_destroy(event)

    def close(self) -> None:
        if not self.client:
            return
        self.listen()
        lib.rd_kafka_queue_destroy(self.main)
        lib.rd_kafka_destroy(self.client)
        self.client = 0
