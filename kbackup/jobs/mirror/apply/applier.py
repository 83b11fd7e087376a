"""The apply half of a flow: one round a restore point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from kbackup.archive.flow_map import FlowMap
from kbackup.archive.models import Manifest
from kbackup.archive.reader import Archive
from kbackup.jobs.listen import Listener
from kbackup.jobs.mirror.apply.applied import Applied
from kbackup.jobs.mirror.flow import Flow, RemoteTopic
from kbackup.kafka.client import Properties
from kbackup.store.base import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Spark = Callable[[], "SparkSession"]


@dataclass
class Applier:
    """Applies round after round. It keeps producers, applied positions and the offset map between rounds.

    `state` is where the flow keeps its state, as a rule the archive's store. `spark` is called for large rounds only.
    A context manager: leaving it closes the producers.
    """

    flow: Flow
    target: Properties
    state: Store
    spark: Spark
    listener: Listener

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def map(self) -> FlowMap:
        """The offset map of the flow, with the runs of every round so far."""
        raise NotImplementedError

    def apply(self, archive: Archive, point: Manifest, topics: Sequence[RemoteTopic]) -> Applied:
        """Commit every record of `topics` up to `point` that the target does not have. The remote topics exist.

        After an error that may be over in a while (`jobs.follow.RETRIED`), call it again. `FencedError`: another
        process applies this flow now."""
        raise NotImplementedError

    def close(self) -> None:
        """Give up what is not committed."""


def apply_round(
    flow: Flow,
    archive: Archive,
    point: Manifest,
    topics: Sequence[RemoteTopic],
    target: Properties,
    state: Store,
    spark: Spark,
    listener: Listener,
) -> Applied:
    """One round of an `Applier` of its own: for `--once`."""
    with Applier(flow, target, state, spark, listener) as applier:
        return applier.apply(archive, point, topics)
