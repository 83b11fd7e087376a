"""The files of flows in an archive, checked by `kbackup verify`: status, lock, offset-map parts."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from kbackup.archive import layout
from kbackup.archive.lease import read_lease
from kbackup.archive.models import load
from kbackup.archive.restores.offset_map import decode
from kbackup.archive.verify.findings import Findings
from kbackup.errors import NotFoundError
from kbackup.mirror.flow import FlowStatus
from kbackup.mirror.flow_map import DOCUMENT, MAP_SCHEMA, FlowState
from kbackup.store.base import Store
from kbackup.util.system import in_threads


def check_files(store: Store, keys: Collection[str], findings: Findings) -> None:
    """Check every file of a flow by its own sum. `keys` are all of the archive.

    A running mirror deletes the offset-map parts that it has folded, so that a file may be gone when it is read.
    """

    def check(key: str) -> None:
        name = key.rpartition("/")[2]
        with findings.catching(key), suppress(NotFoundError):
            if name == layout.STATUS:
                load(FlowStatus, store.get(key), key)
            elif name == DOCUMENT:
                load(FlowState, store.get(key), key)
            elif name == layout.LOCK:
                read_lease(store, key)
            elif name.endswith(".parquet"):
                decode(store.get(key), key, MAP_SCHEMA)
            else:
                findings.note(key, "is no file of a mirror")

    in_threads(check, (key for key in keys if key.startswith(layout.MIRRORS)))
