"""A short round of the soak program of whole transactions."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.dev.kafka import Broker
from scripts.soak.transactions.__main__ import Soak, parsed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_no_restore_point_has_a_transaction_in_part(broker: Broker, spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / f"whole-{secrets.token_hex(3)}"
    folder.mkdir()
    options = parsed(["--points=4", "--restores=1", "--producers=4", "--rate=50"])
    verdicts = Soak(broker, spark, folder, options).run()
    assert len(verdicts) >= 3
    assert [each for each in verdicts if each.wrong] == []
    assert all(each.whole for each in verdicts[1:])  # internal topics may be new during the first
