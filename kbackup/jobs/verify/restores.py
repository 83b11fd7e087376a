"""Check the files of restores and mirrors in an archive: plans, offset maps, reports, captures, and states of flows."""

from __future__ import annotations

import re
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from kbackup.archive import layout
from kbackup.archive.info import ANOTHER_COPY
from kbackup.archive.models import Document, load
from kbackup.archive.restores.flow_map.slots import DOCUMENT, FlowState
from kbackup.archive.restores.flow_map.tables import SCHEMA as MAP_SCHEMA
from kbackup.archive.restores.offset_map import MapPartName, decode, previous_of
from kbackup.archive.restores.plan import RestorePlan
from kbackup.archive.verify.findings import CHANGED, Findings
from kbackup.errors import NotFoundError
from kbackup.jobs.groups.before import GroupsBefore
from kbackup.jobs.mirror.status.document import FlowStatus
from kbackup.jobs.restore.report import RestoreReport
from kbackup.jobs.settings.before import SettingsBefore
from kbackup.store.base import Store

_THREADS = 16
_KEY = re.compile(r"restores/([^/]+)/(.+)")
_PART = re.compile(r"map/[0-9]+/[^/]+\.parquet")
_BESIDE = {layout.REPORT: (layout.PLAN, layout.OFFSETS), layout.OFFSETS: (layout.PLAN,)}
_DOCUMENTS: dict[str, type[Document]] = {
    r"plan\.json": RestorePlan,
    r"report\.json": RestoreReport,
    r"groups-before-[0-9]+\.json": GroupsBefore,
    r"settings-before-[0-9]+\.json": SettingsBefore,
}


def check_restores(store: Store, keys: Collection[str], archive_id: str, findings: Findings) -> None:
    """Every file by its own sum, and that it is in the folder of its restore; what must be there beside others."""
    for key in keys:
        folder, _, name = key.rpartition("/")
        for beside in _BESIDE.get(name, ()) if _KEY.fullmatch(key) else ():
            if f"{folder}/{beside}" not in keys:
                findings.add(f"{folder}/{beside}", f"is missing beside {name}", ANOTHER_COPY)
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(lambda key: _check(store, key, keys, archive_id, findings), keys))


def check_mirrors(store: Store, keys: Collection[str], findings: Findings) -> None:
    """Check every file of a flow by its own sum. A running mirror deletes the offset-map parts that it has folded."""

    def check(key: str) -> None:
        name = key.rpartition("/")[2]
        with findings.catching(key), suppress(NotFoundError):
            if name == layout.STATUS:
                load(FlowStatus, store.get(key), key)
            elif name == DOCUMENT:
                load(FlowState, store.get(key), key)
            elif name.endswith(".parquet"):
                decode(store.get(key), key, MAP_SCHEMA)
            else:
                findings.note(key, "is no file of a mirror")

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(check, (key for key in keys if key.startswith(layout.MIRRORS))))


def _check(store: Store, key: str, keys: Collection[str], archive_id: str, findings: Findings) -> None:
    found = _KEY.fullmatch(key)
    if found is None:
        return
    restore_id, name = found.groups()
    kind = next((kind for pattern, kind in _DOCUMENTS.items() if re.fullmatch(pattern, name)), None)
    with findings.catching(key):
        if kind is not None:
            _check_document(load(kind, store.get(key), key), key, restore_id, archive_id, findings)
        elif name == layout.OFFSETS:
            decode(store.get(key), key)
        elif _PART.fullmatch(name):
            _check_part(store, key, keys, findings)
        else:
            findings.note(key, "is no file of a restore")


def _check_part(store: Store, key: str, keys: Collection[str], findings: Findings) -> None:
    """A part, and that those are there which count where it does: the one before it, and where its attempt began."""
    folder, _, file = key.rpartition("/")
    name, previous = (
        MapPartName.parse(file.removesuffix(".parquet")),
        previous_of(decode(store.get(key), key)),
    )
    before = previous if name is None or name.number == 0 else MapPartName(name.attempt, name.number - 1)
    if before is not None and f"{folder}/{before}.parquet" not in keys:
        findings.add(f"{folder}/{before}.parquet", f"is missing before {file}", ANOTHER_COPY)


def _check_document(
    document: Document, key: str, restore_id: str, archive_id: str, findings: Findings
) -> None:
    owner = getattr(document, "restore_id", None)
    if owner != restore_id:
        findings.add(key, f"is of restore {owner}, not of the folder it is in", CHANGED)
    if isinstance(document, GroupsBefore | SettingsBefore) and not key.endswith(
        f"-before-{document.number}.json"
    ):
        findings.add(key, f"is number {document.number} of its kind", CHANGED)
    named = document.archive_id if isinstance(document, RestorePlan | RestoreReport) else ""
    if named and archive_id and named != archive_id:
        findings.add(key, f"is of a restore from archive {named}, this is {archive_id}", CHANGED)
