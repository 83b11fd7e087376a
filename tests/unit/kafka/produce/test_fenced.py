"""A producer that is fenced: by another one, or by the coordinator, which aborted its long transaction."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from kbackup.errors import ClusterError, FencedError
from kbackup.kafka import produce
from kbackup.kafka.kernel_protocol import Progress
from kbackup.kafka.produce import BlockProducer
from kbackup.types import TopicPartition


class Fenced:
    """An outlet whose transaction is refused at its end."""

    def __init__(self, code: int) -> None:
        self.code = code

    def begin(self) -> None: ...

    def send_progress(self, *_: object) -> None: ...

    def commit(self, timeout: float) -> None:
        raise KafkaException(KafkaError(self.code))


@pytest.mark.parametrize(
    "code", [KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH]
)
@pytest.mark.parametrize(("took", "fenced"), [(299, True), (301, False)])
def test_a_transaction_that_ran_out_is_not_another_producers(
    code: int, took: int, fenced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([1000.0, 1000.0 + took])
    outlet: Any = Fenced(code)
    monkeypatch.setattr(produce, "in_time", lambda call, _: call() is None)
    monkeypatch.setattr(produce, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    servers, fencing = {"bootstrap.servers": "nowhere:1"}, ("another one", "wait")
    producer = BlockProducer(servers, "id", "group", fenced=fencing, outlet=lambda *_: outlet)
    with pytest.raises(ClusterError) as raised:
        producer.commit_alone({TopicPartition("t", 0): Progress(5, "note")})
    assert isinstance(raised.value, FencedError) is fenced
    expected = "another one" if fenced else "open for 301 s, longer than transaction.timeout.ms (300 s)"
    assert expected in raised.value.message
