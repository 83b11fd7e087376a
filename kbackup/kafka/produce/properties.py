"""The properties of a producer of record blocks."""

from __future__ import annotations

from typing import Any

TUNING: dict[str, Any] = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 100,  # a flush does not wait for it
    "batch.size": 1 << 20,
    "batch.num.messages": 50_000,
    "queue.buffering.max.messages": 75_000,  # as `queue_kbytes`
    "message.max.bytes": 1_000_000_000,  # librdkafka's bound; the preflight checks the topic's own
    "compression.type": "lz4",
}


def queue_kbytes(batch_size: int, largest: int) -> int:
    """Return `queue.buffering.max.kbytes`: one and a half batches of `batch_size` bytes, but two records of `largest`.

    Of an idempotent producer one batch a partition is on its way at a time. While a second one is full, librdkafka's
    thread polls without a pause until the broker answers: a quarter of a restore's CPU (`scripts/bench`). A batch
    holds up to a third less of the bytes that the queue counts, because each record gets a head and headers.
    """
    return max(1, 3 * batch_size >> 11, largest >> 9)


TRANSACTION_SECONDS = 300.0  # s, for one to stay open
TRANSACTIONAL = {
    "transaction.timeout.ms": int(TRANSACTION_SECONDS * 1000),
    "message.timeout.ms": 300_000,
    # a producer that starts over from its bootstrap servers never finds its group's coordinator again
    "metadata.recovery.strategy": "none",
}
