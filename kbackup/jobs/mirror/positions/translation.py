"""From offsets of the source to offsets of the target, exactly: by the flow's offset map."""

from __future__ import annotations

from typing import Protocol

from kbackup.archive.remap import OffsetMap
from kbackup.types import TopicPartition


class Maps(Protocol):
    """A flow's offset map."""

    def partition(self, remote: TopicPartition, incarnation: int) -> OffsetMap:
        """Return the runs of a remote partition that come from one incarnation of its source."""
        ...
