"""The properties of a producer of record blocks."""

from __future__ import annotations

from typing import Any

TUNING: dict[str, Any] = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 5,
    "batch.size": 1 << 20,
    "batch.num.messages": 100_000,
    # what is queued is waited for at each commit: a tenth of a second of it is enough to never run dry between
    "queue.buffering.max.messages": 100_000,  # 300 bytes each beside the record
    "queue.buffering.max.kbytes": 32 << 10,
    "message.max.bytes": 1_000_000_000,  # librdkafka's bound; the preflight checks the topic's own
    "compression.type": "lz4",
}


TRANSACTION_SECONDS = 300.0  # s, for one to stay open
TRANSACTIONAL = {
    "transaction.timeout.ms": int(TRANSACTION_SECONDS * 1000),
    "message.timeout.ms": 300_000,
    # a producer that starts over from its bootstrap servers never finds its group's coordinator again
    "metadata.recovery.strategy": "none",
}
