"""Taking restore points and records away: what an expiration would say, and saying it.

An expiration is committed like a restore point, by creating one document after all that it names. What it took away is
deleted later (`sweep`); until then whoever opened the archive before it reads on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.checkpoints import bare, given_up
from kbackup.archive.expired import Place, check_order, log_starts, segments_key
from kbackup.archive.models import (
    Expired,
    ExpiredPartition,
    ExpiredTopic,
    FileSum,
    GivenUp,
    Gone,
    Manifest,
    Point,
    TopicState,
    dump,
    file_sum,
    load,
    now,
)
from kbackup.archive.reader import Archive
from kbackup.archive.segments import FOLDED, PLACE, Segment, encode_folded, from_batches, rows_where
from kbackup.errors import AlreadyExistsError, CorruptError, LeaseLostError, RefusedError
from kbackup.types import Int64Array

_AT_ONCE = 16
Incarnation = tuple[str, int]


@dataclass(frozen=True)
class Kept:
    """What the restore points that stay say. `last` is the last one that has a topic's incarnation, with its state;
    `pinned` the last pinned one that has it. `captured` are the runs that they name."""

    last: Mapping[Incarnation, tuple[int, TopicState]]
    pinned: Mapping[Incarnation, int]
    captured: frozenset[int]


@dataclass(frozen=True)
class Expiration:
    """One that was not committed yet; None for `document` where nothing would change. `removed` are the segments that
    no restore point has any more. `records` is by restore point that stays how many records it keeps, and how many go
    of it."""

    document: Expired | None
    table: bytes
    removed: tuple[Segment, ...]
    records: Mapping[int, tuple[int, int]]


def manifests(archive: Archive, points: Sequence[Point]) -> Iterator[Manifest]:
    """In order, a few at a time: they are large, and not kept. `CorruptError` for one that is not what was listed."""

    def read(point: Point) -> Manifest:
        key = layout.backup_key(point.seq, layout.MANIFEST)
        found = load(Manifest, archive.store.get(key), key)
        if found.checksum != point.checksum:
            raise CorruptError(f"file {key} is not the one that was read before", "run 'kbackup verify'")
        return found

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for at in range(0, len(points), _AT_ONCE):
            yield from pool.map(read, points[at : at + _AT_ONCE])


def what_stays(archive: Archive, gone: Collection[int] = (), pins: Collection[int] = ()) -> Kept:
    last: dict[Incarnation, tuple[int, TopicState]] = {}
    pinned: dict[Incarnation, int] = {}
    captured: set[int] = set()
    for manifest in manifests(archive, [p for p in archive.restore_points if p.seq not in gone]):
        for topic in manifest.topics:
            last[topic.name, topic.incarnation] = (manifest.seq, topic)
            captured.add(topic.captured)
            if manifest.seq in pins:
                pinned[topic.name, topic.incarnation] = manifest.seq
    return Kept(last, pinned, frozenset(captured))


def prepare(
    archive: Archive,
    gone: Collection[int],
    kept: Kept,
    cutoff: int | None,
    spared: Collection[Incarnation],
    cut: bool = False,
) -> Expiration:
    """What it takes for the restore points `gone` not to be there, and for records from before `cutoff` (ms) to go: by
    whole segments from the start of a partition, none that a pinned restore point has, none of the topics `spared`.
    `kept` is what stays then (`what_stays`).
    What went beyond the newest restore point (`is_cut_off`) is forgotten by that; `cut`: also if nothing else goes.

    `RefusedError` where nothing would be left of the newest restore point's records."""
    newest = archive.restore_points[-1].seq
    tables = list(archive.tables(newest, FOLDED.names))
    table = pa.concat_tables([FOLDED.empty_table(), *tables]).sort_by(
        [(name, "ascending") for name in [*PLACE.names, "seq"]]
    )
    rows = from_batches(table.select(FOLDED.names[:-1]).to_batches())
    seqs: list[int] = table.column("seq").to_numpy().tolist()
    ends = {incarnation: seq for incarnation, (seq, _) in kept.last.items()}
    lasts = [ends.get((s.topic, s.incarnation), 0) for s in rows]
    dead = [seq > last for seq, last in zip(seqs, lasts, strict=True)]
    old = [
        cutoff is not None
        and (s.topic, s.incarnation) not in spared
        and s.max_timestamp is not None
        and s.max_timestamp < cutoff
        and seq > kept.pinned.get((s.topic, s.incarnation), 0)
        for s, seq in zip(rows, seqs, strict=True)
    ]
    starts = log_starts(archive.expired)
    going = list(dead)
    for place, each in groupby(range(len(rows)), lambda i: _place(rows[i])):
        for i in each:
            if dead[i]:
                continue
            if not old[i]:
                break
            going[i], starts[place] = True, _past(rows[i], starts.get(place))
    goes = np.array(going, np.bool_)
    staying = [p.seq for p in archive.restore_points if p.seq not in gone]
    records = _records(staying, np.array(seqs, np.int64), np.array(lasts, np.int64), rows, goes)
    if records[newest][1] and not records[newest][0]:
        raise RefusedError(
            f"it would leave no record in restore point {newest}, the newest", "an archive is not emptied"
        )
    removed = tuple(s for s, gone_now in zip(rows, going, strict=True) if gone_now)
    if not gone and not removed and not cut:
        return Expiration(None, b"", (), records)
    data = encode_folded([rows_where(table, ~goes)])
    return Expiration(_document(archive, gone, kept, file_sum(data), starts), data, removed, records)


def _records(
    staying: Sequence[int],
    seqs: Int64Array,
    lasts: Int64Array,
    rows: Sequence[Segment],
    goes: npt.NDArray[np.bool_],
) -> dict[int, tuple[int, int]]:
    """By restore point that stays how many records it keeps and how many go: a row counts from the run that added it
    up to the last restore point that has its topic."""
    counts = np.array([s.count for s in rows], np.int64)
    low, high = np.searchsorted(staying, seqs, "left"), np.searchsorted(staying, lasts, "right")

    def summed(some: npt.NDArray[np.bool_]) -> Int64Array:
        sums = np.zeros(len(staying) + 1, np.int64)
        np.add.at(sums, low[some], counts[some])
        np.subtract.at(sums, high[some], counts[some])
        return np.cumsum(sums)

    seen = low < high
    pairs = zip(summed(seen & ~goes).tolist(), summed(seen & goes).tolist(), strict=True)
    return dict(zip(staying, pairs, strict=False))


def _place(segment: Segment) -> Place:
    return segment.topic, segment.incarnation, segment.partition


def _past(segment: Segment, before: ExpiredPartition | None) -> ExpiredPartition:
    """Where a partition begins when `segment` went, after what went before it."""
    return ExpiredPartition(
        partition=segment.partition,
        start=segment.last + 1,
        records=segment.count + (before.records if before is not None else 0),
        bytes=segment.bytes + (before.bytes if before is not None else 0),
    )


def _within(went: ExpiredPartition, state: TopicState) -> ExpiredPartition | None:
    """What went, as far as restore points that stay have it: the next backup goes on where the last of them ends."""
    for p in state.partitions:
        if p.partition == went.partition and went.start > p.end:
            return ExpiredPartition(partition=p.partition, start=p.end, records=p.records, bytes=p.bytes)
        if p.partition == went.partition:
            return went
    return None


def is_cut_off(archive: Archive) -> bool:
    """Whether restore points went that are newer than all it has: it is a copy on its way."""
    newest = archive.restore_points[-1].seq if archive.restore_points else 0
    return archive.expired is not None and archive.expired.upto > newest


def _document(
    archive: Archive,
    gone: Collection[int],
    kept: Kept,
    segments: FileSum,
    starts: Mapping[Place, ExpiredPartition],
) -> Expired:
    before, at, upto = archive.expired, now(), archive.restore_points[-1].seq
    links = [link for link in archive.gone if link.last < upto]
    links += _links(archive.restore_points, gone, at)
    there = {p.seq for p in archive.restore_points if p.seq not in gone}
    carried = [bare(p) for seq, p in archive.captures.items() if seq in kept.captured and seq not in there]
    living = [
        (place, within)
        for place, start in sorted(starts.items())
        if place[:2] in kept.last and (within := _within(start, kept.last[place[:2]][1])) is not None
    ]
    return Expired(
        archive_id=archive.info.id,
        number=before.number + 1 if before is not None else 1,
        at=at,
        upto=upto,
        segments=segments,
        gone=tuple(sorted(links, key=lambda link: link.last)),
        carried=tuple(carried),
        topics=tuple(
            ExpiredTopic(name=name, incarnation=incarnation, partitions=tuple(start for _, start in some))
            for (name, incarnation), some in groupby(living, lambda entry: entry[0][:2])
        ),
    )


def _links(points: Sequence[Point], gone: Collection[int], at: str) -> Iterator[Gone]:
    """One for each row of neighbours among `points` that go."""
    some: list[Point] = []
    for point in points:
        if some and (point.seq not in gone or point.parent != some[-1].seq):
            yield _link(some, at)
            some = []
        if point.seq in gone:
            some.append(point)
    if some:
        yield _link(some, at)


def _link(points: Sequence[Point], at: str) -> Gone:
    return Gone(
        parent=points[0].parent,
        last=points[-1].seq,
        restore_points=len(points),
        expired_at=at,
        losses=tuple(loss for point in points for loss in point.losses),
        given_up=tuple(GivenUp(first=some[0], last=some[-1]) for some in given_up(points) if some),
    )


def publish(archive: Archive, expiration: Expiration, check: Callable[[], None]) -> None:
    """The commit; `archive` is as after it then. `LeaseLostError` where another expired something meanwhile."""
    document, store = expiration.document, archive.store
    assert document is not None  # noqa: S101 (the caller knows that something changes)
    check_order(document)
    key = segments_key(document.number, document.segments)
    check()
    store.put(key, expiration.table)
    if file_sum(store.get(key)) != document.segments:
        raise CorruptError(
            f"file {key} is not what was written", "nothing was expired; what else writes there?"
        )
    check()
    try:
        store.put_new(layout.expiration_key(document.number, layout.EXPIRED), dump(document))
    except AlreadyExistsError as error:
        raise LeaseLostError(
            f"expiration {document.number} was made by another writer while this one was working",
            "its lease had run out; nothing was expired, run again",
        ) from error
    archive.reopen()
