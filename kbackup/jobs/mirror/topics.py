"""The topics of a flow: selected by its filters, named by its policy, without cycles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kbackup.archive.models import Manifest, Metadata
from kbackup.jobs.mirror.flow import Flow, RemoteTopic


@dataclass(frozen=True, slots=True)
class SkippedTopic:
    """A topic of the source that the flow does not mirror, and why."""

    topic: str
    reason: Literal["not selected", "excluded", "internal", "cycle", "deleted"]


@dataclass(frozen=True)
class TopicPlan:
    """The topics of a flow as of one restore point, in the order of their names."""

    topics: tuple[RemoteTopic, ...]
    skipped: tuple[SkippedTopic, ...]


def plan_topics(flow: Flow, manifest: Manifest, metadata: Metadata | None) -> TopicPlan:
    """Return the remote topics of a restore point. `metadata` is that of the same restore point, for the configs."""
    raise NotImplementedError
