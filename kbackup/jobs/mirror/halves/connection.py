"""The connections of an apply half: its archive, its target, and the rounds that use both."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from kbackup.archive.reader import Archive
from kbackup.jobs.mirror.apply import Applier
from kbackup.jobs.mirror.apply.applier import Spark
from kbackup.jobs.mirror.flow import Flow
from kbackup.jobs.mirror.halves.round import Rounds
from kbackup.jobs.mirror.halves.timetable import Timetable
from kbackup.jobs.mirror.internal import InternalTopics
from kbackup.kafka.admin.cluster import Cluster
from kbackup.metrics.events import Listener
from kbackup.store.base import Store


@dataclass
class Connection:
    """An archive and a target that are connected; `stack` closes the clients of the target."""

    archive: Archive
    cluster: Cluster
    rounds: Rounds
    stack: ExitStack


def connect(
    flow: Flow, archive: Archive, state: Store, spark: Spark, listener: Listener, timetable: Timetable
) -> Connection:
    """Connect to the target of a flow. `state` is the store of the flow's state."""
    target = flow.client("target")
    with ExitStack() as stack:
        cluster = Cluster(target, "target")
        cluster.connect()
        internal = stack.enter_context(InternalTopics(flow, cluster))
        applier = stack.enter_context(Applier(flow, target, state, spark, listener))
        rounds = Rounds(flow, cluster, internal, applier, timetable)
        return Connection(archive, cluster, rounds, stack.pop_all())
