"""What the source does not have any more goes from the copy's view as well, before newer restore points come: they name
what is gone. Nothing is deleted from the copy: that is for 'kbackup expire' there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kbackup.archive import layout
from kbackup.archive.expired import gone_with, segments_key, segments_left
from kbackup.archive.models import Expired
from kbackup.archive.reader import Archive
from kbackup.archive.segments import FOLDED, rows_where
from kbackup.archive.transfer import DIVERGED, put_same
from kbackup.errors import RefusedError
from kbackup.store.crypt.raw import stored

_SAME = ["key", "crc"]


def is_due(source: Archive, target: Archive) -> bool:
    """Whether the copy does not know yet what the source does not have any more."""
    ours, theirs = source.expired, target.expired
    return ours is not None and (theirs is None or theirs.number < ours.number)


def check_expired(source: Archive, target: Archive) -> None:
    """`RefusedError` where something went from the copy that the source has, or where it has something else in place of
    what the newest expiration left: nothing may be made of it then."""
    ours, theirs = source.expired, target.expired
    if theirs is not None and (ours is None or not _follows(ours, theirs)):
        raise _diverged(source, target, f"it has {layout.expiration_key(theirs.number, layout.EXPIRED)}")
    reached = target.restore_points[-1].seq if target.restore_points else 0
    if ours is not None and is_due(source, target) and not _has_left(source, target, ours, reached):
        raise _diverged(source, target, f"it has records up to restore point {reached}")


def _follows(ours: Expired, theirs: Expired) -> bool:
    """Whether `ours` is `theirs`, or says all that it says and more."""
    if theirs.number >= ours.number:
        return theirs.number == ours.number and theirs.checksum == ours.checksum
    over = [(link, gone_with(ours.gone, link.last)) for link in theirs.gone]
    return theirs.upto <= ours.upto and all(
        by is not None and (by.parent or 0) <= (link.parent or 0) for link, by in over
    )


def _has_left(source: Archive, target: Archive, ours: Expired, reached: int) -> bool:
    """Whether the copy stands on every segment that is left of the runs up to `reached`: they are not sent again."""
    left = segments_left(source.store, ours, [*_SAME, "seq"])
    left = rows_where(left, left.column("seq").to_numpy() <= reached)
    there = [FOLDED.empty_table().select(_SAME), *target.tables(reached, _SAME)]
    found = pc.is_in(_said(left), value_set=_said(pa.concat_tables(there)))
    return bool(pc.all(found, min_count=0).as_py())


def _said(table: pa.Table) -> Any:
    columns: list[Any] = [table.column(name) for name in _SAME]
    return pc.binary_join_element_wise(*columns, " ")


def _diverged(source: Archive, target: Archive, what: str) -> RefusedError:
    return RefusedError(
        f"{target.store.url} is no copy of {source.store.url} any more: {what} of its own", DIVERGED
    )


def put_expired(source: Archive, target: Archive, check: Callable[[], None]) -> None:
    """Bring the newest expiration along, with its table and the groups and metadata that kept restore points name of
    gone ones. The segments that are left should be there: what restore points the copy has may be gone by this."""
    ours = source.expired
    assert ours is not None  # noqa: S101 (it is due)
    keys = [segments_key(ours.number, ours.segments), layout.expiration_key(ours.number, layout.EXPIRED)]
    for point in ours.carried:
        for name in (layout.GROUPS, layout.METADATA):
            source.read_part(point, name)
            keys.insert(0, layout.backup_key(point.seq, name))
    for key in keys:
        check()
        put_same(target.store, key, stored(source.store).get(key))
    target.reopen()
