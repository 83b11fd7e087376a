"""A restore cut off half-way and resumed with its id: nothing is lost and nothing is there twice."""

from __future__ import annotations

import secrets
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from kbackup.archive import layout, offset_map
from kbackup.archive.reader import open_archive
from kbackup.config.models import Restore
from kbackup.errors import RefusedError
from kbackup.jobs.restore import restore
from kbackup.store.file import FileStore
from kbackup.types import TopicPartition
from tests.faults.conftest import Counting
from tests.faults.dying import When, Wish
from tests.faults.process import Kbackup, run
from tests.faults.truth import Shop, committed, in_archive, in_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Trip:
    """A restore of the shop's archive into topics and a group with a prefix of their own."""

    def __init__(self, shop: Shop, archive: Path) -> None:
        self.shop, self.archive = shop, archive
        self.id = f"trip-{secrets.token_hex(4)}"

    @property
    def arguments(self) -> list[str]:
        return [
            "restore",
            "--json",
            str(self.archive),
            f"--bootstrap-server={self.shop.broker.bootstrap}",
            f"--map-regex=^={self.id}-",
            f"--map-group={self.shop.group}={self.id}-group",
            f"--restore-id={self.id}",
            "--set=restore.transaction_bytes=20000",
            "--set=spark.master=local[2]",
        ]

    @property
    def options(self) -> Restore:
        return Restore(
            map_regex=(f"^={self.id}-",),
            map_group={self.shop.group: f"{self.id}-group"},
            restore_id=self.id,
            transaction_bytes=20_000,
        )

    def resume(self, spark: SparkSession) -> None:
        store = FileStore(self.archive)
        report = restore(self.options, self.shop.broker.client(), store, store, lambda: spark, Counting())
        assert report.status == "restored"

    def check(self) -> None:
        """Records, offset map and groups, each against the archive and the target itself."""
        store = FileStore(self.archive)
        held = {self._target(tp): rows for tp, rows in in_archive(store).items()}
        found = in_cluster(self.shop.broker, [f"{self.id}-{t}" for t in self.shop.topics])
        assert {tp: [r.record for r in rows] for tp, rows in found.items()} == {
            tp: [r.record for r in rows] for tp, rows in held.items()
        }
        key = layout.restore_key(self.id, layout.OFFSETS)
        went = _expanded(offset_map.decode(store.get(key), key))
        for tp, rows in held.items():
            wanted = dict(zip([r.offset for r in rows], [r.offset for r in found[tp]], strict=True))
            assert went.get(tp, {}) == wanted, f"the offset map of {tp}"
        archive = open_archive(store)  # the group has moved on since
        groups = archive.groups(archive.restore_point("latest")).groups
        stood = {TopicPartition(o.topic, o.partition): o.offset for g in groups for o in g.offsets}
        assert stood.keys() == self.shop.committed.keys()
        stands = committed(self.shop.broker, f"{self.id}-group", list(map(self._target, stood)))
        for tp, offset in stood.items():
            source = next(r.offset for r in held[self._target(tp)] if r.offset >= offset)
            assert stands[self._target(tp)] == went[self._target(tp)][source]

    def _target(self, tp: TopicPartition) -> TopicPartition:
        return TopicPartition(f"{self.id}-{tp.topic}", tp.partition)


def _expanded(table: pa.Table) -> dict[TopicPartition, dict[int, int]]:
    went: dict[TopicPartition, dict[int, int]] = {}
    for run_ in table.to_pylist():
        own = went.setdefault(TopicPartition(run_["topic"], run_["partition"]), {})
        for i in range(run_["count"]):
            assert run_["source"] + i not in own, "a record that is in the map twice"
            own[run_["source"] + i] = run_["target"] + i
    return went


@pytest.fixture
def trip(shop: Shop, archive: Path) -> Trip:
    return Trip(shop, archive)


@pytest.mark.parametrize(
    "wish",
    [
        Wish("kill job", "after", "write restores/*/plan.json"),
        Wish("kill job", "after", "phase create topics"),
        Wish("kill job", "before", "transaction"),
        Wish("kill job", "after", "transaction"),
        Wish("kill job", "before", "transaction", 3),
        Wish("kill job", "before", "write restores/*/offsets.parquet"),
        Wish("kill job", "before", "write restores/*/report.json"),
        Wish("kill job", "after", "write restores/*/report.json"),
    ],
    ids=lambda wish: wish.name,
)
def test_killed_and_resumed(wish: Wish, trip: Trip, tmp_path: Path, spark: SparkSession) -> None:
    dead = run(tmp_path / "dead", trip.arguments, wish)
    assert dead.code == -9, dead.err
    trip.resume(spark)
    trip.check()
    trip.resume(spark)  # what is finished is told again, not done again
    trip.check()


def test_killed_twice_and_resumed(trip: Trip, tmp_path: Path) -> None:
    """All by the command line; the map is put together from three attempts."""
    for number, nth in enumerate((2, 1)):
        dead = run(tmp_path / f"dead{number}", trip.arguments, Wish("kill job", "after", "transaction", nth))
        assert dead.code == -9, dead.err
    ended = run(tmp_path / "last", trip.arguments)
    assert ended.code == 0, ended.err
    assert ended.document["status"] == "restored"
    trip.check()


@pytest.mark.parametrize("when", ["before", "after"])
def test_spark_tries_a_unit_again_whose_worker_died(when: When, trip: Trip, tmp_path: Path) -> None:
    wish = Wish("kill worker", when, "transaction", 2)
    ended = run(tmp_path / "run", trip.arguments, wish)
    assert ended.code == 0, ended.err
    assert (tmp_path / "run" / "moments").stat().st_size >= 2, "nothing was killed"
    trip.check()


def test_two_of_one_id_at_once(trip: Trip, tmp_path: Path, spark: SparkSession) -> None:
    """The one that came first sleeps in a transaction; the other finishes; what the first had open is gone."""
    with Kbackup(tmp_path / "first", trip.arguments, Wish("pause", "before", "transaction", 2)) as first:
        first.wait_paused()
        trip.resume(spark)
        trip.check()
        first.signal(signal.SIGCONT)
        ended = first.wait()
    assert ended.code == 1, ended.err
    assert "another restore with the same id has taken over" in ended.err
    trip.check()


def test_resumed_from_another_archive(
    trip: Trip, shop: Shop, tmp_path: Path, spark: SparkSession, books: tuple[Shop, Path]
) -> None:
    """The state of a restore lies apart from the archive; the archive is another one by now."""
    from kbackup.jobs.backup import backup
    from tests.faults.conftest import options

    state = FileStore(tmp_path / "state")
    arguments = [*trip.arguments, f"--state={tmp_path / 'state'}"]
    dead = run(tmp_path / "dead", arguments, Wish("kill job", "after", "write restores/*/plan.json"))
    assert dead.code == -9, dead.err
    other = FileStore(tmp_path / "other")
    backup(options(shop), shop.broker.client(), other, lambda: spark, Counting())
    with pytest.raises(RefusedError, match="was begun from another archive"):
        restore(trip.options, shop.broker.client(), other, state, lambda: spark, Counting())
