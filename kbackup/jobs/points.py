"""Pins and labels of restore points. They change the catalog alone: a backup may run beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kbackup.archive.catalog.commit import Author, commit, list_catalogs
from kbackup.archive.catalog.documents import OperationKind
from kbackup.archive.catalog.labels import check_label
from kbackup.archive.catalog.operations import label_point, pin_points, release_points
from kbackup.archive.catalog.state import HistoryRow, State
from kbackup.archive.catalog.sweep import read_history
from kbackup.archive.reader import Archive, open_archive
from kbackup.errors import UsageError
from kbackup.store.base import Store
from kbackup.util.times import now


@dataclass(frozen=True)
class PinReport:
    """What became of the pin of a restore point. `changed`: it was not so before. `pinned` are all restore points that
    are pinned now."""

    archive: str
    restore_point: int
    changed: bool
    pinned: tuple[int, ...]


@dataclass(frozen=True)
class LabelReport:
    """What became of a label. `labels` are all labels of the archive now: label -> restore point. `restore_point` is
    None for a label that was removed."""

    archive: str
    label: str
    restore_point: int | None
    labels: dict[str, int]


def pin(store: Store, name: str) -> PinReport:
    """Pin a restore point (a number, a label, or 'latest')."""
    archive = open_archive(store)
    number = archive.find_point(name).number
    at = now()  # once: the operation is repeated if another commit comes first
    changed = _commit(archive, lambda state: pin_points(state, [number], at), "keep", f"restore point {number} pinned")
    return PinReport(store.url, number, changed, tuple(sorted(archive.state.pins)))


def release(store: Store, name: str) -> PinReport:
    """Take a pin away. `UsageError` if the restore point has none."""
    archive = open_archive(store)
    number = archive.find_point(name).number
    summary = f"restore point {number} released"
    if not _commit(archive, lambda state: release_points(state, [number]), "release", summary):
        raise UsageError(f"restore point {number} is not pinned", "see 'kbackup list'")
    return PinReport(store.url, number, True, tuple(sorted(archive.state.pins)))


def label(store: Store, name: str, label: str) -> LabelReport:
    """Give a restore point (a number, a label, or 'latest') a label. Another restore point that has the label loses
    it."""
    check_label(label)  # before the archive is opened: the restore point may be none either
    archive = open_archive(store)
    number = archive.find_point(name).number
    _commit(archive, lambda state: label_point(state, label, number), "label", f"restore point {number} is {label}")
    return LabelReport(store.url, label, number, dict(archive.state.labels))


def remove_label(store: Store, label: str) -> LabelReport:
    archive = open_archive(store)
    _commit(archive, lambda state: label_point(state, label, None), "label", f"label {label} removed")
    return LabelReport(store.url, label, None, dict(archive.state.labels))


def _commit(archive: Archive, operation: Callable[[State], State], kind: OperationKind, summary: str) -> bool:
    """Commit an operation, and return whether it changed the state: a commit without a change makes no catalog."""
    before = archive.state.number
    archive.move(commit(archive.store, archive.committed, operation, Author(kind, "", summary)))
    return archive.state.number > before


def history(archive: Archive, limit: int | None = None, newest: int | None = None) -> list[HistoryRow]:
    """Return the newest `limit` rows of the history, or all of them, oldest first. Rows of catalogs that a sweep
    deleted come from the record that the sweep made of them; rows of other catalogs are read from the catalogs.

    `newest` is the number of the last catalog that counts, by default the archive's newest."""
    last = archive.state.number if newest is None else newest
    numbers = {number for number in list_catalogs(archive.store) if number <= last}
    recorded: dict[int, HistoryRow] = {}
    for values in archive.state.history.rows(*HistoryRow._fields):
        row = HistoryRow(*values)
        if row.catalog <= last:
            recorded[row.catalog] = row
    unrecorded = sorted(numbers - recorded.keys())
    if limit is not None:
        unrecorded = unrecorded[-limit:]  # each of them costs a request
    rows = [*recorded.values(), *read_history(archive.store, archive.info.id, unrecorded)]
    rows.sort()
    return rows if limit is None else rows[-limit:]
