"""One restore point in another store: an archive of the same id that has it and all that it stands on, and none before.

The others are gone there as if they had been expired; backups can go on after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec

from kbackup.archive import layout
from kbackup.archive.expire import Expiration, prepare, what_stays
from kbackup.archive.expired import segments_key
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import Expired, Manifest, dump, file_sum
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.segments import FOLDED, Segment, encode_folded
from kbackup.archive.settle import is_settled, settle
from kbackup.archive.transfer import put_same
from kbackup.errors import AlreadyExistsError, RefusedError
from kbackup.jobs.copy import SEGMENTS_AT_ONCE, Copy, CopyReport, commit_points, copy_segments, report
from kbackup.jobs.copy_beside import copy_keys
from kbackup.jobs.copy_claim import claim
from kbackup.jobs.listen import Listener, Phases
from kbackup.store.base import Store
from kbackup.store.crypt.raw import stored


def copy_point(
    source: Store, target: Store, wanted: str, lease_seconds: float, listener: Listener
) -> CopyReport:
    """Restore point `wanted` (a number, or 'latest') of `source`. `RefusedError` where `target` is anything but empty
    or a copy of that restore point alone, whole or cut off."""
    phases = Phases(listener)
    with phases.step("open"):
        archive = open_archive(source)
        manifest = archive.restore_point(wanted)
        without = _without_others(archive, manifest)
        claim(source, archive.info, target)
    with HeldLease(target, "kbackup copy", lease_seconds) as lease:
        with phases.step("compare"):
            copy_keys(source, target)
            there = open_archive(target)
            left = _is_left(archive, there, manifest, without.document)
        totals = sum(p.records for t in manifest.topics for p in t.partitions)
        copy = Copy(archive, there, lease, listener, totals)
        if left:
            with phases.step("copy"):
                for segments in _some(archive.segments(manifest)):
                    copy_segments(copy, segments)
                if without.document is not None:
                    _put_expiration(copy, without, without.document)
                commit_points(copy, [manifest])
        if not is_settled(there):
            settle(there, lease.check)
    return report(copy, 0, phases)


def _without_others(archive: Archive, manifest: Manifest) -> Expiration:
    """What it takes for every restore point before this one not to be there."""
    points = [point for point in archive.restore_points if point.seq <= manifest.seq]
    view = Archive(archive.store, archive.info)
    view.__dict__ |= {"expired": archive.expired, "covered": archive.covered, "restore_points": points}
    gone = {point.seq for point in points[:-1]}
    found = prepare(view, gone, what_stays(view, gone), None, ())
    if found.document is None:
        return _as_expired(archive, manifest) if archive.expired is not None else found
    before = tuple(link for link in found.document.gone if link.last < manifest.seq)
    document = msgspec.structs.replace(found.document, gone=before)
    return Expiration(document, found.table, found.removed, found.records)


def _as_expired(archive: Archive, manifest: Manifest) -> Expiration:
    """Where all of them are gone from the archive itself: what it says of that, as far as this restore point goes."""
    said = archive.expired
    assert said is not None  # noqa: S101 (the caller looked)
    table = encode_folded(list(archive.tables(manifest.seq, FOLDED.names)))
    captured = {t.captured for t in manifest.topics}
    topics = {(t.name, t.incarnation) for t in manifest.topics}
    document = msgspec.structs.replace(
        said,
        upto=manifest.seq,
        segments=file_sum(table),
        gone=tuple(link for link in said.gone if link.last < manifest.seq),
        carried=tuple(point for point in said.carried if point.seq in captured),
        topics=tuple(t for t in said.topics if (t.name, t.incarnation) in topics),
    )
    return Expiration(document, table, (), {})


def _is_left(source: Archive, target: Archive, manifest: Manifest, document: Expired | None) -> bool:
    """Whether anything is left to do. `RefusedError` where there is something else."""
    there = {point.seq: point.checksum for point in target.closed}
    expired = target.expired
    same = (expired is None and not there) or (
        (expired.segments, expired.upto) == (document.segments, document.upto)
        if expired is not None and document is not None
        else expired is None and document is None
    )
    if not same or there.items() - {(manifest.seq, manifest.checksum)}:
        raise RefusedError(
            f"{target.store.url} is no copy of restore point {manifest.seq} of {source.store.url} alone",
            "name an empty place",
        )
    return not there


def _put_expiration(copy: Copy, without: Expiration, document: Expired) -> None:
    """Groups and metadata that the restore point names, the table, then the document: nothing is in the archive before
    the restore point itself."""
    target = copy.target.store
    for point in document.carried:
        for name in (layout.GROUPS, layout.METADATA):
            copy.source.read_part(point, name)
            key = layout.backup_key(point.seq, name)
            copy.lease.check()
            put_same(target, key, stored(copy.source.store).get(key))
    copy.lease.check()
    target.put(segments_key(document.number, document.segments), without.table)
    with suppress(AlreadyExistsError):  # a copy that was cut off had come so far: it was compared
        target.put_new(layout.expiration_key(document.number, layout.EXPIRED), dump(document))
    copy.target.reopen()


def _some(segments: Sequence[Segment]) -> Iterator[Sequence[Segment]]:
    for at in range(0, len(segments), SEGMENTS_AT_ONCE):
        yield segments[at : at + SEGMENTS_AT_ONCE]
