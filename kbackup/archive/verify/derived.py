"""Partition indexes and group offset files against what follows from the catalog."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from kbackup.archive import layout
from kbackup.archive.catalog.documents import Catalog
from kbackup.archive.catalog.opening import far_numbers
from kbackup.archive.verify.catalog import Sizes, Survey
from kbackup.archive.verify.findings import REBUILD, Findings
from kbackup.store.base import Store

_THREADS = 16


def check_derived(
    store: Store, files: dict[str, bytes], sizes: Sizes, deep: bool, findings: Findings
) -> None:
    """Check derived files by their size, or by their bytes when `deep`."""
    same: list[str] = []
    for key, data in files.items():
        if key not in sizes:
            findings.add(key, "is missing", REBUILD)
        elif sizes[key] != len(data):
            findings.add(key, f"has {sizes[key]} bytes, not {len(data)}", REBUILD)
        else:
            same.append(key)

    def compare(key: str) -> None:
        with findings.catching(key):
            if store.get(key) != files[key]:
                what = "segments" if "/index_" in key else "groups"
                findings.add(key, f"is not what follows from the {what} of its topic", REBUILD)

    if deep:
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(compare, same))


def can_judge(store: Store, result: Survey) -> bool:
    """Return whether the derived files were written for the newest catalog, or for one with the same segments and
    restore points, and no other catalog was committed since."""
    if result.archive is None or result.archive.committed.catalog is None:
        return False
    newest = result.archive.committed.catalog
    written_for = result.catalogs.get(result.derived_for or 0)
    if written_for is None or _sources(written_for) != _sources(newest):
        return False
    listed = store.list(layout.CATALOG, layout.catalog_key(newest.number))
    later = {number for entry in listed if (number := layout.parse_catalog_key(entry.key)) is not None}
    return later == far_numbers(later, newest.number)


def _sources(catalog: Catalog) -> object:
    """The tables that the derived files follow from."""
    return catalog.tables.points, catalog.tables.segments, catalog.tables.log_starts
