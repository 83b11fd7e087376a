"""Check that an archive is the one that the user expects (`archive_id`)."""

from __future__ import annotations

from kbackup.archive import layout
from kbackup.archive.models import ArchiveInfo, load
from kbackup.errors import CorruptError, MismatchError, NotFoundError
from kbackup.store.base import Store


def check_archive_id(store: Store, expected: str | None, *, lost: bool = False) -> None:
    """Raise `MismatchError` where another archive is there than `expected`, or none; nothing expects any. `lost`:
    archive.json may be missing or damaged, for its repair."""
    if not expected:
        return
    try:
        archive_id = load(ArchiveInfo, store.get(layout.ARCHIVE), layout.ARCHIVE).id
    except (NotFoundError, CorruptError) as error:
        if lost:
            return
        if isinstance(error, CorruptError):
            raise
        raise MismatchError(
            f"there is no archive at {store.url}, and archive_id expects {expected}",
            "check the address; remove archive_id to make another archive there",
        ) from None
    if archive_id != expected:
        raise MismatchError(
            f"the archive at {store.url} is {archive_id}, and archive_id expects {expected}",
            "find out who put it there; set archive_id to its id if it is the one that you mean",
        )
