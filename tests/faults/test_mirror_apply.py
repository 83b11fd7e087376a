"""The apply half of a mirror: every archived record is in the target once, whatever came in between."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kbackup.jobs.mirror.apply import applier as applier_module
from kbackup.store.file import FileStore
from tests.faults.conftest import BackUp
from tests.faults.mirrored import Mirror
from tests.faults.shop import Shop, sell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def mirror(shop: Shop, archive: Path) -> Mirror:
    return Mirror(shop, FileStore(archive))


def test_round_after_round(mirror: Mirror, shop: Shop, back_up: BackUp) -> None:
    """In one process, in a new one, and with nothing to do."""
    with mirror.applier() as applier:
        mirror.check(mirror.round(applier))
        sell(shop, 60)
        back_up(mirror.store)
        second = mirror.round(applier)
        assert second.records > 60
        mirror.check(second)
        quiet = mirror.round(applier)
        assert (quiet.records, len(quiet.runs)) == (0, 0)
        mirror.check(quiet)
    sell(shop, 40)
    back_up(mirror.store)
    mirror.check(mirror.apply())


def test_large_rounds_go_through_spark(
    mirror: Mirror, shop: Shop, back_up: BackUp, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mirror.applier(spark) as applier:
        monkeypatch.setattr(applier_module, "SMALL_BYTES", 0)
        mirror.check(mirror.round(applier))
        sell(shop, 60)
        back_up(mirror.store)
        mirror.check(mirror.round(applier))
        monkeypatch.undo()
        sell(shop, 60)
        back_up(mirror.store)
        mirror.check(mirror.round(applier))
