"""Translation as MirrorMaker 2's `OffsetSyncStore` (Kafka 4.3.1) answers, for `kbackup.checkpoints = mm2` and for
comparing.

The store keeps 64 offset syncs of a partition, dense near the newest one and ever sparser before it. It answers with
the newest kept sync at or before an offset, plus 1 where they differ: records behind the sync may be missing.
"""

from __future__ import annotations

from kbackup.kafka.mirror_records import OffsetSync
from kbackup.types import TopicPartition

SYNCS = 64
"""Offset syncs that are kept of a partition."""

BEFORE_FIRST = -1
"""The answer for an offset before every kept sync."""


class OffsetSyncStore:
    """The offset syncs of a flow, by source partition.

    `forgets`: only the newest sync counts of those that are added before `forgets` is set to False. So Java's store
    reads the topic at its start where it could not read the checkpoints topic.
    """

    def __init__(self, *, forgets: bool = False) -> None:
        self.forgets = forgets
        self._kept: dict[TopicPartition, list[OffsetSync]] = {}

    def clear(self) -> None:
        """Forget every sync."""
        self._kept.clear()

    def add(self, sync: OffsetSync) -> None:
        """Take the next offset sync of the topic."""
        kept = self._kept.get(sync.tp)
        if kept is None or self.forgets or kept[0].upstream > sync.upstream:
            self._kept[sync.tp] = [sync] * SYNCS
        else:
            _update(kept, sync)

    def translate(self, tp: TopicPartition, upstream: int) -> int | None:
        """Return the target's offset for an offset of the source's partition; None where no sync is known."""
        kept = self._kept.get(tp)
        if kept is None:
            return None
        sync = next((s for s in kept if s.upstream <= upstream), None)
        if sync is None:
            return BEFORE_FIRST
        return sync.offset if sync.upstream == upstream else sync.offset + 1


def _update(kept: list[OffsetSync], sync: OffsetSync) -> None:
    """Put `sync` in front. Each slot's sync moves to a later slot as long as it is near enough to the slot before
    (`_is_near`) and far enough from its neighbours (`_is_apart`); syncs are told apart by identity, as in Java."""
    before = list(kept)
    replacement, at = sync, 0
    kept[0] = sync
    for slot in range(1, SYNCS):
        while True:
            old = before[at]
            apart = _is_apart(kept[slot - 1], old, slot - 1)
            usable = (
                apart
                and _is_near(kept[slot - 1], old, slot - 1, slot)
                and (slot + 1 >= SYNCS or _is_apart(old, kept[slot + 1], slot))
            )
            if usable:
                replacement = old
            skipped = not apart or (at + 1 < SYNCS and old is before[at + 1])
            at += usable or skipped
            if not skipped or at >= slot:
                break
        if _is_near(kept[slot - 1], kept[slot], slot - 1, slot):
            return
        kept[slot] = replacement


def _is_near(newer: OffsetSync, older: OffsetSync, i: int, j: int) -> bool:
    """Java's invariant B: a sync in slot `j` is at most 2^j - 2^i before the one in slot `i`."""
    bound = _long(older.upstream + (1 << j) - (1 << i))
    return newer is older or bound < 0 or newer.upstream <= bound


def _is_apart(newer: OffsetSync, older: OffsetSync, i: int) -> bool:
    """Java's invariant C: the sync in slot `i` is at least 2^(i-2) behind the next one."""
    bound = _long(older.upstream + (1 << max(i - 2, 0)))
    return newer is older or 0 <= bound <= newer.upstream


def _long(number: int) -> int:
    """Wrap a number as Java's long does."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
