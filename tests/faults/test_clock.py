"""Clocks that step: an archive keeps its order by its numbers. (Leases: tests/unit/archive/test_lease.py.)"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from kbackup.jobs.verify import verify
from kbackup.store.file import FileStore
from tests.faults.conftest import BackUp, Counting, outwait_lease
from tests.faults.shop import Shop, check_archive, sell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def stepped(by: timedelta) -> Iterator[None]:
    """The wall clock of this process, as kbackup's archive reads it, moved."""

    class Stepped(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Stepped:
            moved = datetime.now(tz) + by
            return cls.fromisoformat(moved.isoformat())

    with mock.patch("kbackup.util.times.datetime", Stepped), mock.patch("kbackup.archive.lease.datetime", Stepped):
        yield


@pytest.mark.parametrize("hours", [-3, 3])
def test_a_backup_after_the_clock_stepped(
    hours: int, archive: Path, shop: Shop, back_up: BackUp, spark: SparkSession
) -> None:
    store = FileStore(archive)
    with stepped(timedelta(hours=hours)):
        report, _ = back_up(store)
    assert (report.restore_point, report.parent) == (2, 1)
    sell(shop, 30)
    outwait_lease(store)
    back_up(store)
    assert [m.number for m in check_archive(store, shop).restore_points] == [1, 2, 3]
    assert not verify(store, "all", False, lambda: spark, Counting()).findings
