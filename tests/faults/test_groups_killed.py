"""A restore that dies while it sets groups: what they had before its first try is what undo gives back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kbackup.archive.query.selection import Selection
from kbackup.jobs.groups.job import Captures, undo
from kbackup.kafka.admin.cluster import Cluster
from kbackup.store.file import FileStore
from tests.faults.dying import Wish
from tests.faults.shop import Shop
from tests.faults.trip import Trip
from tests.support.truth import Position, commit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    "wish",
    [
        Wish("kill job", "after", "write restores/*/groups-before-1.json"),
        Wish("kill job", "before", "write restores/*/report.json"),
    ],
    ids=lambda wish: wish.name,
)
def test_undo_after_a_restore_that_was_killed_while_it_set_groups(
    wish: Wish, shop: Shop, archive: Path, tmp_path: Path, spark: SparkSession
) -> None:
    trip = Trip(shop, FileStore(archive))
    cluster, group = Cluster(shop.broker.client(), "target"), f"{trip.id}-group"
    own = next(iter(shop.committed))
    commit(shop.broker.bootstrap, group, {own: Position(1)})
    before, _ = cluster.groups.committed([group])
    assert [(c.tp, c.offset) for c in before[group]] == [(own, 1)]
    trip.die(wish, tmp_path / "dead", spark)
    trip.resume(spark)
    trip.check()
    assert Captures(trip.store, trip.id).numbers() == [1, 2]
    report = undo(cluster, trip.store, trip.id, None, Selection())
    assert [(g.group, g.status) for g in report.groups] == [(group, "put back")]
    assert cluster.groups.committed([group])[0] == before
