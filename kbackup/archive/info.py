"""Read archive.json."""

from __future__ import annotations

from kbackup.archive import layout
from kbackup.archive.encryption import check_encryption
from kbackup.archive.models import ArchiveInfo, load
from kbackup.errors import CorruptError, NoArchiveError, NotFoundError
from kbackup.store.base import Store

ANOTHER_COPY = "take it from a bucket version or another copy of the archive"
REPAIR = f"{ANOTHER_COPY}, or run 'kbackup repair'"


def read_info(store: Store) -> ArchiveInfo:
    """Read archive.json. Raises the errors of `open_archive`."""
    try:
        data = store.get(layout.ARCHIVE)
    except NotFoundError as error:
        if next(store.list(layout.CATALOG), None) is not None:
            raise CorruptError(
                f"file {layout.ARCHIVE} is missing at {store.url}, though there is a catalog", REPAIR
            ) from error
        raise NoArchiveError(
            f"there is no archive at {store.url}", "check the address, or make one with 'kbackup backup'"
        ) from error
    info = load(ArchiveInfo, data, layout.ARCHIVE)
    check_encryption(store, info)
    return info
