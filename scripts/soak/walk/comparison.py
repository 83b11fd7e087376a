"""Compare a restored topic with the book of its archive."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from scripts.soak.walk.model import Offset, Record, Restored, View
from scripts.soak.walk.oracle import Book


def compare(book: Book, view: View, restored: Restored) -> tuple[list[str], bool]:
    """Return the problems of a restored topic, and True when it lacks records of damaged segments."""
    wrong: list[str] = []
    lacks = False
    if set(restored.records) != set(view.ends):
        return [f"partitions {sorted(restored.records)}, not {sorted(view.ends)}"], False
    expected: dict[int, list[tuple[Offset, Record]]] = {p: [] for p in view.ends}
    for offset, record in book.offsets(view):
        expected[offset.partition].append((offset, record))
    for partition, rows in expected.items():
        pairs, problems = _match(rows, restored.records[partition], book.unsure | book.damaged)
        name = f"{view.life.topic}-{partition}"
        wrong += [f"{name}: {problem}" for problem in problems]
        there = {offset for offset, _ in pairs}
        lacks |= any(
            offset in book.damaged and offset not in book.unsure and offset not in there for offset, _ in rows
        )
        position = view.positions.get(partition) if view.positions is not None else None
        if position is not None and not problems:
            wrong += [
                f"{name}: {p}" for p in _compare_position(pairs, position, restored.positions.get(partition))
            ]
    return wrong, lacks


def _match(
    expected: Iterable[tuple[Offset, Record]], restored: Mapping[int, Record], optional: Collection[Offset]
) -> tuple[list[tuple[Offset, int]], list[str]]:
    """The restored records with their offsets in source and target, and what is wrong with their order or content.
    Every record of a walk has a value of its own."""
    pairs: list[tuple[Offset, int]] = []
    rows = sorted(restored.items())
    at = 0
    for offset, record in expected:
        if at < len(rows) and rows[at][1] == record:
            pairs.append((offset, rows[at][0]))
            at += 1
        elif offset not in optional:
            found = rows[at][1] if at < len(rows) else "its end"
            return pairs, [
                f"offset {offset.offset} of life {offset.life} is {record}, the restored topic has {found}"
            ]
    if at < len(rows):
        return pairs, [f"{len(rows) - at} records too many, the first is {rows[at][1]}"]
    return pairs, []


def _compare_position(
    pairs: Iterable[tuple[Offset, int]], committed: int, restored: int | None
) -> Iterator[str]:
    """The group must read the same records in the target that it would have read in the source."""
    if restored is None:
        yield f"the group has no offset, it was at {committed}"
        return
    for source, target in pairs:
        if (source.offset >= committed) != (target >= restored):
            yield f"the group is at {restored}, was at {committed}: record {source.offset} is at {target}"
            return
