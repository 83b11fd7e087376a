"""Deleting what nobody needs: what expirations took away some time ago, and what crashed runs left.

Nothing is remembered of what is to be deleted: it is what is listed and not needed, so that any run can go on where
another one was cut off. Needed is all that the archive had when the youngest expiration was committed that is older
than the grace time, and whatever the next backup may still take over from a run that was cut off.

The grace time counts by the store's own modification times, never by what a document says of itself alone: a writer
without the right to delete must not have anything deleted before it is over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from kbackup.archive import layout
from kbackup.archive.commit import read_intent
from kbackup.archive.expire import what_stays
from kbackup.archive.expired import (
    committed_of,
    gone_with,
    is_before,
    read_expired,
    read_step,
    segments_key,
    starts_by_folder,
    steps,
)
from kbackup.archive.models import Expired, dump
from kbackup.archive.reader import Archive
from kbackup.archive.settle import step_of
from kbackup.errors import StoreError
from kbackup.store.base import Failed, Store

_AT_ONCE = 1000
"""Deletes between two looks at the lease."""
_PARTS = (layout.SEGMENTS, layout.GROUPS, layout.METADATA)


@dataclass(frozen=True)
class Waste:
    """Keys that are not needed, in the order in which they are to be deleted. `expiration` is the one that they went
    with or before; None: there is none whose grace time is over."""

    expiration: Expired | None
    keys: tuple[str, ...]


def due(archive: Archive, sizes: Iterable[str], grace: timedelta) -> tuple[Expired | None, bool]:
    """The newest expiration whose grace time is over; and whether what was there before it may be deleted already.
    Nothing may while the newest one that somebody began to delete after is in its grace time."""
    found = steps(sizes)
    numbers = committed_of(found)
    swept = max((n for n in numbers if layout.SWEPT in found[n]), default=0)
    for number in sorted((n for n in numbers if n >= swept), reverse=True):
        if layout.REFRESHED in found[number] and _settled_at(archive, number) + grace <= datetime.now(UTC):
            return read_expired(archive.store, number, archive.info.id), True
    return None, not swept and (not numbers or min(numbers) == 1)


def _settled_at(archive: Archive, number: int) -> datetime:
    """When the expiration was here: to a copy it comes later. Its documents count as no older than the store says:
    whoever may write can date them back."""
    key = layout.expiration_key(number, layout.REFRESHED)
    said = datetime.fromisoformat(read_step(archive.store, key, archive.info.id).at)
    return max(
        said, *(_written_at(archive.store, k) for k in (key, layout.expiration_key(number, layout.EXPIRED)))
    )


def _written_at(store: Store, key: str) -> datetime:
    """When the store took the object, by its own clock."""
    return datetime.fromtimestamp(store.stat(key).modified, UTC)


def _is_young(archive: Archive, key: str, grace: timedelta) -> bool:
    return _written_at(archive.store, key) + grace > datetime.now(UTC)


def _in_doubt(archive: Archive, grace: timedelta) -> bool:
    """Whether a repair gave up restore points within the grace time: what they had must not go yet."""
    repaired = [p.seq for p in archive.restore_points if p.repaired is not None]
    return any(_is_young(archive, layout.backup_key(seq, layout.MANIFEST), grace) for seq in repaired)


def _without_young_checkpoint(archive: Archive, grace: timedelta) -> Archive:
    """The archive by what its runs wrote themselves where its checkpoint is younger than the grace time: whoever may
    write can make one that lacks segments."""
    covered = archive.covered
    if covered is None or not _is_young(
        archive, layout.checkpoint_key(covered.seq, layout.CHECKPOINT), grace
    ):
        return archive
    return _as_of(archive, archive.expired)


def waste(archive: Archive, sizes: Mapping[str, int], grace: timedelta) -> Waste:
    """What is to be deleted of the objects `sizes`, which were listed under the lease. `StoreError` where another
    listing has other restore points: what they need would be deleted."""
    _check_listed(archive, sizes)
    archive = _without_young_checkpoint(archive, grace)
    expired, known = due(archive, sizes, grace)
    if not known or _repairs(archive.expired) != _repairs(expired) or _in_doubt(archive, grace):
        return Waste(None, ())
    before = archive if expired == archive.expired else _as_of(archive, expired)
    segments = before.keys() | archive.keys()
    needed = segments | {layout.index_key_of(key) for key in segments}
    derived = _derived(before) | (_derived(archive) if before is not archive else set())
    taken_over, starts = _taken_over(archive), starts_by_folder(expired)
    topics = [
        key
        for key in sizes
        if key.startswith(layout.TOPICS)
        and key not in needed
        and key not in derived
        and _is_ours(key)
        and (_folder(key) not in taken_over or is_before(starts, key))
    ]
    runs, expirations = _of_runs(archive, expired, sizes), _expirations(archive, expired, sizes)
    return Waste(expired, (*topics, *runs, *expirations))


def _check_listed(archive: Archive, keys: Iterable[str]) -> None:
    parsed = filter(None, map(layout.parse_backup_key, keys))
    closed = {seq for seq, name in parsed if name == layout.MANIFEST}
    listed = {seq for seq in closed if gone_with(archive.gone, seq) is None}

    def known() -> set[int]:
        return {run.seq for run in archive.runs if layout.MANIFEST in run.files}

    if listed - known():
        archive.forget()  # without a lease: a backup may just have committed
    odd = sorted(seq for seq in listed ^ known() if not archive.is_given_up(seq))
    if odd:
        key = layout.backup_key(odd[0], layout.MANIFEST)
        raise StoreError(
            f"{archive.store.url} lists file {key} at one time and not at another",
            "nothing was deleted; does something else write there, or is the store out of order?",
        )


def _repairs(expired: Expired | None) -> set[int]:
    """Up to which numbers repairs gave up all there was: as it was before, nobody can open the archive any more."""
    return {link.last for link in (expired.gone if expired is not None else ()) if not link.restore_points}


def _as_of(archive: Archive, expired: Expired | None) -> Archive:
    """As those see it that opened it when `expired` was the newest expiration."""
    before = Archive(archive.store, archive.info)
    # checkpoints of later lack what went since; the runs' own files are all there
    before.__dict__ |= {"expired": expired, "covered": None}
    return before


def _derived(archive: Archive) -> set[str]:
    """The files that say the same as restore points, by name."""
    found: set[str] = set()
    for (name, incarnation), (_, state) in what_stays(archive).last.items():
        folder = layout.topic_dir(name, incarnation)
        for p in state.partitions:
            found |= {
                layout.partition_index_key(folder, p.partition),
                layout.group_offsets_key(folder, p.partition),
            }
    return found


def _is_ours(key: str) -> bool:
    name = key.rpartition("/")[2]
    parsers: tuple[Callable[[str], object], ...] = (
        layout.parse_segment,
        layout.parse_partition_index,
        layout.parse_group_offsets,
    )
    return _folder(key).count("/") == 2 and any(parse(name) is not None for parse in parsers)


def _folder(key: str) -> str:
    return key[: key.rfind("/") + 1]


def _taken_over(archive: Archive) -> set[str]:
    """Folders of topics that the next backup may take segments of cut off runs from (`jobs.backup.begin`)."""
    points = archive.restore_points
    since = points[-1].parent or 0 if points else 0
    committed = {point.seq for point in points}
    found: set[str] = set()
    for run in archive.runs:
        if run.seq > since and run.seq not in committed and layout.INTENT in run.files:
            intent = read_intent(archive, run.seq)
            found |= {layout.topic_dir(t.name, t.incarnation) for t in intent.topics}
    return found


def _of_runs(archive: Archive, expired: Expired | None, keys: Iterable[str]) -> list[str]:
    """Files of restore points that are gone, and what runs that never committed left beside their seals. Manifests
    last: as long as one is there, nobody can take its number."""
    links = expired.gone if expired is not None else ()
    carried = {point.seq for e in (expired, archive.expired) if e is not None for point in e.carried}
    head = archive.restore_points[-1].seq if archive.restore_points else 0
    sealed = {point.seq for point in archive.abandoned if point.seq < head}
    found: list[str] = []
    for key in keys:
        parsed = layout.parse_backup_key(key)
        if parsed is None:
            continue
        seq, name = parsed
        kept = seq in carried and name in (layout.GROUPS, layout.METADATA)
        if (gone_with(links, seq) is not None and not kept) or (seq in sealed and name in _PARTS):
            found.append(key)
    return sorted(found, key=lambda key: (key.endswith("/" + layout.MANIFEST), key))


def _expirations(archive: Archive, expired: Expired | None, keys: Collection[str]) -> list[str]:
    """Expirations that nobody can want any more, and tables of such as were never committed. Nothing above the newest
    one: it may be committed at this moment."""
    newest = archive.expired
    if expired is None or newest is None:
        return []
    wanted = set()
    for number in committed_of(steps(keys)):
        if number >= expired.number:
            whole = read_expired(archive.store, number, archive.info.id)
            wanted.add(segments_key(number, whole.segments))
    found = []
    for key in keys:
        parsed = layout.parse_expiration_key(key)
        if parsed is None or parsed[0] > newest.number:
            continue
        number, name = parsed
        if number < expired.number or (name.startswith("segments-") and key not in wanted):
            found.append(key)
    return sorted(found, key=lambda key: (key.endswith("/" + layout.EXPIRED), key))


def sweep(archive: Archive, found: Waste, check: Callable[[], None]) -> list[Failed]:
    """Delete; returns what could not be, which the next one tries again. From its first delete on, nobody goes back to
    what was there before the expiration."""
    if found.expiration is not None:
        key = layout.expiration_key(found.expiration.number, layout.SWEPT)
        check()
        archive.store.put(key, dump(step_of(found.expiration, "swept")))
    failed: list[Failed] = []
    for at in range(0, len(found.keys), _AT_ONCE):
        check()
        failed += archive.store.delete(found.keys[at : at + _AT_ONCE])
    return failed
