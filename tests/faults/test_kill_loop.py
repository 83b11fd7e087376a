"""A handful of rounds of the seeded kill loop; `python -m scripts.soak.kills` runs as many as one likes."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from kbackup.store import open_store
from scripts.dev.kafka import Broker
from tests.conftest import Bucket
from tests.faults.kill_loop import KillLoop
from tests.faults.shop import open_shop, sell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_handful_of_kills(broker: Broker, bucket: Bucket, spark: SparkSession, tmp_path: Path) -> None:
    shop = open_shop(broker, f"shop-{secrets.token_hex(4)}")
    sell(shop, 600)
    store = open_store(f"{bucket.url}/nightly", bucket.options)
    loop = KillLoop(shop, store, bucket.env, tmp_path, lambda: spark, seed=20261121)
    loop.begin()
    killed = [loop.round(job) for job in ("backup", "restore", "follow")]
    runs = [code for kill in killed if kill.job != "follow" for code in kill.ended]
    assert any(runs), f"neither backup nor restore was killed: {killed}"
