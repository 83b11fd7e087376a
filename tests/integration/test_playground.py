"""The sample producer of the playground, against a real broker."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import yaml
from confluent_kafka import Consumer, TopicPartition

from scripts.dev.kafka import Broker

COMPOSE = Path(__file__).parents[2] / "infra" / "compose"


def test_sample_writes_orders_and_commits_a_group(broker: Broker, topic_name: str) -> None:
    service = yaml.safe_load((COMPOSE / "compose.yaml").read_text("utf-8"))["services"]["sample"]
    mounted = service["volumes"][0].split(":")
    _, _, _, path, _, *names = service["entrypoint"]
    assert (path, len(names)) == (mounted[1], 2)
    broker.create_topic(topic_name, partitions=1)
    partition = TopicPartition(topic_name, 0)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": f"group-{topic_name}"})
    argv = [sys.executable, str(COMPOSE / mounted[0]), broker.bootstrap, topic_name, f"group-{topic_name}"]
    sample = subprocess.Popen(argv)
    try:
        end = time.monotonic() + 60
        while (committed := consumer.committed([partition], timeout=10)[0].offset) < 3:
            assert sample.poll() is None
            assert time.monotonic() < end, committed
        consumer.assign([TopicPartition(topic_name, 0, 0)])
        (record,) = consumer.consume(1, timeout=30)
        assert json.loads(record.value() or b"")["number"] == 0
        assert record.key() == b"customer-0"
    finally:
        sample.terminate()
        sample.wait()
        consumer.close()
