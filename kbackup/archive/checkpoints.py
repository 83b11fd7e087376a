"""Reading checkpoints: what every restore point up to one says, in a few files, so that an archive of 100,000 runs
opens without 100,000 manifests.

They are derived from manifests and segment tables, and never needed: where the newest is damaged an older one
serves, or none. What they say is checked against the manifests by 'kbackup verify', and wherever one is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.expired import gone_with
from kbackup.archive.models import Checkpoint, FileSum, FoldedPart, FoldedPoints, Gone, Point, file_sum, load
from kbackup.archive.segments import FOLDED, decode_table
from kbackup.errors import CorruptError, NotFoundError
from kbackup.store.base import Store

_THREADS = 16
HINT = "kbackup does without it; the next checkpoint takes its place"


@dataclass(frozen=True, slots=True)
class Covered:
    """A checkpoint and all that its points.json files hold: every closed number up to it, in order."""

    checkpoint: Checkpoint
    points: tuple[Point, ...]

    @property
    def seq(self) -> int:
        return self.checkpoint.seq

    @property
    def since(self) -> int:
        """The restore point before the last one: what comes after it is looked at in any case, since that is
        where writers look for what a crash left."""
        return (self.points[-1].parent or 0) if self.points else 0


def newest(store: Store, archive_id: str, gone: Sequence[Gone] = ()) -> Covered | None:
    """The newest checkpoint that is whole, without what is `gone`."""
    found = [layout.parse_checkpoint_key(entry.key) for entry in store.list(layout.CHECKPOINTS)]
    numbers = {parsed[0] for parsed in found if parsed and parsed[1] == layout.CHECKPOINT}
    for seq in sorted(numbers, reverse=True):
        try:
            return read_checkpoint(store, seq, archive_id, gone)
        except (CorruptError, NotFoundError):
            continue  # an older one, or the manifests, say the same; verify reports it
    return None


def read_checkpoint(store: Store, seq: int, archive_id: str, gone: Sequence[Gone] = ()) -> Covered:
    """`CorruptError` or `NotFoundError` unless it is whole, of this archive, and its parts and restore points follow
    one another. It may be of before some of its points were `gone`."""
    checkpoint = read_head(store, seq, archive_id)
    with ThreadPoolExecutor(_THREADS) as pool:
        parts = pool.map(lambda part: read_points(store, part, archive_id), checkpoint.parts)
        points = tuple(point for part in parts for point in part if gone_with(gone, point.seq) is None)
    key = layout.checkpoint_key(seq, layout.CHECKPOINT)
    committed = chained(points, key, gone)
    if gone_with(gone, seq) is None and (not committed or committed[-1].seq != seq):
        raise CorruptError(f"file {key} does not end in restore point {seq}", HINT)
    return Covered(checkpoint, points)


def read_head(store: Store, seq: int, archive_id: str) -> Checkpoint:
    """checkpoint.json alone; '' for `archive_id` is any."""
    key = layout.checkpoint_key(seq, layout.CHECKPOINT)
    checkpoint = load(Checkpoint, store.get(key), key)
    _check_owner(key, checkpoint.archive_id, archive_id)
    edges = [0, *(part.last for part in checkpoint.parts)]
    firsts = [part.first for part in checkpoint.parts]
    if checkpoint.seq != seq or edges[-1] != seq or firsts != [edge + 1 for edge in edges[:-1]]:
        raise CorruptError(f"file {key} does not account for the numbers 1 to {seq}", HINT)
    return checkpoint


def read_points(store: Store, part: FoldedPart, archive_id: str) -> tuple[Point, ...]:
    """A part's points.json."""
    key = layout.checkpoint_key(part.last, layout.POINTS)
    found = load(FoldedPoints, _read(store, key, part.points), key)
    _check_owner(key, found.archive_id, archive_id)
    numbers = [part.first - 1, *(point.seq for point in found.points), part.last + 1]
    if any(b <= a for a, b in pairwise(numbers)):
        raise CorruptError(f"file {key} has other numbers than {part.first} to {part.last} in order", HINT)
    return found.points


def folded(store: Store, part: FoldedPart, columns: Sequence[str] | None = None) -> pa.Table:
    """The segments of a part, a table of schema `FOLDED` or some columns of it."""
    key = layout.checkpoint_key(part.last, layout.SEGMENTS)
    return decode_table(_read(store, key, part.segments), key, FOLDED, columns, part.rows)


def given_up(closed: Iterable[Point]) -> list[range]:
    """The numbers that repairs gave up: those between such a restore point and the one that it names."""
    repaired = [point for point in closed if point.status == "committed" and point.repaired is not None]
    return [range((point.parent or 0) + 1, point.seq) for point in repaired]


def bare(point: Point) -> Point:
    """Without its topics."""
    return Point(**{name: getattr(point, name) for name in Point.__struct_fields__})


def chained(closed: Iterable[Point], name: str = "", gone: Sequence[Gone] = ()) -> list[Point]:
    """The committed ones of manifests in order; `CorruptError` (in `name`) unless each names the one before it, or
    the last of those that are `gone` from there. What is gone after the newest one is ahead of a copy that is under
    way."""
    committed = [point for point in closed if point.status == "committed"]
    known = {point.seq for point in committed}
    links = [(link.last, link.parent) for link in gone if (link.parent or 0) <= max(known, default=0)]
    before: int | None = None
    for seq, parent in sorted([*links, *((point.seq, point.parent) for point in committed)]):
        if parent != before:
            lost = parent is not None and parent not in known
            file = name or layout.backup_key(parent if lost and parent else seq, layout.MANIFEST)
            raise CorruptError(
                f"file {file} {'is missing' if lost and not name else 'breaks the chain'}: restore point {seq} "
                f"names {parent} as its predecessor, but that is {before}",
                "a manifest is missing; restore it from a bucket version or a copy; "
                "if there is none, see 'kbackup repair'",
            )
        before = seq
    return committed


def _check_owner(key: str, found: str, archive_id: str) -> None:
    if archive_id and found != archive_id:
        raise CorruptError(f"file {key} belongs to archive {found}", "it was copied from elsewhere")


def _read(store: Store, key: str, due: FileSum) -> bytes:
    data = store.get(key)
    if file_sum(data) != due:
        raise CorruptError(f"file {key} is not what its checkpoint says", HINT)
    return data
