"""archive.json: it marks a folder as an archive, and holds its id and a check of the encryption key."""

from __future__ import annotations

from kbackup.archive import layout
from kbackup.archive.models import USE_NEWER, ArchiveInfo, DocumentRef, document_ref, load
from kbackup.errors import CorruptError, MismatchError, NoArchiveError, NotFoundError, WrongKeyError
from kbackup.store.base import Store, encryption_of

ANOTHER_COPY = "take it from a bucket version or another copy of the archive"
REPAIR = f"{ANOTHER_COPY}, or run 'kbackup repair'"
KNOWN = {None, "kbackup-encryption-2"}
_FILES = 3
"""The newest files of `keys/`, which name the key that the archive is encrypted under."""


def checked_document(ref: DocumentRef, data: bytes) -> bytes:
    """Return the bytes that `ref` promises; `CorruptError` if `data` are others."""
    if document_ref(ref.key, data) != ref:
        raise CorruptError(f"file {ref.key} is not what its manifest says", REPAIR)
    return data


def check_encryption(store: Store, info: ArchiveInfo) -> None:
    """Raise `WrongKeyError` if a key is missing, or given for a plain archive. A wrong key shows in reading."""
    given = encryption_of(store)
    if given == info.encryption:
        return
    if info.encryption not in KNOWN:
        raise CorruptError(
            f"file {layout.ARCHIVE} says encryption {info.encryption!r}, which is not known here", USE_NEWER
        )
    if given is None:
        # Only here: the modules of encryption take long to import, and most archives that are opened need none.
        from kbackup.store.crypt.keyring import list_files, read_files

        newest_files = list_files(store)[-_FILES:]
        files, _ = read_files(store, newest_files, None)
        names = sorted({named.file.kek for named in files})
        under = f" under key {' or '.join(names)}" if names else ""
        raise WrongKeyError(
            f"archive {store.url} is encrypted{under}, and no key is given", "set encryption.key (or --encryption-key)"
        )
    raise WrongKeyError(
        f"archive {store.url} is not encrypted, but a key is given",
        "remove encryption.key, or make another archive: an archive is encrypted from its start or never",
    )


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


def check_archive_id(store: Store, expected: str | None, *, lost: bool = False) -> None:
    """Raise `MismatchError` if another archive is there than `expected`, or none. Without `expected` any may be there.
    `lost`: archive.json may be missing or damaged, for its repair."""
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
