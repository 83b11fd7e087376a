"""The commit of a repair, and the derived files that follow from it."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Any

from kbackup.archive import layout
from kbackup.archive.catalog.derived import derived_files
from kbackup.archive.catalog.documents import Derived, Latest, OpenRun
from kbackup.archive.catalog.run import WritingRun
from kbackup.archive.catalog.state import State
from kbackup.archive.models import dump
from kbackup.archive.reader import Archive
from kbackup.archive.repair.base import Base, load_whole
from kbackup.archive.verify.derived import check_derived
from kbackup.archive.verify.findings import Findings
from kbackup.errors import RefusedError
from kbackup.jobs.repair.report import Mended, RepairJob
from kbackup.util.times import now


def commit_repair(job: RepairJob, writing: WritingRun, base: Base, after: State) -> None:
    """Commit the state and close every other run, in one catalog; nothing is undone to one before it. A run that was
    open, or whose catalogs are lost, may have left segments: the repair's own stays open, and the next backup takes
    them over."""
    latest = load_whole(job.store, Latest, layout.LATEST)
    if base.committed.catalog is None and not base.lost and not after.restore_points:
        return
    if after is base.state and not base.lost and not base.past and base.committed.catalog is not None:
        if latest is None or latest.archive_id != after.archive_id:
            job.store.put(layout.LATEST, dump(Latest(archive_id=after.archive_id, number=after.number)))
            job.mended.append(Mended(layout.LATEST, "written anew"))
        return
    levels = after.isolation_levels
    run = OpenRun(
        run=writing.run,
        command="repair",
        host=socket.gethostname(),
        started_at=now(),
        isolation_level="read_uncommitted" if levels == {"read_uncommitted"} else "read_committed",
    )
    may_have_orphans = base.state.open_run is not None or not base.is_whole

    def operation(state: State) -> State:
        if state.number != base.state.number:
            raise RefusedError("the archive was changed during the repair", "run 'kbackup repair' again")
        open_run = run if may_have_orphans else None
        return replace(after, number=state.number, swept=state.number, open_run=open_run)

    writing.archive.move(base.committed)
    writing.commit(operation, "repair", _summary(job))


def _summary(job: RepairJob) -> str:
    parts = [
        f"{count} {what}"
        for count, what in (
            (len(job.losses), "losses"),
            (len(job.restored), "restore points listed again"),
            (len(job.new_points), "new restore points"),
        )
        if count
    ]
    return ", ".join(parts) or "the state of an earlier catalog"


def refresh_derived_files(job: RepairJob, archive: Archive) -> None:
    """Write the derived files that are not what follows from the catalog."""
    if archive.state.newest is None:
        return
    files, findings = derived_files(archive), Findings()
    check_derived(job.store, files, job.sizes, True, findings)
    stale = sorted(f.file for f in findings.entries)
    for key in stale:
        job.store.put(key, files[key])
    mark = load_whole(job.store, Derived, layout.DERIVED)
    if mark is None:
        stale.append(layout.DERIVED)
    job.mended += [Mended(key, "written anew") for key in stale]
    if mark is None or mark.catalog != archive.state.number:
        job.store.put(layout.DERIVED, dump(Derived(archive_id=archive.info.id, catalog=archive.state.number)))


def new_losses(before: State, after: State) -> list[dict[str, Any]]:
    known = {tuple(row.values()) for row in before.losses.dicts()}
    return [
        row for row in after.losses.dicts() if row["kind"] == "damaged" and tuple(row.values()) not in known
    ]


_SET_AGAIN = "set pins by 'kbackup keep', labels by 'kbackup label'"


def warnings_of(base: Base, restore_points: int) -> list[str]:
    if base.committed.catalog is None:
        if not restore_points and not base.lost:
            return []
        return [f"no catalog is left: pins, labels, log starts and the history are lost; {_SET_AGAIN}"]
    if not base.lost:
        return []
    number = base.committed.catalog.number
    return [
        f"lost or damaged catalogs after catalog {number}: {len(base.lost)}; pins and labels are as of catalog "
        f"{number}; {_SET_AGAIN}"
    ]
