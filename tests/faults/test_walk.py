"""A short walk over real commands; `python -m scripts.soak.walk` goes as far as one likes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kbackup.store import S3Options, open_store
from scripts.dev.kafka import Broker
from scripts.soak.walk.cluster import Cluster
from scripts.soak.walk.steps import Commands, Walk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STEPS, _SEED = 18, 4
_KINDS = 9


def test_a_short_walk(broker: Broker, spark: SparkSession, tmp_path: Path) -> None:
    commands = Commands(broker.bootstrap, S3Options(), {}, tmp_path, lambda: spark)
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
