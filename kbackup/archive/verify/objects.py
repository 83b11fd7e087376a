"""The objects that are there against those that restore points promise."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor

from kbackup.archive import layout
from kbackup.archive.info import ANOTHER_COPY
from kbackup.archive.segments.table import Segment
from kbackup.archive.verify.catalog import Sizes
from kbackup.archive.verify.findings import CHANGED, Findings, ToRead
from kbackup.store.base import Store

_THREADS = 32
_ROOT = {layout.ARCHIVE, layout.LOCK, layout.LATEST, layout.DERIVED}
_FOLDERS = (
    layout.RESTORES,
    layout.DRILLS,
    layout.VERIFICATIONS,
    layout.MIRRORS,
    layout.SCRATCH,
    layout.KEYS,
)
INDEX_HINT = f"{ANOTHER_COPY}, or run kbackup repair --confirm: it follows from the records file beside it"


def index_size(segment: Segment) -> int:
    return 1 + 24 * segment.count


def check_present(segments: Iterable[Segment], sizes: Sizes, findings: Findings) -> list[ToRead]:
    """Both files of every segment, by size; returns what there is to read of them."""
    to_read: list[ToRead] = []
    for segment in segments:
        index = layout.index_key_of(segment.key)
        item = ToRead(
            segment,
            _has(segment.key, segment.stored, sizes, ANOTHER_COPY, findings),
            _has(index, index_size(segment), sizes, INDEX_HINT, findings),
        )
        if item.records or item.index:
            to_read.append(item)
    return to_read


def _has(key: str, size: int, sizes: Sizes, hint: str, findings: Findings) -> bool:
    stored = sizes.get(key)
    if stored is None:
        findings.add(key, "is missing", hint)
    elif stored != size:
        findings.add(key, f"has {stored} bytes, not {size}", CHANGED)
    return stored == size


def check_stored_checksums(store: Store, items: Iterable[ToRead], findings: Findings) -> int:
    """Checksums that the store keeps against the tables'; returns how many it keeps none for."""
    expected = [(i.segment.key, i.segment.crc) for i in items if i.records]
    expected += [(layout.index_key_of(i.segment.key), i.segment.index_crc) for i in items if i.index]

    def compare(entry: tuple[str, str]) -> bool:
        key, due = entry
        with findings.catching(key):
            kept = store.checksum(key)
            if kept is None:
                return False
            if due and f"{kept:016x}" != due:
                findings.add(key, f"has checksum {kept:016x} in the store, not {due}", CHANGED)
        return True

    with ThreadPoolExecutor(_THREADS) as pool:
        return sum(not compared for compared in pool.map(compare, expected))


def note_orphans(sizes: Sizes, referred: Collection[str], whole: bool, findings: Findings) -> None:
    """Objects that no catalog refers to. They harm nobody, but take room until a sweep."""
    for key, size in sizes.items():
        if key in referred:
            continue
        if key.startswith((layout.TOPICS, layout.POINTS, layout.TABLES)):
            more = "" if whole else " that can be read"
            findings.note(key, f"is an orphan: no catalog{more} refers to it", size)
        elif not _is_ours(key):
            findings.note(key, "is not a file of an archive", size)


def _is_ours(key: str) -> bool:
    return key in _ROOT or layout.parse_catalog_key(key) is not None or key.startswith(_FOLDERS)
