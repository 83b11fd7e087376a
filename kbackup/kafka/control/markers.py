"""Transactions without records: each puts one marker into the logs of its partitions, which no consumer ever sees.

A marker takes one offset. So a gap in the offsets of a log can be made by as many transactions as it has offsets.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any, TypeVar

from confluent_kafka import KafkaError

from kbackup.errors import ClusterError, FencedError
from kbackup.kafka.batches import Producer
from kbackup.kafka.control.connection import BrokerConnection
from kbackup.kafka.control.errors import REQUEST_SECONDS, broker_error, pauses
from kbackup.kafka.control.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)
from kbackup.kafka.control.router import TRANSACTION, Answers, Coordinators, Question, Router, numbers_by_topic
from kbackup.types import TopicPartition

A = TypeVar("A")

_TRANSACTION_SECONDS = 60
"""How long a transaction of a process that died keeps readers of whole transactions waiting, at most."""

_NEWEST_INIT, _NEWEST_ADD, _NEWEST_END = 4, 3, 4
"""The newest versions by which a client ends its transactions itself. From the next ones on each transaction raises the
producer's epoch, which a client then has to follow."""

_FENCED = {KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_ID_MAPPING}
_BUSY = KafkaError.CONCURRENT_TRANSACTIONS
"""The coordinator still writes the markers of the transaction before."""

_LONGEST_PAUSE = 0.02
"""Seconds. A coordinator needs a few ms for the markers of a transaction."""


class EmptyTransactions:
    """Writes markers under some transactional ids, each of which has one transaction at a time. Only one process can
    use an id: whoever `begin`s with it ends the others' transactions, and they get a `FencedError` with the message and
    the hint of `fenced`.

    `producers` has the producer of each id, once `begin` was called."""

    def __init__(self, router: Router, ids: Sequence[str], fenced: tuple[str, str]) -> None:
        self.ids = tuple(ids)
        self.producers: dict[str, Producer] = {}
        self._router = router
        self._fenced = fenced
        self._coordinators = Coordinators(router, TRANSACTION)

    def begin(self) -> None:
        """Take the transactional ids over. A transaction that their last owner left open is aborted: when this returns,
        its markers are in the logs, or on their way."""

        def request(broker: BrokerConnection, ids: list[str]) -> Any:
            return InitProducerIdRequest(transactional_id=ids[0], transaction_timeout_ms=_TRANSACTION_SECONDS * 1000)

        def answers(response: Any, ids: list[str]) -> Answers[str, Producer]:
            yield ids[0], Producer(response.producer_id, response.producer_epoch)

        question = Question[str, Producer](request, answers, at_once=1, newest=_NEWEST_INIT)
        self.producers = self._ask(question, self.ids, "starting transactions")

    def mark(self, partitions: Collection[TopicPartition], count: int = 1) -> None:
        """Put `count` markers into each of the logs: by as many transactions, each under an id of its own. They may be
        on their way still when this returns."""
        ids = self.ids[:count]
        self.add(partitions, ids)
        self.end(ids, commit=True)

    def add(self, partitions: Collection[TopicPartition], ids: Sequence[str]) -> None:
        """Begin a transaction with these partitions under each of the `ids`, or add them to the one that is open."""
        numbers = numbers_by_topic(sorted(partitions))
        kind = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        topics = [kind(name=name, partitions=of_topic) for name, of_topic in numbers.items()]

        def request(broker: BrokerConnection, ids: list[str]) -> Any:
            producer = self.producers[ids[0]]
            return AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=ids[0],
                v3_and_below_producer_id=producer.id,
                v3_and_below_producer_epoch=producer.epoch,
                v3_and_below_topics=topics,
            )

        question = Question[str, None](request, _added, at_once=1, newest=_NEWEST_ADD)
        self._ask(question, ids, "adding partitions to a transaction")

    def add_group(self, group: str, ids: Sequence[str]) -> None:
        """Add the log of a group's offsets to the transactions, without any offset."""

        def request(broker: BrokerConnection, ids: list[str]) -> Any:
            producer = self.producers[ids[0]]
            return AddOffsetsToTxnRequest(
                transactional_id=ids[0], producer_id=producer.id, producer_epoch=producer.epoch, group_id=group
            )

        def answers(response: Any, ids: list[str]) -> Answers[str, None]:
            yield ids[0], None

        question = Question[str, None](request, answers, at_once=1, newest=_NEWEST_ADD)
        self._ask(question, ids, "adding a group to a transaction")

    def end(self, ids: Sequence[str], *, commit: bool) -> None:
        """End the transactions of the `ids`. Their coordinators then write a marker to each of the partitions, which
        may take a moment."""

        def request(broker: BrokerConnection, ids: list[str]) -> Any:
            producer = self.producers[ids[0]]
            return EndTxnRequest(
                transactional_id=ids[0], producer_id=producer.id, producer_epoch=producer.epoch, committed=commit
            )

        def answers(response: Any, ids: list[str]) -> Answers[str, None]:
            yield ids[0], None

        question = Question[str, None](request, answers, at_once=1, newest=_NEWEST_END)
        self._ask(question, ids, "ending a transaction")

    def _ask(self, question: Question[str, A], ids: Sequence[str], doing: str) -> dict[str, A]:
        """Ask the coordinators, for as long as they are busy with the transactions before."""
        # All of this may be repeated: a partition that is in a transaction already, or a transaction that has ended so,
        # is no error.
        answers: dict[str, A] = {}
        waiting: Sequence[str] = ids
        until = time.monotonic() + REQUEST_SECONDS
        pause = pauses()
        while True:
            answered, refused = self._router.ask_each(waiting, question, self._coordinators)
            answers |= answered
            for error in refused.values():
                if error.code() in _FENCED:
                    raise FencedError(*self._fenced)
                if error.code() != _BUSY:
                    raise self._router.connection.error(error, doing)
            if not refused:
                return answers
            if time.monotonic() >= until:
                raise ClusterError(
                    f"{self._router.connection.address} did not end a transaction in {REQUEST_SECONDS:.0f} s",
                    "check that all brokers are running, and run the command again",
                )
            waiting = list(refused)
            time.sleep(min(next(pause), _LONGEST_PAUSE))


def _added(response: Any, ids: Sequence[str]) -> Answers[str, None]:
    for topic in response.results_by_topic_v3_and_below:
        for each in topic.results_by_partition:
            # Either all partitions are added or none: one that was refused says why, the others that it was tried.
            if each.partition_error_code and each.partition_error_code != KafkaError.OPERATION_NOT_ATTEMPTED:
                yield ids[0], broker_error(each.partition_error_code)
                return
    yield ids[0], None
