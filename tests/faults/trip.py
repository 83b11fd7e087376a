"""A restore of the shop's archive into topics of its own, resumed and compared."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.reader import open_archive
from kbackup.archive.restores import offset_map
from kbackup.archive.restores.plan import write_plan
from kbackup.config.models import Restore
from kbackup.kafka.control.cluster import Cluster
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from scripts.dev.kafka import Broker
from tests.faults.conftest import Counting
from tests.faults.dying import Wish
from tests.faults.mortal import die
from tests.faults.process import run
from tests.faults.shop import Shop
from tests.support.restores import make_plan, run_restore
from tests.support.truth import in_archive, in_cluster, positions, without_offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Trip:
    """A restore of the shop's archive into topics and a group with a prefix of their own."""

    def __init__(self, shop: Shop, store: Store, broker: Broker | None = None) -> None:
        self.shop, self.store, self.broker = shop, store, broker or shop.broker
        self.id = f"trip-{secrets.token_hex(4)}"

    @property
    def arguments(self) -> list[str]:
        return [
            "restore",
            "--json",
            self.store.url,
            f"--bootstrap-server={self.broker.bootstrap}",
            f"--map-regex=^={self.id}-",
            f"--map-group={self.shop.group}={self.id}-group",
            f"--restore-id={self.id}",
            "--set=restore.transaction_bytes=20000",
            "--set=spark.master=local[2]",
            *self.shop.schema_flags,
        ]

    @property
    def options(self) -> Restore:
        return Restore(
            map_regex=(f"^={self.id}-",),
            map_group={self.shop.group: f"{self.id}-group"},
            restore_id=self.id,
            transaction_bytes=20_000,
        )

    def begin(self, groups: int) -> None:
        """Write the plan as that of a large restore: progress in several groups, a unit for each partition, and the
        segments in a table."""
        cluster_id, _ = Cluster(self.broker.client(), "target").connect()
        plan = make_plan(self.options, self.store, cluster_id)
        units = tuple((part,) for unit in plan.units for part in unit)
        large = msgspec.structs.replace(plan, units=units, progress_groups=groups)
        write_plan(self.store, large, inline=0)

    def progress(self, groups: int) -> set[str]:
        """Return which of so many groups have progress."""
        names = [layout.progress_group(self.id, number) for number in range(groups)]
        committed, unread = Cluster(self.broker.client(), "target").groups.committed(names)
        assert unread == {}
        return {name for name in names if committed.get(name)}

    def die(self, wish: Wish, folder: Path, spark: SparkSession, state: Store | None = None) -> None:
        """Until the moment of `wish`: the command by SIGKILL where that lies in a transaction, else a job of this
        process."""
        if wish.event == "transaction":
            dead = run(folder, self.arguments, wish)
            assert dead.code == -9, dead.err
            return
        target = self.broker.client()
        die(
            self.store if state is None else state,
            wish,
            folder,
            lambda mortal: run_restore(
                self.options, target, mortal if state is None else self.store, mortal, lambda: spark, Counting()
            ),
        )

    def resume(self, spark: SparkSession) -> None:
        target = self.broker.client()
        report = run_restore(self.options, target, self.store, self.store, lambda: spark, Counting())
        assert report.status == "restored"

    def check(self) -> None:
        """Records, offset map and groups, each against the archive and the target itself."""
        store = self.store
        archived = {
            self._target(tp): [
                r._replace(value=self.shop.mapped(r.value)) if tp.topic == self.shop.orders else r for r in rows
            ]
            for tp, rows in in_archive(store).items()
        }
        restored = in_cluster(self.broker.bootstrap, [f"{self.id}-{t}" for t in self.shop.topics])
        assert without_offsets(restored) == without_offsets(archived)
        key = layout.restore_key(self.id, layout.OFFSETS)
        went = _expanded(offset_map.decode(store.get(key), key))
        for tp, rows in archived.items():
            wanted = dict(zip([r.offset for r in rows], [r.offset for r in restored[tp]], strict=True))
            assert went.get(tp, {}) == wanted, f"the offset map of {tp}"
        archive = open_archive(store)  # the group has moved on since
        groups = archive.groups(archive.restore_point("latest")).groups
        stood = {TopicPartition(o.topic, o.partition): o.offset for g in groups for o in g.offsets}
        assert stood.keys() == self.shop.committed.keys()
        stands = positions(self.broker.bootstrap, f"{self.id}-group")
        for tp, offset in stood.items():
            source = next(r.offset for r in archived[self._target(tp)] if r.offset >= offset)
            assert stands[self._target(tp)].offset == went[self._target(tp)][source]

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
