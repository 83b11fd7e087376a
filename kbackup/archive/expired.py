"""Reading expirations: which restore points and records an archive does not have any more, and by whose word.

What an expiration took away may still be there for a while: whoever opened the archive before goes on reading it. To
whoever opens it now it is gone from the moment that `expired.json` was created.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.models import (
    ExpirationStep,
    Expired,
    ExpiredPartition,
    FileSum,
    Gone,
    Pin,
    file_sum,
    load,
)
from kbackup.archive.segments import FOLDED, decode_table
from kbackup.errors import CorruptError, NotFoundError
from kbackup.store.base import Store

_COPY = "take it from a bucket version or another copy of the archive"
_ELSEWHERE = "it was copied from elsewhere"
_STEPS = {layout.REFRESHED, layout.SWEPT}

Place = tuple[str, int, int]
"""Topic, incarnation, partition."""


def steps(keys: Iterable[str]) -> dict[int, set[str]]:
    """The names of the files under each number of expirations/, in order of the numbers."""
    found: dict[int, set[str]] = {}
    for key in keys:
        parsed = layout.parse_expiration_key(key)
        if parsed is not None:
            found.setdefault(parsed[0], set()).add(parsed[1])
    return dict(sorted(found.items()))


def committed_of(found: Mapping[int, set[str]]) -> list[int]:
    """The numbers of the expirations that took effect. `CorruptError` where the newest one is lost: what followed
    from it is there."""
    numbers = [number for number, names in found.items() if layout.EXPIRED in names]
    newest = max(numbers, default=0)
    for number, names in found.items():
        if number > newest and names & _STEPS:
            key = layout.expiration_key(number, layout.EXPIRED)
            raise CorruptError(f"file {key} is missing, though it was committed", _COPY)
    return numbers


def newest_expired(store: Store, archive_id: str) -> Expired | None:
    """The one that counts."""
    numbers = committed_of(steps(entry.key for entry in store.list(layout.EXPIRATIONS)))
    return read_expired(store, max(numbers), archive_id) if numbers else None


def read_expired(store: Store, number: int, archive_id: str) -> Expired:
    """`CorruptError` unless it is whole and of this number and archive; '' for `archive_id` is any."""
    key = layout.expiration_key(number, layout.EXPIRED)
    try:
        found = load(Expired, store.get(key), key)
    except NotFoundError as error:
        raise CorruptError(f"file {key} is missing", _COPY) from error
    _check_owner(key, found.archive_id, archive_id)
    if found.number != number:
        raise CorruptError(f"file {key} is number {found.number}", _ELSEWHERE)
    check_order(found)
    return found


def check_order(expired: Expired) -> None:
    """`CorruptError` unless what is gone is in order and before `upto`: asked of what is written, too."""
    edge = 0
    for gone in expired.gone:
        if not edge <= (gone.parent or 0) < gone.last < expired.upto:
            key = layout.expiration_key(expired.number, layout.EXPIRED)
            raise CorruptError(f"file {key} names numbers that are not in order", "which tool wrote it?")
        edge = gone.last


def read_step(store: Store, key: str, archive_id: str) -> ExpirationStep:
    """`CorruptError` unless it is of the number that its key says, and says what its name does."""
    found = load(ExpirationStep, store.get(key), key)
    _check_owner(key, found.archive_id, archive_id)
    due = layout.expiration_key(found.number, f"{found.step}.json")
    if due != key:
        raise CorruptError(f"file {key} is {due}", _ELSEWHERE)
    return found


def _check_owner(key: str, owner: str, archive_id: str) -> None:
    if archive_id and owner != archive_id:
        raise CorruptError(
            f"file {key} belongs to archive {owner}, {layout.ARCHIVE} to {archive_id}", _ELSEWHERE
        )


def segments_key(number: int, due: FileSum) -> str:
    """Its name says what is in it: whoever writes it twice writes the same."""
    return layout.expiration_key(number, f"segments-{due.sha256[:16]}.parquet")


def segments_left(store: Store, expired: Expired, columns: Sequence[str] | None = None) -> pa.Table:
    """All segments that are left of the runs up to `expired.upto`, a table of schema `FOLDED` or some columns of it."""
    key = segments_key(expired.number, expired.segments)
    try:
        data = store.get(key)
    except NotFoundError as error:
        raise CorruptError(f"file {key} is missing", _COPY) from error
    if file_sum(data) != expired.segments:
        raise CorruptError(f"file {key} is not what its expired.json says", _COPY)
    return decode_table(data, key, FOLDED, columns)


def gone_with(gone: Sequence[Gone], seq: int) -> Gone | None:
    """Of `gone`, in order, what number `seq` went with; None where it did not."""
    at = bisect_left(gone, seq, key=attrgetter("last"))
    return gone[at] if at < len(gone) and (gone[at].parent or 0) < seq else None


def log_starts(expired: Expired | None) -> dict[Place, ExpiredPartition]:
    """What went of each partition that records went of."""
    topics = expired.topics if expired is not None else ()
    return {(t.name, t.incarnation, p.partition): p for t in topics for p in t.partitions}


def is_before(starts: Mapping[str, Mapping[int, int]], key: str) -> bool:
    """Whether the segment object `key` is one that expired: it begins before its partition's log start."""
    folder, _, name = key.rpartition("/")
    segment = layout.parse_segment(name)
    return segment is not None and segment.start < starts.get(folder + "/", {}).get(segment.partition, 0)


def starts_by_folder(expired: Expired | None) -> dict[str, dict[int, int]]:
    """Folder of a topic's incarnation -> partition -> log start."""
    topics = expired.topics if expired is not None else ()
    return {
        layout.topic_dir(t.name, t.incarnation): {p.partition: p.start for p in t.partitions} for t in topics
    }


def read_pins(store: Store, archive_id: str) -> dict[int, Pin]:
    """The restore points that are pinned. `CorruptError` for one that is not whole: nobody knows what it was."""
    found = {}
    for entry in list(store.list(layout.PINS)):
        seq = layout.parse_pin_key(entry.key)
        if seq is not None:
            pin = load(Pin, store.get(entry.key), entry.key)
            _check_owner(entry.key, pin.archive_id, archive_id)
            if pin.seq != seq:
                raise CorruptError(f"file {entry.key} is of restore point {pin.seq}", _ELSEWHERE)
            found[seq] = pin
    return found
