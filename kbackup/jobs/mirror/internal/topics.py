"""The internal topics of a flow, made as MirrorMaker 2 makes them: one partition, compacted."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from kbackup.jobs.mirror.flow import Flow
from kbackup.kafka.admin import Cluster


class InternalTopics:
    """A flow's internal topics, and the producers that write them. One object serves all rounds of a process:

        with InternalTopics(flow, cluster) as target: ...

    Entering creates missing topics. `warnings` says what differs from the properties file.
    """

    def __init__(self, flow: Flow, cluster: Cluster) -> None:
        """`cluster` is the target's."""
        self.flow, self.cluster = flow, cluster
        self.warnings: list[str] = []

    def __enter__(self) -> Self:
        raise NotImplementedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the producers; idempotent."""
        raise NotImplementedError
