"""Reading every restore point that can be read, and naming what can't."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from kbackup.archive import layout
from kbackup.archive.checkpoints import given_up
from kbackup.archive.encryption import check_encryption
from kbackup.archive.expired import gone_with
from kbackup.archive.models import (
    ArchiveInfo,
    Expired,
    Gone,
    Groups,
    Intent,
    Lease,
    Manifest,
    Refreshed,
    load,
)
from kbackup.archive.reader import Archive
from kbackup.archive.segments import Segment
from kbackup.archive.verify.expired import check_pins, read_expirations, take_what_is_left
from kbackup.archive.verify.findings import ANOTHER_COPY, CHANGED, Findings
from kbackup.store.base import Store

_THREADS = 16
_BESIDE = (layout.SEGMENTS, layout.GROUPS, layout.METADATA)
_KNOWN = {layout.INTENT, layout.MANIFEST, layout.REFRESHED, *_BESIDE}

Sizes = Mapping[str, int]
"""Key -> size in bytes of every object of the store."""


@dataclass
class Points:
    """What could be read. `committed` is in order; `closed` (seals too), `added` and `groups` are by number and lack
    those that are damaged; of what was `expired` they have what is left. `whole`: nothing is missing that the rest
    stands on. `expired_settled`: the derived files follow the newest expiration."""

    archive_id: str = ""
    closed: dict[int, Manifest] = field(default_factory=dict)
    committed: list[Manifest] = field(default_factory=list)
    added: dict[int, list[Segment]] = field(default_factory=dict)
    groups: dict[int, Groups] = field(default_factory=dict)
    refreshed: set[int] = field(default_factory=set)
    whole: bool = True
    expired: Expired | None = None
    expired_lost: bool = False
    expired_settled: bool = True

    @property
    def gone(self) -> tuple[Gone, ...]:
        return self.expired.gone if self.expired is not None else ()


def numbers(sizes: Sizes) -> dict[int, set[str]]:
    """The names of the files under each number of backups/, in order of the numbers."""
    found: dict[int, set[str]] = {}
    for key in sizes:
        parsed = layout.parse_backup_key(key)
        if parsed is not None:
            found.setdefault(parsed[0], set()).add(parsed[1])
    return dict(sorted(found.items()))


def read_points(store: Store, sizes: Sizes, findings: Findings) -> Points:
    points = Points()
    with findings.catching(layout.ARCHIVE):
        info = load(ArchiveInfo, store.get(layout.ARCHIVE), layout.ARCHIVE)
        check_encryption(store, info)
        points.archive_id = info.id
    if layout.LOCK in sizes:
        with findings.catching(layout.LOCK):
            load(Lease, store.get(layout.LOCK), layout.LOCK)
    read_expirations(store, sizes, points, findings)
    check_pins(store, sizes, points, findings)
    runs = {seq: files for seq, files in numbers(sizes).items() if gone_with(points.gone, seq) is None}
    with ThreadPoolExecutor(_THREADS) as pool:
        early = type(findings)()
        read = pool.map(lambda seq: _manifest(store, seq, early), _closed(runs))
        manifests = dict(zip(_closed(runs), read, strict=True))
        _leave_given_up(runs, manifests, early, findings)
        _check_owners(manifests, points, findings)
        points.closed = {seq: manifest for seq, manifest in manifests.items() if manifest is not None}
        _check_chain(manifests, points, findings)
        list(pool.map(lambda m: _beside(store, m, points, findings), points.committed))
        list(pool.map(lambda run: _around(store, run[0], run[1], manifests, points, findings), runs.items()))
    bare = Archive(store, ArchiveInfo(id=points.archive_id, created_at=""))
    take_what_is_left(store, bare, points, findings)
    points.whole = points.whole and all(
        m.seq in points.added and m.seq in points.groups for m in points.committed
    )
    return points


def _leave_given_up(
    runs: dict[int, set[str]], manifests: dict[int, Manifest | None], early: Findings, findings: Findings
) -> None:
    """Takes the numbers that a repair gave up out of `runs` and `manifests`: what became of them is no finding."""
    gone = given_up(manifest for manifest in manifests.values() if manifest is not None)
    for seq in [seq for seq in runs if any(seq in numbers for numbers in gone)]:
        findings.note(layout.backup_key(seq, ""), "is of a restore point that was lost: a repair gave it up")
        del runs[seq]
        manifests.pop(seq, None)
    left = {layout.backup_key(seq, layout.MANIFEST) for seq in manifests}
    findings.found |= {finding for finding in early.found if finding.file in left}


def _closed(runs: Mapping[int, set[str]]) -> list[int]:
    return [seq for seq, files in runs.items() if layout.MANIFEST in files]


def _manifest(store: Store, seq: int, findings: Findings) -> Manifest | None:
    key = layout.backup_key(seq, layout.MANIFEST)
    manifest: Manifest | None = None
    with findings.catching(key):
        manifest = load(Manifest, store.get(key), key)
    if manifest is not None and manifest.seq != seq:
        findings.add(
            key, f"is the manifest of restore point {manifest.seq}, not of the folder it is in", CHANGED
        )
        return None
    return manifest


def _check_owners(manifests: dict[int, Manifest | None], points: Points, findings: Findings) -> None:
    """Manifests of another archive count as unreadable. Where all are of one other archive, it is archive.json that
    is not theirs."""
    owners = {m.archive_id for m in manifests.values() if m is not None}
    if len(owners) == 1 and points.archive_id and points.archive_id not in owners:
        (owner,) = owners
        findings.add(
            layout.ARCHIVE, f"is of archive {points.archive_id}, the restore points of {owner}", CHANGED
        )
        points.archive_id = owner
    for seq, manifest in manifests.items():
        if manifest is not None and points.archive_id and manifest.archive_id != points.archive_id:
            key = layout.backup_key(seq, layout.MANIFEST)
            what = f"belongs to archive {manifest.archive_id}, this is {points.archive_id}"
            findings.add(key, what, CHANGED)
            manifests[seq] = None


def _check_chain(manifests: Mapping[int, Manifest | None], points: Points, findings: Findings) -> None:
    """Each restore point names the one before it; where manifests can't be read it may be one of those."""
    before: set[int | None] = {None}
    newest = max(manifests, default=0)
    links = {link.last: link.parent for link in points.gone if (link.parent or 0) <= newest}
    for seq in sorted([*manifests, *links]):
        manifest = manifests.get(seq)
        if seq in links:
            parent = links[seq]
            if parent not in before and parent is not None:
                points.whole = False
                findings.add(layout.backup_key(parent, layout.MANIFEST), "is missing", ANOTHER_COPY)
            before = {seq}
        elif manifest is None:
            points.whole = False
            before.add(seq)
        elif manifest.status == "committed":
            points.committed.append(manifest)
            if manifest.parent not in before:
                points.whole = False
                if not points.expired_lost:
                    _broken(manifest, before, manifests, findings)
            before = {seq}


def _broken(
    manifest: Manifest,
    before: set[int | None],
    manifests: Mapping[int, Manifest | None],
    findings: Findings,
) -> None:
    parent = manifest.parent
    if parent is not None and parent not in manifests:
        findings.add(layout.backup_key(parent, layout.MANIFEST), "is missing", ANOTHER_COPY)
        return
    findings.add(
        layout.backup_key(manifest.seq, layout.MANIFEST),
        f"names restore point {parent} as its predecessor, but that is "
        + " or ".join(sorted(map(str, before))),
        CHANGED,
    )


def _beside(store: Store, manifest: Manifest, points: Points, findings: Findings) -> None:
    """The files that a manifest promises with size and sum."""
    archive = Archive(store, ArchiveInfo(id=manifest.archive_id, created_at=""))
    seq = manifest.seq
    for name in _BESIDE:
        key = layout.backup_key(seq, name)
        if name not in manifest.files:
            findings.add(
                layout.backup_key(seq, layout.MANIFEST), f"says nothing of its file {name}", ANOTHER_COPY
            )
            continue
        with findings.catching(key):
            if name == layout.SEGMENTS:
                points.added[seq] = archive.added(manifest)
            elif name == layout.GROUPS:
                points.groups[seq] = archive.groups(manifest)
            else:
                archive.metadata(manifest)


def _around(
    store: Store,
    seq: int,
    files: set[str],
    manifests: Mapping[int, Manifest | None],
    points: Points,
    findings: Findings,
) -> None:
    """Intent and the mark of refreshed files; runs that never ended; what does not belong there."""
    manifest = manifests.get(seq)
    for name in sorted(files - _KNOWN):
        findings.note(layout.backup_key(seq, name), "is no file of an archive")
    if layout.INTENT in files:
        key = layout.backup_key(seq, layout.INTENT)
        with findings.catching(key):
            intent = load(Intent, store.get(key), key)
            if intent.seq != seq or points.archive_id not in ("", intent.archive_id):
                findings.add(key, f"is of number {intent.seq} of archive {intent.archive_id}", CHANGED)
    if layout.REFRESHED in files:
        key = layout.backup_key(seq, layout.REFRESHED)
        with findings.catching(key):
            refreshed = load(Refreshed, store.get(key), key)
            if refreshed.seq != seq:
                findings.add(key, f"is of restore point {refreshed.seq}", CHANGED)
        points.refreshed.add(seq)
        if manifest is not None and manifest.status == "abandoned":
            findings.add(
                layout.backup_key(seq, layout.MANIFEST),
                "says that the run was abandoned, but it was committed: its files were refreshed",
                CHANGED,
            )
    if layout.MANIFEST in files:
        return
    if layout.REFRESHED in files:
        points.whole = False
        findings.add(layout.backup_key(seq, layout.MANIFEST), "is missing", ANOTHER_COPY)
    else:
        findings.note(
            layout.backup_key(seq, layout.INTENT),
            "is of a run that is under way or was cut off; the next one takes over what it wrote",
        )
