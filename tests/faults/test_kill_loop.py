"""Short runs of the seeded loops; those in scripts.soak go as far as one likes."""

from __future__ import annotations

import secrets
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kbackup.store import open_store
from scripts.dev.kafka import Broker
from scripts.soak.walk.cluster import Cluster
from scripts.soak.walk.steps import Commands, Walk
from tests.conftest import Bucket
from tests.faults.kill_loop import KillLoop
from tests.faults.shop import open_shop, sell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_handful_of_kills(broker: Broker, bucket: Bucket, spark: SparkSession, tmp_path: Path) -> None:
    shop = open_shop(broker, f"shop-{secrets.token_hex(4)}")
    sell(shop, 600)
    store = open_store(f"{bucket.url}/nightly", {"s3": bucket.options})
    loop = KillLoop(shop, store, bucket.env, tmp_path, lambda: spark, seed=20261121)
    loop.begin()
    killed = [loop.round(job) for job in ("backup", "restore")]
    runs = [code for kill in killed for code in kill.ended]
    assert any(runs), f"neither backup nor restore was killed: {killed}"


_STEPS, _SEED = 18, 4
_KINDS = 9


def test_a_short_walk_over_all_commands_ends_as_the_oracle_says(
    broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    commands = Commands(broker.bootstrap, {}, {}, tmp_path, spark)
    walk = Walk(Cluster(broker.bootstrap), commands, str(tmp_path), open_store, _SEED)
    try:
        walk.begin()
        lines = [walk.step() for _ in range(_STEPS)]
        walk.end()
    finally:
        walk.clean()
    kinds = {each.partition(":")[0] for each in lines}
    assert len(kinds) >= _KINDS, f"choose a seed that does more: {lines}"


def test_the_oracle_imports_nothing_of_kbackup() -> None:
    code = "import sys, scripts.soak.walk.oracle as o; print([m for m in sys.modules if m.startswith('kbackup')])"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
