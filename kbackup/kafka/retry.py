"""Deadlines and retries around calls of librdkafka that may never come back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException


class Waiting:
    """`call`, on its way in a thread of its own, which keeps nobody from ending and goes on until the call returns."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._raised: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name="kbackup-waiting", daemon=True)
        self._thread.start()

    def ended(self, seconds: float = 0) -> bool:
        """Return True when the call has ended, or ends within `seconds`; raises its error."""
        self._thread.join(seconds)
        if self._raised:
            raise self._raised[0]
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:  # noqa: BLE001 (raised again in the caller's thread)
            self._raised.append(error)


TIMEOUT = 30.0  # s, for an admin request, and for an election
_PROPAGATION = 10.0  # s, until every broker knows a new topic; a deleted topic takes as long to be refused
_PAUSE = 0.3  # s, before the cluster is asked again

NotReady = Mapping[int, float]
"""Error codes that mean 'ask again', and for how many seconds a request may begin after the first one. A first request
that takes longer is repeated once."""

COORDINATOR_NOT_READY: NotReady = dict.fromkeys(
    (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR), TIMEOUT
)
"""The coordinator was just elected, or its partition was just created."""

LEADER_NOT_READY: NotReady = {
    **dict.fromkeys(
        (
            KafkaError.LEADER_NOT_AVAILABLE,
            KafkaError.NOT_LEADER_FOR_PARTITION,
            KafkaError.REPLICA_NOT_AVAILABLE,
            KafkaError.OFFSET_NOT_AVAILABLE,
            KafkaError.FENCED_LEADER_EPOCH,
            KafkaError.UNKNOWN_LEADER_EPOCH,
            KafkaError.KAFKA_STORAGE_ERROR,
            KafkaError.NETWORK_EXCEPTION,
        ),
        TIMEOUT,
    ),
    # The broker that was asked is gone: ask again when the client has looked up which brokers there are.
    KafkaError._TRANSPORT: TIMEOUT,
    KafkaError._NOENT: TIMEOUT,  # no partition has a leader: the last broker is going
    KafkaError._TIMED_OUT: TIMEOUT / 2,  # once, since the request itself took TIMEOUT
    **dict.fromkeys(
        (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION), _PROPAGATION
    ),
}
"""The partition's leader was just elected, or the topic was just created and not every broker knows it yet."""

K = TypeVar("K")
A = TypeVar("A")

Answers = Iterator[tuple[K, A | KafkaError]]


def ask_until_ready(
    items: Iterable[K],
    ask: Callable[[list[K]], Answers[K, A]],
    not_ready: NotReady,
    refresh: Callable[[], object] = lambda: None,
) -> tuple[dict[K, A], dict[K, KafkaError]]:
    """Return each item's answer, and the error of each item that was refused.

    Items refused with a code of `not_ready` are asked for again; `refresh` is called before.
    """
    answers: dict[K, A] = {}
    refused: dict[K, KafkaError] = {}
    waiting = list(items)
    started = time.monotonic()
    while waiting:
        elapsed = time.monotonic() - started
        for item, answer in ask(waiting):
            if isinstance(answer, KafkaError):
                refused[item] = answer
            else:
                refused.pop(item, None)
                answers[item] = answer
        waiting = [item for item, error in refused.items() if elapsed < not_ready.get(error.code(), 0)]
        if waiting:
            time.sleep(_PAUSE)
            refresh()
    return answers, refused


def answered(item: K, future: Future[Any]) -> tuple[K, Any]:
    """Return `item` and what its admin request returned, or the `KafkaError` that it was refused with."""
    try:
        return item, future.result(timeout=TIMEOUT * 2)
    except KafkaException as raised:
        return item, raised.args[0]
    except TimeoutError:
        return item, KafkaError(KafkaError._TIMED_OUT)
