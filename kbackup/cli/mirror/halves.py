"""Make the halves of a mirror from the command line and the configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kbackup.cli.common.frame import Frame
from kbackup.cli.common.session import archive_store_at, state_store
from kbackup.cli.follow import check_stale_after
from kbackup.cli.mirror.round_reporters import ApplyRoundReporter, TakeRoundReporter
from kbackup.jobs.backup.follow import Follower
from kbackup.jobs.common.stop import Stop
from kbackup.jobs.mirror.flow import Flow
from kbackup.jobs.mirror.halves.apply import ApplyHalf
from kbackup.jobs.mirror.halves.take import (
    Source,
    TakeHalf,
    mirror_selections,
    rhythm_of,
    sources_of,
)
from kbackup.jobs.mirror.properties import MirrorProperties
from kbackup.metrics.events import Silent
from kbackup.metrics.registry import counted
from kbackup.metrics.server import Health, JointHealth, Server

if TYPE_CHECKING:
    from kbackup.config.jobs import Follow
    from kbackup.spark.session import SparkSession


@dataclass
class Building:
    """Makes halves that share a Spark session and a server of health and metrics. `stack` closes the server.

    Take halves end at `stop`, apply halves at `last`. If both run, `last` comes later: the apply halves then apply the
    last restore points of the take halves."""

    frame: Frame
    properties: MirrorProperties
    spark: Callable[[], SparkSession]
    stop: Stop
    last: Stop
    stack: ExitStack
    health: JointHealth | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        follow = self.rhythm
        if follow.listen:
            check_stale_after(follow)
            self.health = JointHealth(follow.stale_after_seconds)
            server = self.stack.enter_context(Server(follow.listen, self.health))
            self.frame.reporter.note(f"metrics on port {server.port}")

    @property
    def rhythm(self) -> Follow:
        """The `[follow]` section with a mirror's own defaults."""
        unset = [path for path, origin in self.frame.loaded.origins.items() if origin.kind == "default"]
        return rhythm_of(self.frame.config.follow, unset)

    def halves(self, flows: Iterable[Flow], *, take: bool, apply: bool) -> dict[str, TakeHalf | ApplyHalf]:
        """Return the halves by name, in the order of `clusters`.

        A source's take half comes before the apply halves of its flows."""
        members = tuple(flows)
        sources = sources_of(members) if take else []
        halves: dict[str, TakeHalf | ApplyHalf] = {}
        for alias in self.properties.clusters:
            for source in sources:
                if source.alias == alias:
                    name = f"take {alias} into {source.archive}"
                    halves[name] = self._take(source, name)
            for flow in members:
                if apply and flow.source == alias:
                    name = f"apply {flow.name}"
                    halves[name] = self._apply(flow, name)
        return halves

    def _health_of(self, half: str) -> Health | None:
        return self.health.add_component(half) if self.health is not None else None

    def _take(self, source: Source, name: str) -> TakeHalf:
        config = self.frame.config
        heartbeats = tuple(flow for flow in self.properties.heartbeat_flows if flow.target == source.alias)
        follower = Follower(
            config.backup,
            self.rhythm,
            source.properties,
            archive_store_at(self.frame, source.archive),
            self.spark,
            Silent(),
            TakeRoundReporter(self.frame, self._health_of(name), name),
            self.stop,
            mirror_selections(config.backup, source.flows),
        )
        return TakeHalf(source, heartbeats, follower)

    def _apply(self, flow: Flow, name: str) -> ApplyHalf:
        flow.client("target")  # refuse now, not after the first restore point
        store = archive_store_at(self.frame, flow.archive_address())
        state = state_store(self.frame, store)
        watcher = ApplyRoundReporter(self.frame, self._health_of(name))
        finish = self.last is not self.stop
        with counted.of_archive(store.url):
            return ApplyHalf(flow, store, state, self.spark, Silent(), watcher, self.last, finish=finish)
