"""A producer whose only broker leaves itself out of metadata while it stops."""

from __future__ import annotations

import pytest

from kbackup.kafka import kernel, kernel_protocol
from kbackup.kafka.kernel_protocol import Progress
from kbackup.kafka.produce import BlockProducer
from kbackup.types import TopicPartition
from tests.support.mock_cluster import mock_cluster
from tests.support.plain_records import Plain, block_of

TP = TopicPartition("orders", 0)


@pytest.mark.parametrize("way", ["native", "python"])
def test_a_producer_without_brokers_finds_them_again(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernel.VARIABLE, way)
    kernel.selected_kernel.cache_clear()
    monkeypatch.setattr(kernel_protocol, "_SILENCE", 0.5)
    with mock_cluster() as cluster:
        cluster.create_topic("orders")
        properties = {"bootstrap.servers": cluster.bootstrap, "topic.metadata.refresh.interval.ms": "100"}
        producer = BlockProducer(properties, "id", "progress")
        producer.start([TP])
        producer.send(TP, block_of([Plain(b"k", b"v")] * 3))
        producer.flush()
        cluster.hide()
        assert producer._outlet.flush(1) == 0
        cluster.replace("orders", "id", "progress")
        producer.send(TP, block_of([Plain(b"k", b"v")] * 3, range(3, 6)))
        (runs,) = producer.flush().values()
        producer.commit({TP: Progress(6, "")})
        producer.close()
    kernel.selected_kernel.cache_clear()
    assert runs.next == 6
