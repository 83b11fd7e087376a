"""A handful of rounds of the seeded loop of mirrors; `python -m scripts.soak.kills --mirrors` runs any number."""

from __future__ import annotations

import secrets
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from kbackup.store import open_store
from scripts.dev.kafka import Broker
from scripts.dev.link import Link
from tests.conftest import Bucket
from tests.faults.mirror_loop import HALVES, SMALL, MirrorLoop
from tests.faults.process import Kbackup
from tests.faults.shop import open_shop, sell
from tests.support.exhaustive import sample
from tests.support.truth import assert_restored, read_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_handful_of_kills(broker: Broker, bucket: Bucket, spark: SparkSession, tmp_path: Path) -> None:
    shop = open_shop(broker, f"shop-{secrets.token_hex(4)}")
    sell(shop, 300)
    store = open_store(f"{bucket.url}/nightly", {"s3": bucket.options})
    loop = MirrorLoop(shop, store, bucket.env, tmp_path, spark, seed=20261122)
    for half in sample(HALVES, regular=2):
        loop.round(half)


@pytest.mark.soak
def test_a_mirror_goes_on_after_a_minute_without_source_store_or_target(bucket: Bucket, tmp_path: Path) -> None:
    """Each is away for a minute, while records come in. Both halves go on by themselves, in a few lines."""
    with (
        Link() as one,
        Link() as two,
        Link() as three,
        Broker(via=one.open) as source,
        Broker(via=three.open) as target,
    ):
        links = (one, two, three)
        source.create_topic("orders", 3)
        target.create_topic("A.orders", 3)
        addresses = (source.bootstrap, bucket.server.endpoint_url, target.bootstrap)
        ports = [link.open(int(address.rpartition(":")[2])) for link, address in zip(links, addresses, strict=True)]
        file = tmp_path / "mm2.properties"
        file.write_text(
            f"clusters = A, B\nA.bootstrap.servers = 127.0.0.1:{ports[0]}\nB.bootstrap.servers = 127.0.0.1:{ports[2]}\n"
            f"A->B.enabled = true\nA->B.topics = orders\nkbackup.archive = {bucket.url}/{{source}}\n{SMALL}"
        )
        env = {**bucket.env, "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{ports[1]}"}
        near, far = source.bootstrap_of("INTERNAL"), target.bootstrap_of("INTERNAL")
        producer, made = Producer({"bootstrap.servers": near}), 0

        def produce(seconds: int) -> None:
            nonlocal made
            for _ in range(seconds):
                for made in range(made + 1, made + 101):  # noqa: B020 (it goes on from there)
                    producer.produce("orders", str(made).encode(), partition=made % 3)
                assert producer.flush(30) == 0
                time.sleep(1)

        def wait_applied() -> None:
            end = time.monotonic() + 240
            while sum(map(len, read_topic(far, "A.orders").values())) < made:
                assert time.monotonic() < end, process.err
                time.sleep(1)

        with Kbackup(tmp_path / "run", ["mirror", str(file), "--interval=1s", "--quiet"], env=env) as process:
            for link in links:
                produce(10)
                wait_applied()
                with link.blackout():
                    produce(60)
                wait_applied()
            process.signal(signal.SIGTERM)
            ended = process.wait()
        assert ended.code == 0, ended.err
        assert len(ended.err.splitlines()) <= 10, ended.err
        assert_restored(read_topic(near, "orders"), read_topic(far, "A.orders"))
