"""A handful of rounds of the seeded loop of mirrors; `python -m scripts.soak.kills --mirrors` runs any number."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from kbackup.store import open_store
from scripts.dev.kafka import Broker
from tests.conftest import Bucket
from tests.faults.mirror_loop import MirrorLoop
from tests.faults.shop import open_shop, sell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_handful_of_kills(broker: Broker, bucket: Bucket, spark: SparkSession, tmp_path: Path) -> None:
    shop = open_shop(broker, f"shop-{secrets.token_hex(4)}")
    sell(shop, 300)
    store = open_store(f"{bucket.url}/nightly", {"s3": bucket.options})
    loop = MirrorLoop(shop, store, bucket.env, tmp_path, spark, seed=20261122)
    for half in ("apply", "take", "worker", "several"):
        loop.round(half)
