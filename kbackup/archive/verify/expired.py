"""Expirations and pins, and the table of segments that is left against the tables of the restore points that are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kbackup.archive import layout
from kbackup.archive.expired import log_starts, read_expired, read_step, segments_key, segments_left, steps
from kbackup.archive.models import Expired, Pin, file_sum, load
from kbackup.archive.reader import Archive
from kbackup.archive.segments import SCHEMA, Segment, from_batches, in_order
from kbackup.archive.verify.findings import ANOTHER_COPY, CHANGED, Findings
from kbackup.store.base import Store

if TYPE_CHECKING:
    from kbackup.archive.verify.points import Points, Sizes

_STEPS = {layout.REFRESHED, layout.SWEPT}


def read_expirations(store: Store, sizes: Sizes, points: Points, findings: Findings) -> None:
    """Sets `points.expired`, or says that it is lost: then nobody knows what should be there."""
    found = steps(sizes)
    newest = max((number for number, names in found.items() if layout.EXPIRED in names), default=0)
    for number, names in found.items():
        whole: Expired | None = None
        key = layout.expiration_key(number, layout.EXPIRED)
        if layout.EXPIRED in names:
            with findings.catching(key):
                whole = read_expired(store, number, points.archive_id)
        elif number > newest and names & _STEPS:
            findings.add(key, "is missing", ANOTHER_COPY)
            points.expired_lost = True
        if number == newest:
            points.expired, points.expired_lost = whole, points.expired_lost or whole is None
            points.expired_settled = layout.REFRESHED in names
        _check_files(store, number, names - {layout.EXPIRED}, whole, points, findings)
    if points.expired is not None:
        key = segments_key(points.expired.number, points.expired.segments)
        if key not in sizes:
            findings.add(key, "is missing", ANOTHER_COPY)
    points.whole = points.whole and not points.expired_lost


def _check_files(
    store: Store, number: int, names: Iterable[str], whole: Expired | None, points: Points, findings: Findings
) -> None:
    """Those beside expired.json."""
    table = segments_key(number, whole.segments) if whole is not None else ""
    for key in (layout.expiration_key(number, name) for name in sorted(names)):
        with findings.catching(key):
            if key.rpartition("/")[2] in _STEPS:
                read_step(store, key, points.archive_id)
            elif whole is not None and key == table:
                if file_sum(store.get(key)) != whole.segments:
                    findings.add(key, "is not what its expired.json says", CHANGED)
            else:
                findings.note(key, "is of an expiration that was cut off, or of another tool")


def check_pins(store: Store, sizes: Sizes, points: Points, findings: Findings) -> None:
    for key in sizes:
        if not key.startswith(layout.PINS):
            continue
        seq = layout.parse_pin_key(key)
        if seq is None:
            findings.note(key, "is no file of an archive")
            continue
        with findings.catching(key):
            pin = load(Pin, store.get(key), key)
            if pin.seq != seq or points.archive_id not in ("", pin.archive_id):
                findings.add(key, f"is of restore point {pin.seq} of archive {pin.archive_id}", CHANGED)


def take_what_is_left(store: Store, archive: Archive, points: Points, findings: Findings) -> None:
    """Puts the segments that are left in the place of those that runs added, and the groups of gone runs that are still
    named to the others. The table must say the same as the runs' own ones, but for what went from the start."""
    expired = points.expired
    if expired is None:
        return
    for point in expired.carried:
        for name in (layout.GROUPS, layout.METADATA):
            with findings.catching(layout.backup_key(point.seq, name)):
                if name == layout.GROUPS:
                    points.groups[point.seq] = archive.groups(point)
                else:
                    archive.metadata(point)
    key = segments_key(expired.number, expired.segments)
    left: dict[int, list[Segment]] | None = None
    with findings.catching(key):
        table = segments_left(store, expired)
        left = {}
        rows = from_batches(table.select(SCHEMA.names).to_batches())
        for segment, seq in zip(rows, table.column("seq").to_numpy().tolist(), strict=True):
            left.setdefault(seq, []).append(segment)
    if left is None:
        points.whole = False
        return
    _compare(key, expired, left, points, findings)
    for seq in [seq for seq in points.added if seq <= expired.upto]:
        del points.added[seq]
    named = {m.seq: list[Segment]() for m in points.committed if m.seq <= expired.upto}
    newest = points.committed[-1].seq if points.committed else 0  # a copy may still be on its way
    points.added |= named | {seq: some for seq, some in left.items() if seq <= newest}


def _compare(
    key: str, expired: Expired, left: dict[int, list[Segment]], points: Points, findings: Findings
) -> None:
    starts = log_starts(expired)
    for seq, own in points.added.items():
        due = [
            s
            for s in own
            if (went := starts.get((s.topic, s.incarnation, s.partition))) is None or s.last >= went.start
        ]
        if seq <= expired.upto and sorted(due, key=in_order) != sorted(left.get(seq, []), key=in_order):
            findings.add(key, f"has other segments than are left of restore point {seq}", CHANGED)
    if any(seq > expired.upto for seq in left):
        findings.add(key, "has segments of later runs", CHANGED)
