"""Read the committed progress of a producer."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException

from kbackup.kafka.client.retry import COORDINATOR_NOT_READY
from kbackup.kafka.groups.calls import Committed, GroupCalls
from kbackup.types import TopicPartition
from kbackup.util.attempts import attempts

_NOT_YET = {*COORDINATOR_NOT_READY, KafkaError.UNSTABLE_OFFSET_COMMIT}
OFFSETS_SECONDS = 60.0  # s, for progress to be read, or to be added to a transaction


_COORDINATOR = 30.0  # s, for one to become ready
_PAUSE = 0.3  # s, before it is asked again


def committed_progress(
    consumer: Consumer, group: str, partitions: Sequence[TopicPartition]
) -> list[Committed]:
    """Return the committed offsets of the progress group for `partitions`.

    Repeats the request while the coordinator is not ready, or still ends a transaction.
    """
    for _ in attempts(_COORDINATOR, _PAUSE):
        ((_, answer),) = GroupCalls(consumer, OFFSETS_SECONDS).committed([group], partitions, stable=True)
        if not isinstance(answer, KafkaError):
            return answer
        if answer.code() not in _NOT_YET:
            break
    raise KafkaException(answer)
