"""From offsets of the source to offsets of the target, exactly: by the flow's offset map."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Protocol

from kbackup.archive.restores.remap import OffsetMap
from kbackup.jobs.mirror.flow import AppliedPosition
from kbackup.types import TopicPartition

Translate = Callable[[TopicPartition, int], int | None]
"""From a committed offset of a partition of the source to the target's offset. None or -1 where none is known."""


class Maps(Protocol):
    """A flow's offset map."""

    def partition(self, remote: TopicPartition, incarnation: int) -> OffsetMap | None:
        """Return the map of a remote partition for source offsets of one incarnation; None where none was applied."""
        ...


def exact_translation(
    remote: Mapping[str, str],
    incarnations: Mapping[str, int],
    positions: Mapping[TopicPartition, AppliedPosition],
    maps: Maps,
) -> Translate:
    """Return the translation by the offset map. `remote` and `incarnations` are by topic of the source.

    The answer is the first record at or after the committed offset; behind the last applied record the target's next
    offset, so that what is applied later is never skipped. There is no answer while a partition's position is in an
    older incarnation than the group's offset. Before the first applied record there is one only where the target's log
    begins with that record: others may have written what comes before, such as a MirrorMaker 2 that the flow replaced.
    """

    @functools.cache
    def runs(tp: TopicPartition) -> OffsetMap | None:
        target = TopicPartition(remote[tp.topic], tp.partition)
        incarnation = incarnations[tp.topic]
        position = positions.get(target)
        if position is None or position.incarnation != incarnation:
            return None
        return maps.partition(target, incarnation)

    def translate(tp: TopicPartition, upstream: int) -> int | None:
        known = runs(tp)
        if known is None or not len(known.source):
            return None
        mapped = known.map(upstream)
        return None if mapped.how == "log start" and mapped.offset > 0 else mapped.offset

    return translate
