"""Append ready batches to logs, and delete the beginnings of logs, by Kafka's own requests.

A batch of a producer with an id has a sequence. The broker appends it if its sequence is the next one of that producer
in that log, and says where it did if the same batch comes again. So a request may be repeated, also by another process,
and the batch is in the log once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from confluent_kafka import KafkaError

from kbackup.errors import ClusterError, KbackupError
from kbackup.kafka.batches import SEQUENCES, ProducedBatch, Producer
from kbackup.kafka.control.connection import BrokerConnection
from kbackup.kafka.control.errors import REFUSES_TOPIC, REQUEST_SECONDS, broker_error
from kbackup.kafka.control.logs import describe_producers
from kbackup.kafka.control.messages import DeleteRecordsRequest, InitProducerIdRequest, ProduceRequest
from kbackup.kafka.control.router import Answers, Leaders, Question, Router, explaining
from kbackup.kafka.control.unavailable import UnavailableError
from kbackup.types import TopicPartition

_ALL_REPLICAS = -1
_FIRST_WITH_ZSTD = 7
"""The first version of Produce that takes batches compressed by zstd (brokers since 2.1)."""
_NEWEST_PRODUCE = 8
"""Later versions bring nothing that is needed here; from 13 on they name topics by id."""
_NEWEST_INIT = 4
_PRODUCER_SECONDS = 60


_KINDS = {
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER: "moved",
    KafkaError.DUPLICATE_SEQUENCE_NUMBER: "moved",
    KafkaError.NOT_ENOUGH_REPLICAS: "late",
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "late",
    KafkaError.REQUEST_TIMED_OUT: "late",
    KafkaError.MSG_SIZE_TOO_LARGE: "too large",
    KafkaError.RECORD_LIST_TOO_LARGE: "too large",
    KafkaError.INVALID_MSG_SIZE: "too large",
}


class RefusedBatch(NamedTuple):
    """Why a batch was refused:

    - `moved`: its sequence is not the next one of its producer in that log. The log has grown since its end was read.
    - `late`: too few replicas have it. It may be in the log: the same batch may be sent again.
    - `too large`: the topic takes no batch of that size.
    - `topic`: for another reason that concerns the topic.
    - `other`: for a reason of the cluster's.
    """

    kind: str
    error: KbackupError


def new_producer(router: Router) -> Producer:
    """Return a new producer id. Raise kbackup's errors if the cluster gives us none."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=_PRODUCER_SECONDS * 1000)
    with explaining(router.connection, "asking for a producer id"):
        response = router.ask(request, newest=_NEWEST_INIT)
    return Producer(response.producer_id, response.producer_epoch)


def append(
    router: Router, batches: Mapping[TopicPartition, ProducedBatch], transactional_id: str | None = None
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, RefusedBatch]]:
    """Append one batch to each log. Return the offset of the first record of each batch, and why the others were
    refused."""

    def request(broker: BrokerConnection, partitions: list[TopicPartition]) -> Any:
        topics: dict[str, list[Any]] = defaultdict(list)
        kind = ProduceRequest.TopicProduceData
        for tp in partitions:
            data = kind.PartitionProduceData(index=tp.partition, records=batches[tp].data)
            topics[tp.topic].append(data)
        return ProduceRequest(
            transactional_id=transactional_id,
            acks=_ALL_REPLICAS,
            timeout_ms=int(REQUEST_SECONDS * 1000),
            topic_data=[kind(name=name, partition_data=data) for name, data in topics.items()],
        )

    # One batch a request: brokers bound the size of a request, and a lane sends the next one meanwhile.
    question = Question[TopicPartition, int](
        request, _appended, at_once=1, newest=_NEWEST_PRODUCE, oldest=_FIRST_WITH_ZSTD
    )
    offsets, errors = router.ask_each(batches, question, Leaders(router))
    refused: dict[TopicPartition, RefusedBatch] = {}
    for tp, error in errors.items():
        kind = _KINDS.get(error.code(), "topic" if error.code() in REFUSES_TOPIC else "other")
        refused[tp] = RefusedBatch(kind, router.connection.error(error, f"appending to {tp}"))
    return offsets, refused


def _appended(response: Any, partitions: list[TopicPartition]) -> Answers[TopicPartition, int]:
    for topic in response.responses:
        for each in topic.partition_responses:
            tp = TopicPartition(topic.name, each.index)
            if each.error_code:
                yield tp, broker_error(each.error_code, each.error_message)
            else:
                yield tp, each.base_offset


def appended_records(
    router: Router, partitions: Collection[TopicPartition], producer: Producer
) -> dict[TopicPartition, int | None]:
    """Return how many records of a producer each log has, by the producer's last sequence there; None for a log whose
    broker knows of none."""
    try:
        known = describe_producers(router, partitions)
    except UnavailableError as error:
        raise ClusterError(
            f"{router.connection.address} does not tell what this restore has written: {error.unavailable.why}",
            "give our user Read on the topics; brokers older than Kafka 2.8 can't tell",
        ) from error
    appended: dict[TopicPartition, int | None] = dict.fromkeys(partitions)
    for tp, producers in known.items():
        for each in producers:
            if (each.producer_id, each.producer_epoch) == producer and each.last_sequence >= 0:
                appended[tp] = (each.last_sequence + 1) % SEQUENCES
    return appended


def delete_before(router: Router, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Make logs begin at `offsets`: what lies before is deleted. Return where each begins now; an error of any is
    raised."""
    kind = DeleteRecordsRequest.DeleteRecordsTopic

    def request(broker: BrokerConnection, partitions: list[TopicPartition]) -> Any:
        topics: dict[str, list[Any]] = defaultdict(list)
        for tp in partitions:
            asked = kind.DeleteRecordsPartition(partition_index=tp.partition, offset=offsets[tp])
            topics[tp.topic].append(asked)
        asked_topics = [kind(name=name, partitions=asked) for name, asked in topics.items()]
        return DeleteRecordsRequest(topics=asked_topics, timeout_ms=int(REQUEST_SECONDS * 1000))

    # To delete the same once more changes nothing: the request may be repeated.
    question = Question[TopicPartition, int](request, _deleted)
    starts, refused = router.ask_each(offsets, question, Leaders(router))
    for tp, error in refused.items():
        raise router.connection.error(error, f"deleting the records of {tp} before offset {offsets[tp]}")
    return starts


def _deleted(response: Any, partitions: list[TopicPartition]) -> Answers[TopicPartition, int]:
    for topic in response.topics:
        for each in topic.partitions:
            tp = TopicPartition(topic.name, each.partition_index)
            if each.error_code:
                yield tp, KafkaError(each.error_code)
            else:
                yield tp, each.low_watermark
