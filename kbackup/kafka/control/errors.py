"""What may go wrong between us and a broker, and the one table that says what mends it.

An error of a broker is a `KafkaError` with Kafka's code, whose text confluent-kafka knows; so is an error of our own
connections, with one of librdkafka's codes below zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError

REQUEST_SECONDS = 30.0
"""How long a broker may take to answer a request, and an election to end."""

CALL_SECONDS = 60.0
"""How long a call may take as a whole: its last request begins within `REQUEST_SECONDS` of the first."""

SECONDS_PER_THING = 0.01
"""How much longer a call may take for each thing that it is about: clusters have hundreds of thousands of partitions,
and a slow one answers for a thousand of them in some seconds."""

PROPAGATION_SECONDS = 10.0
"""How long it takes until every broker knows a new topic; a topic that was deleted takes as long to be refused."""

PAUSE_SECONDS = 0.3
"""How long we wait, at most, before a question is asked again."""

_FIRST_PAUSE_SECONDS = 0.02


def pauses() -> Iterator[float]:
    """Yield the seconds to wait before a question is asked again, and again. Most elections and new topics are done in
    some hundredths of a second, so the first pauses are short."""
    pause = _FIRST_PAUSE_SECONDS
    while True:
        yield pause
        pause = min(2 * pause, PAUSE_SECONDS)


NOT_A_BROKER = KafkaError._UNDERFLOW
"""Librdkafka's code for an answer that can't be read; none of its clients gives it to us."""


class RequestError(Exception):
    """A request that has no answer, or a refusal for an answer."""

    def kafka_error(self) -> KafkaError:
        raise NotImplementedError


class UnsupportedSettingError(RequestError):
    """A setting that kbackup can't follow where it asks brokers, or a file of keys that can't be used. Nothing has been
    sent."""

    def kafka_error(self) -> KafkaError:
        return KafkaError(KafkaError._UNSUPPORTED_FEATURE, str(self))


class NoConnectionError(RequestError):
    """No connection could be made: the request was not sent. `code` is librdkafka's for the cause."""

    def __init__(self, words: str, code: int = KafkaError._ALL_BROKERS_DOWN) -> None:
        super().__init__(words)
        self.code = code

    def kafka_error(self) -> KafkaError:
        return KafkaError(self.code, str(self))


class ConnectionEndedError(NoConnectionError):
    """The connection ended, or went silent, after the request was sent: the broker may have carried it out."""

    def __init__(self, words: str, code: int = KafkaError._TRANSPORT) -> None:
        super().__init__(words, code)


class NotABrokerError(ConnectionEndedError):
    """Something listens there, and does not answer as a broker does."""

    def __init__(self, words: str) -> None:
        super().__init__(words, NOT_A_BROKER)


class LoginError(NoConnectionError):
    """The broker did not let us in, or its half of a login is not what it must be."""

    def __init__(self, words: str) -> None:
        super().__init__(words, KafkaError._AUTHENTICATION)


class TlsError(NoConnectionError):
    """The two sides of a connection agree on no encryption, or one does not trust the other."""

    def __init__(self, words: str) -> None:
        super().__init__(words, KafkaError._SSL)


class RefusedRequestError(RequestError):
    """A broker answered with an error: Kafka's `code`, and its own words."""

    def __init__(self, code: int, words: str = "") -> None:
        super().__init__(words)
        self.code = code
        self.words = words

    def kafka_error(self) -> KafkaError:
        return KafkaError(self.code, self.words) if self.words else KafkaError(self.code)


def broker_error(code: int, words: str | None = None) -> KafkaError:
    """Return the error that a broker answers for one thing of many: Kafka's code, and the broker's own words if it has
    some."""
    return RefusedRequestError(code, words or "").kafka_error()


NOT_LET_IN = (KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError._UNSUPPORTED_FEATURE)
"""Errors of a connection that no waiting mends."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """What mends an error: the question is asked again, for so many `seconds` after the first time.

    `elsewhere`: perhaps another broker has to answer, so it is looked up again which one. `refused`: the broker has
    certainly not done what it was asked for, so that a change may be asked for again as well."""

    seconds: float
    elsewhere: bool = False
    refused: bool = True


_LOADING = Remedy(REQUEST_SECONDS)
_MOVED = Remedy(REQUEST_SECONDS, elsewhere=True)
_SPREADING = Remedy(PROPAGATION_SECONDS, elsewhere=True)
_UNCERTAIN = Remedy(REQUEST_SECONDS, elsewhere=True, refused=False)

REMEDIES: Mapping[int, Remedy] = {
    # The coordinator was just elected, or its partition was just created.
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS: _LOADING,
    KafkaError.COORDINATOR_NOT_AVAILABLE: _MOVED,
    KafkaError.NOT_COORDINATOR: _MOVED,
    # The coordinator still ends a transaction that commits offsets.
    KafkaError.UNSTABLE_OFFSET_COMMIT: _LOADING,
    # The controller was just elected.
    KafkaError.NOT_CONTROLLER: _MOVED,
    # The partition's leader was just elected, or answers before it knows how far the log is replicated.
    KafkaError.LEADER_NOT_AVAILABLE: _MOVED,
    KafkaError.NOT_LEADER_FOR_PARTITION: _MOVED,
    KafkaError.REPLICA_NOT_AVAILABLE: _MOVED,
    KafkaError.FENCED_LEADER_EPOCH: _MOVED,
    KafkaError.UNKNOWN_LEADER_EPOCH: _MOVED,
    KafkaError.KAFKA_STORAGE_ERROR: _MOVED,
    KafkaError.OFFSET_NOT_AVAILABLE: _LOADING,
    KafkaError.NETWORK_EXCEPTION: _UNCERTAIN,
    # The topic was just created, and not every broker knows it yet.
    KafkaError.UNKNOWN_TOPIC_OR_PART: _SPREADING,
    # No partition that was asked about has a leader: the last broker is going.
    KafkaError._NOENT: _MOVED,
    # No broker is there that could be asked.
    KafkaError._ALL_BROKERS_DOWN: _MOVED,
    KafkaError._RESOLVE: _MOVED,
    # The broker that was asked is gone, perhaps after it did what it was asked for.
    KafkaError._TRANSPORT: _UNCERTAIN,
    # A broker that stops closes its connections in the same way as something that is no broker.
    NOT_A_BROKER: _UNCERTAIN,
    # The request itself took `REQUEST_SECONDS`: it is repeated once.
    KafkaError._TIMED_OUT: Remedy(REQUEST_SECONDS / 2, elsewhere=True, refused=False),
}
"""By error code. Every other error is reported as it is."""


def remedy_for(error: KafkaError, *, change: bool) -> Remedy | None:
    """Return what mends an error, None where nothing does. `change`: the request changes something."""
    remedy = REMEDIES.get(error.code())
    if remedy is None or (change and not remedy.refused):
        return None
    return remedy


REFUSES_TOPIC = {
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.POLICY_VIOLATION,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
}
"""Errors that concern one topic alone: answers to a record, to the request that adds its partition to the transaction,
or to its progress."""
