"""Model the log of a topic with one partition: the history that was archived, and the one that took its place."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tests.unit.formats.reference import Record

Way = Literal["plain", "committed", "aborted"]

WAYS: tuple[Way, ...] = ("plain", "committed", "aborted")
KINDS: dict[str, tuple[Way, ...]] = {
    "plain": ("plain",),
    "ledger": WAYS,
    "committed": ("committed",),
    "aborted": ("aborted",),
    "compacted": ("plain",),
    "compacted-ledger": WAYS,
}
"""The ways of the first history; those of a second one are all."""
_FEW = 4
"""Records of a compacted topic that a backup remembers."""


class Entry(NamedTuple):
    """A record, visible or aborted, or a marker. `epoch` tells leader epochs apart."""

    content: tuple[bytes, bytes | None] | None
    visible: bool
    epoch: int


class Step(NamedTuple):
    """Records that come into a log together."""

    way: Way
    records: tuple[tuple[bytes, bytes | None], ...]

    def entries(self, epoch: int) -> list[Entry]:
        found = [Entry(content, self.way != "aborted", epoch) for content in self.records]
        return found if self.way == "plain" else [*found, Entry(None, False, epoch)]


@dataclass
class Log:
    """A topic of one partition. `first` is its archived history, `second` the one that took its place."""

    name: str
    kind: str
    first: list[Entry] = field(default_factory=list)
    second: list[Entry] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    """Steps of the first history; the second one repeats the first of them."""

    @property
    def is_compacted(self) -> bool:
        return self.kind.startswith("compacted")

    def new_step(self, rng: random.Random, ways: Sequence[Way] = ()) -> Step:
        values = [b"a", b"b", b"c", b"d", b"e", None if self.is_compacted else b"f"]
        records = tuple(
            (rng.choice((b"k", b"l", b"m")), rng.choice(values)) for _ in range(rng.randint(1, 4))
        )
        return Step(rng.choice(ways or KINDS[self.kind]), records)

    @property
    def differs(self) -> bool:
        """Return whether a consumer of the log finds other records where the archive ends, or an earlier end."""
        end = len(self.first)
        return len(self.second) < end or _visible(self.first) != _visible(self.second[:end])

    def is_excepted(self, archived: Sequence[Record], live: Sequence[Record], hidden: set[int]) -> bool:
        """Return whether the documentation says that a cut can't be noticed. `hidden`: offsets of aborted records that
        compaction has left."""
        if len(self.second) < len(self.first):
            return False
        few = {r.offset: r for r in archived[-_FEW if self.is_compacted else -1 :]}
        start = min(few, default=0)
        seen = {r.offset: r for r in live if start <= r.offset < len(self.first)}
        if any(few.get(at) != r or self.first[at].epoch != self.second[at].epoch for at, r in seen.items()):
            return False
        last = max(few, default=-1)
        if last in seen:
            return True
        if not self.is_compacted:
            return False
        taken = self.second[last].content is not None and last not in hidden
        epochs = {entry.epoch for entry in self.second}
        return last < 0 or (taken and self.first[last].epoch in epochs)


def _visible(entries: Sequence[Entry]) -> dict[int, Entry]:
    return {at: entry for at, entry in enumerate(entries) if entry.visible}


def holds(log: Log, model: Sequence[Entry], records: Sequence[Record]) -> bool:
    """Return whether records are those of the model; compaction may have taken some."""
    expected = {at: entry.content for at, entry in _visible(model).items()}
    found = {record.offset: (record.key, record.value) for record in records}
    return found.items() <= expected.items() if log.is_compacted else found == expected
