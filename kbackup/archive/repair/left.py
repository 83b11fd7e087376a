"""What is left of an archive's catalogue: restore points that need nothing that is lost, and what else can be read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from kbackup.archive import layout
from kbackup.archive.checkpoints import folded, given_up, read_head, read_points
from kbackup.archive.encryption import check_encryption
from kbackup.archive.expired import (
    Place,
    gone_with,
    is_before,
    log_starts,
    segments_key,
    starts_by_folder,
    steps,
)
from kbackup.archive.models import (
    ArchiveInfo,
    ExpiredPartition,
    Groups,
    Intent,
    Manifest,
    Metadata,
    NewerError,
    Point,
    load,
)
from kbackup.archive.segments import SCHEMA, Segment, decode_segments, from_batches
from kbackup.archive.verify.findings import Finding, Findings
from kbackup.archive.verify.points import Points, Sizes, numbers
from kbackup.archive.verify.points import read_points as read_restore_points
from kbackup.errors import CorruptError, NotFoundError
from kbackup.formats.index import decode_partition_index
from kbackup.store.base import Store
from kbackup.store.crypt.raw import stored

_THREADS = 16
_FOLDER = re.compile(r"^topics/([A-Za-z0-9._-]{1,249})(?:@([1-9][0-9]*))?/([^/]+)\Z")

MOST_PARTITIONS = 1_000_000
"""A file of a higher one is nobody's: every partition below it would need an entry."""


class _Damages(Findings):
    """Findings but for what is whole and was written by a newer version."""

    @contextmanager
    def catching(self, file: str, hint: str = "") -> Iterator[None]:
        newer: list[NewerError] = []
        with super().catching(file, hint):
            try:
                yield
            except NewerError as error:
                newer.append(error)
        for each in newer:
            raise each


@contextmanager
def _readable() -> Iterator[None]:
    """What is missing or damaged tells nothing."""
    try:
        yield
    except NewerError:
        raise
    except (CorruptError, NotFoundError):
        return


@dataclass
class Left:
    """`kept` are the restore points from the first on that need nothing that is lost; `manifests` every one that can be
    read, in order; `past` what checkpoints have of any of them. `lost` are the numbers of restore points, known to have
    been, that are not kept.

    `rows` are descriptors of segments by key, from tables that a manifest or a checkpoint vouches for; `loose` those
    from other tables, and `tabled` their keys by number. `unaccounted` are records objects that a partition index
    names, so that they were committed, and no table of the first kind does; of one that is not there nobody knows
    whether it was compressed. `root` is where the folders of topics
    are."""

    sizes: Sizes
    points: Points
    findings: set[Finding]
    root: str = layout.TOPICS
    archive_id: str = ""
    has_info: bool = False
    last: int = 0
    kept: list[Manifest] = field(default_factory=list)
    manifests: list[Manifest] = field(default_factory=list)
    past: dict[int, Point] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)
    unaccounted: set[str] = field(default_factory=set)
    rows: dict[str, list[Segment]] = field(default_factory=dict)
    loose: dict[str, list[Segment]] = field(default_factory=dict)
    tabled: dict[int, set[str]] = field(default_factory=dict)
    groups: dict[int, Groups] = field(default_factory=dict)
    metadata: dict[int, Metadata] = field(default_factory=dict)
    intents: dict[int, Intent] = field(default_factory=dict)

    @property
    def is_broken(self) -> bool:
        """Whether restore points are lost: those that are left are not all there were."""
        nothing = not self.last and any(key.startswith(layout.TOPICS) for key in self.sizes)
        stands_on: set[str] = set()
        if (said := self.points.expired) is not None:
            stands_on = {layout.backup_key(p.seq, name) for p in said.carried for name in p.files}
            stands_on |= {segments_key(said.number, said.segments)}
        untold = self.points.expired_lost or bool(stands_on & {finding.file for finding in self.findings})
        return bool(self.lost or self.unaccounted or nothing or untold)

    @property
    def expirations(self) -> int:
        """The number of the newest expiration, whole or not; 0 where there is none."""
        return max(steps(self.sizes), default=0)

    def lost_after(self, seq: int) -> list[int]:
        """The numbers of restore points after `seq`, as far as they are known to have been."""
        return sorted({m.seq for m in self.manifests if m.seq > seq} | {n for n in self.lost if n > seq})


def place_of(key: str) -> tuple[str, int, str] | None:
    """(topic, incarnation, file name) of a key in a topic's folder."""
    found = _FOLDER.match(key)
    if found is None or found[1] in (".", "..") or found[2] == "1":
        return None
    return found[1], int(found[2] or 1), found[3]


def look(store: Store, sizes: Sizes) -> Left:
    """`WrongKeyError` where the archive is encrypted and the store is not, or the other way round; `NewerError` where
    any file is of a version that is not known here: nothing is to be repaired by that."""
    _check_key(store)
    findings = _Damages()
    points = read_restore_points(store, sizes, findings)
    left = Left(sizes, points, findings.found, archive_id=points.archive_id)
    bad = {finding.file for finding in findings.found}
    left.has_info = layout.ARCHIVE in sizes and layout.ARCHIVE not in bad
    runs = {seq: files for seq, files in numbers(sizes).items() if gone_with(points.gone, seq) is None}
    _read_checkpoints(store, left)
    _read_beside(store, left, runs)
    seen: list[Point | Intent] = [*left.manifests, *left.past.values(), *left.intents.values()]
    owners = {each.archive_id for each in seen}
    if not left.archive_id and len(owners) == 1:
        (left.archive_id,) = owners
    left.last = max([0, *numbers(sizes), *left.past, *(link.last for link in points.gone)])
    left.kept = _kept(points, bad)
    since = left.kept[-1].seq if left.kept else 0
    starts = log_starts(points.expired)
    left.rows = {key: kept for key, rows in left.rows.items() if (kept := not_expired(rows, starts))}
    left.unaccounted = _unaccounted(store, left)
    left.lost = sorted(seq for seq in _committed(left, runs) if seq > since)
    return left


def _unaccounted(store: Store, left: Left) -> set[str]:
    """Partition indexes are written after the commit: what one names was in a restore point. Until an expiration is
    settled, and for a topic that has been made anew since also after that, they name what is gone, too."""
    starts = starts_by_folder(left.points.expired)
    incarnations: dict[str, set[int]] = {}
    for manifest in left.manifests if left.points.expired is not None else ():
        for topic in manifest.topics:
            incarnations.setdefault(topic.name, set()).add(topic.incarnation)

    def is_over(name: str, incarnation: int) -> bool:
        """No restore point has it, and one has a later one: the newest never expires, and has every topic."""
        there = incarnations.get(name, set())
        return incarnation < max(there, default=0) and incarnation not in there

    def named(key: str) -> list[str]:
        place = place_of(key)
        number = layout.parse_partition_index(place[2]) if place is not None else None
        if place is None or number is None or number >= MOST_PARTITIONS or is_over(place[0], place[1]):
            return []
        try:
            entries = decode_partition_index(store.get(key), key)
        except (CorruptError, NotFoundError):
            return []
        folder = layout.topic_dir(place[0], place[1])
        names = {e.name: layout.parse_segment(f"{e.name}_records") for e in entries}
        return [folder + name for name, of in names.items() if of is not None and of.partition == number]

    with ThreadPoolExecutor(_THREADS) as pool:
        found = pool.map(named, [key for key in left.sizes if key.startswith(layout.TOPICS)])
        stems = {stem for stems in found for stem in stems if not is_before(starts, f"{stem}_records")}
    keys = {(f"{stem}_records", f"{stem}_records.zst") for stem in stems}
    there = {key for pair in keys for key in pair if key in left.sizes and key not in left.rows}
    missing = {pair[0] for pair in keys if not {*pair} & (left.sizes.keys() | left.rows.keys())}
    return there | missing


def _check_key(store: Store) -> None:
    """Where archive.json is whole it says; else whether there are data keys, which an encrypting store hides."""
    with suppress(CorruptError, NotFoundError):
        check_encryption(store, load(ArchiveInfo, store.get(layout.ARCHIVE), layout.ARCHIVE))
        return
    sealed = next(stored(store).list(layout.KEYS), None) is not None
    check_encryption(
        store, ArchiveInfo(id="", created_at="", encryption="kbackup-encryption-2" if sealed else None)
    )


def _kept(points: Points, bad: set[str]) -> list[Manifest]:
    kept: list[Manifest] = []
    for manifest in points.committed:
        files = {layout.backup_key(manifest.seq, name) for name in manifest.files}
        before = kept[-1].seq if kept else None
        if not _follows(manifest.parent, before, points) or files & bad or manifest.seq not in points.added:
            break
        kept.append(manifest)
    return kept


def not_expired(rows: Sequence[Segment], starts: Mapping[Place, ExpiredPartition]) -> list[Segment]:
    went = [starts.get((s.topic, s.incarnation, s.partition)) for s in rows]
    return [s for s, gone in zip(rows, went, strict=True) if gone is None or s.last >= gone.start]


def _follows(parent: int | None, before: int | None, points: Points) -> bool:
    """Whether a restore point of that parent comes after `before`, but for what was expired in between."""
    while parent != before:
        link = gone_with(points.gone, parent) if parent is not None else None
        if link is None or link.last != parent:
            return False
        parent = link.parent
    return True


def _committed(left: Left, runs: Mapping[int, set[str]]) -> set[int]:
    """Numbers that anything says were closed, without those that a repair gave up."""
    found = {m.seq for m in left.points.committed}
    named: list[Point | Intent] = [*left.points.closed.values(), *left.intents.values()]
    # what a repair names may never have been: where it is lost the chain breaks
    found |= {each.parent for each in named if each.parent is not None and not _is_repaired(each)}
    found |= {point.seq for point in left.past.values() if point.status == "committed"}
    for seq, files in runs.items():
        # only the last one without a manifest may be at work: it began with an intent, and sealed the others
        began = layout.INTENT in files and not {layout.MANIFEST, layout.REFRESHED} & files
        if seq not in left.points.closed and not (began and seq == max(runs)):
            found.add(seq)
    found |= {seq for seq, keys in left.tabled.items() if keys & left.unaccounted}
    gone = given_up(left.points.committed)
    found = {seq for seq in found if gone_with(left.points.gone, seq) is None}
    return {seq for seq in found if not any(seq in numbers for numbers in gone)}


def _is_repaired(each: Point | Intent) -> bool:
    return isinstance(each, Point) and each.repaired is not None


def _read_checkpoints(store: Store, left: Left) -> None:
    """Every part of every checkpoint that can be read. What is damaged tells nothing."""
    heads = [parsed for key in left.sizes if (parsed := layout.parse_checkpoint_key(key)) is not None]
    for seq, name in heads:
        if name != layout.CHECKPOINT:
            continue
        with _readable():
            for part in read_head(store, seq, left.archive_id).parts:
                with _readable():
                    left.past |= {p.seq: p for p in read_points(store, part, left.archive_id)}
                with _readable():
                    _add(left.rows, from_batches(folded(store, part, SCHEMA.names).to_batches()))


def _read_beside(store: Store, left: Left, runs: Mapping[int, set[str]]) -> None:
    """Files of every number: vouched for by its manifest, or loose, where only their own checksums speak for them."""
    committed = {m.seq: m for m in left.points.committed}
    gone = given_up(left.points.committed)
    left.manifests = list(committed.values())
    for table in left.points.added.values():
        _add(left.rows, table)
    left.groups |= left.points.groups
    for seq, files in runs.items():
        if seq not in committed and seq in left.points.closed:
            continue  # sealed: it never committed
        key = {name: layout.backup_key(seq, name) for name in files}
        with _readable():
            if layout.SEGMENTS in files and seq not in left.points.added:
                table = decode_segments(store.get(key[layout.SEGMENTS]), key[layout.SEGMENTS])
                left.tabled[seq] = {segment.key for segment in table}
                vouched = layout.REFRESHED in files and not any(seq in numbers for numbers in gone)
                _add(left.rows if vouched else left.loose, table)
        with _readable():
            if layout.GROUPS in files and seq not in left.groups:
                left.groups[seq] = load(Groups, store.get(key[layout.GROUPS]), key[layout.GROUPS])
        with _readable():
            if layout.METADATA in files:
                left.metadata[seq] = load(Metadata, store.get(key[layout.METADATA]), key[layout.METADATA])
        with _readable():
            if layout.INTENT in files:
                left.intents[seq] = load(Intent, store.get(key[layout.INTENT]), key[layout.INTENT])


def _add(rows: dict[str, list[Segment]], table: Iterable[Segment]) -> None:
    for segment in table:
        there = rows.setdefault(segment.key, [])
        if segment not in there:
            there.append(segment)
