"""Writing an archive: create it, seal what crashed, publish a restore point, refresh what is derived from it.

Order is what makes it safe: intent, segments (records, then index), the files beside the manifest, the
manifest, derived files. A reader goes the other way round and never sees half a run.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from kbackup import __version__
from kbackup.archive import layout
from kbackup.archive.derived import group_files, partition_indexes
from kbackup.archive.expired import gone_with
from kbackup.archive.fold import fold
from kbackup.archive.models import (
    ArchiveInfo,
    FileSum,
    Intent,
    Manifest,
    Refreshed,
    Totals,
    dump,
    file_sum,
    load,
    now,
)
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.segments import Segment, Starts
from kbackup.errors import AlreadyExistsError, CorruptError, LeaseLostError, NoArchiveError
from kbackup.store.base import Store, encryption_of
from kbackup.store.probe import check_conditional_writes

_THREADS = 8


def open_or_create(store: Store) -> Archive:
    """The archive at `store`, made when there is none; `StoreError` for a store that can't keep one safe."""
    try:
        return open_archive(store)
    except NoArchiveError:
        info = ArchiveInfo(id=uuid.uuid4().hex, created_at=now(), encryption=encryption_of(store))
    check_conditional_writes(store, "check")
    with suppress(AlreadyExistsError):  # another run made it just now: the one that is there counts
        store.put_new(layout.ARCHIVE, dump(info))
    return open_archive(store)


def seal_unfinished(archive: Archive, owner: str) -> list[Intent]:
    """Close every number that has an intent and no manifest, and return the intents, oldest first.

    The seal takes the manifest's place, so that a run that only slept can never commit under that number.
    Where it did commit in this very moment, its restore point stands and is no longer unfinished.
    """
    sealed: list[Intent] = []
    for run in archive.runs:
        if layout.MANIFEST in run.files or layout.INTENT not in run.files or archive.is_given_up(run.seq):
            continue
        intent = read_intent(archive, run.seq)
        seal = Manifest(
            status="abandoned",
            archive_id=archive.info.id,
            seq=run.seq,
            parent=intent.parent,
            run_id=owner,
            tool=f"kbackup {__version__}",
            started_at=intent.started_at,
            committed_at=now(),
        )
        try:
            archive.store.put_new(layout.backup_key(run.seq, layout.MANIFEST), dump(seal))
        except AlreadyExistsError:
            continue
        sealed.append(intent)
    archive.forget()
    return sealed


def read_intent(archive: Archive, seq: int) -> Intent:
    """`CorruptError` for one that is of another number or archive."""
    key = layout.backup_key(seq, layout.INTENT)
    intent = load(Intent, archive.store.get(key), key)
    if (intent.archive_id, intent.seq) != (archive.info.id, seq):
        raise CorruptError(
            f"file {key} is of number {intent.seq} of archive {intent.archive_id}",
            "it was copied from elsewhere",
        )
    return intent


def totals(topics: int, partitions: int, added: Sequence[Segment], groups: int) -> Totals:
    """What a manifest says of a run that added these segments."""
    return Totals(
        topics=topics,
        partitions=partitions,
        segments=len(added),
        records=sum(s.count for s in added),
        bytes=sum(s.bytes for s in added),
        stored_bytes=sum(s.stored for s in added),
        groups=groups,
    )


def put_part(archive: Archive, seq: int, name: str, data: bytes) -> FileSum:
    """A file beside the manifest, before the manifest."""
    archive.store.put(layout.backup_key(seq, name), data)
    return file_sum(data)


def publish(archive: Archive, manifest: Manifest, check: Callable[[], None] = lambda: None) -> None:
    """The commit. `LeaseLostError` where this number was sealed or committed by another meanwhile.

    `check` raises that where the lease is not ours any more: a run that slept for so long that its number expired, and
    the seal with it, would take for a commit what no reader ever sees."""
    check()
    try:
        archive.store.put_new(layout.backup_key(manifest.seq, layout.MANIFEST), dump(manifest))
    except AlreadyExistsError as error:
        raise _closed_by_another(manifest) from error
    archive.forget()
    try:
        check()
    except LeaseLostError as error:
        archive.reopen()
        if gone_with(archive.gone, manifest.seq) is not None:
            raise _closed_by_another(manifest) from error


def _closed_by_another(manifest: Manifest) -> LeaseLostError:
    return LeaseLostError(
        f"restore point {manifest.seq} was closed by another writer while this run was working",
        "its lease had run out; nothing was committed, run again",
    )


def refresh_derived(
    archive: Archive,
    manifest: Manifest,
    touched: Iterable[tuple[str, int, int]] | None = None,
    parent: Manifest | None = None,
    check: Callable[[], None] = lambda: None,
    starts: Starts | None = None,
) -> None:
    """Write the partition indexes and group offset files that follow from the newest restore point, and a checkpoint
    where it is time for one.

    `check` is called before each: it raises when a newer restore point may have refreshed them meanwhile.

    `touched` names (topic, incarnation, partition) whose index changed; None writes all, as after a crash.
    Group files are written for every topic that this restore point captured, but for those that are as `parent`
    left them. `starts` are those of `manifest`; where they are not known yet, every segment table is read.
    """
    wanted = None if touched is None else set(touched)
    files = partition_indexes(manifest.topics, archive.starts(manifest) if starts is None else starts, wanted)
    before = {} if parent is None else _groups_of(archive, parent)
    files |= {key: data for key, data in _groups_of(archive, manifest).items() if before.get(key) != data}

    def put(entry: tuple[str, bytes]) -> None:
        check()
        archive.store.put(*entry)

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(put, files.items()))
    fold(archive, manifest, check)
    put((layout.backup_key(manifest.seq, layout.REFRESHED), dump(Refreshed(seq=manifest.seq, at=now()))))


def _groups_of(archive: Archive, manifest: Manifest) -> dict[str, bytes]:
    captured = [t for t in manifest.topics if t.captured == manifest.seq]
    return group_files(captured, archive.groups(manifest), archive.expired)
