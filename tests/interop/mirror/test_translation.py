"""MirrorMaker 2's translation of offsets: Kafka's own `OffsetSyncStore` beside ours."""

from __future__ import annotations

import random
from typing import NamedTuple

from kbackup.mirror.positions import OffsetSyncStore
from kbackup.mirror.records import OffsetSync
from kbackup.types import TopicPartition
from tests.support.java import compiled

HISTORIES = 2_000
TP = TopicPartition("orders-é", 7)
STEPS = [0, 1, 1, 1, 2, 3, 10, 101, 101, 101, 5_000, 1 << 20, 1 << 40]
LARGEST = (1 << 63) - 1


class Step(NamedTuple):
    """A sync of a history, and offsets to ask for once it is known."""

    upstream: int
    offset: int
    asked: tuple[int, ...]


def history(chance: random.Random) -> list[Step]:
    """Syncs as of a source that is compacted, emptied, deleted and created again; numbers up to a long's end."""
    upstream = chance.choice([0, 0, 1, 77, 1 << 33, LARGEST - (1 << 20)])
    offset, steps, lengths = chance.choice([0, 5, 1 << 33]), chance.sample(STEPS, 3), [1, 5, 40, 150]
    made: list[Step] = []
    for _ in range(chance.choice(lengths)):
        known = [step.upstream for step in made[-20:]] + [upstream, 0, LARGEST]
        near = [known[chance.randrange(len(known))] + chance.randint(-3, 3) for _ in range(6)]
        asked = tuple(n for n in [*near, chance.randint(0, upstream)] if 0 <= n <= LARGEST)
        made.append(Step(upstream, offset, asked))
        upstream = min(upstream + chance.choice(steps), LARGEST)
        offset += chance.choice([1, 1, 2, 101])
        if chance.random() < 0.02:
            upstream = chance.randint(0, upstream)
    return made


def commands(steps: list[Step], end: int) -> list[str]:
    lines = ["begin false"]
    for n, step in enumerate(steps):
        if n == end:
            lines.append("end")
        sync = OffsetSync(TP, step.upstream, step.offset)
        lines.append(f"sync {sync.key.hex()} {sync.value.hex()}")
        if n >= end:
            lines += [f"ask {offset}" for offset in step.asked]
    return lines


def answers(steps: list[Step], end: int) -> list[str]:
    store = OffsetSyncStore()
    printed: list[int | None] = []
    for n, step in enumerate(steps):
        store.add(OffsetSync(TP, step.upstream, step.offset))
        if n >= end:
            printed += [store.translate(TP, offset) for offset in step.asked]
    return ["none" if answer is None else str(answer) for answer in printed]


def test_random_histories_of_syncs_are_translated_as_by_java() -> None:
    chance = random.Random(20260101)
    lines: list[str] = []
    ours: list[str] = []
    for _ in range(HISTORIES):
        steps = history(chance)
        end = chance.choice([0, len(steps) // 2])
        lines += commands(steps, end)
        ours += answers(steps, end)
    with compiled("SyncStore.java") as java:
        theirs = java.run("org.apache.kafka.connect.mirror.SyncStore", stdin="\n".join(lines)).split()
    assert len(ours) > 60_000
    assert ours == theirs
