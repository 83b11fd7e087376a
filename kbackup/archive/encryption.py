"""Check that a store's encryption key fits the archive: a key where it is encrypted, none where it is not."""

from __future__ import annotations

from kbackup.archive import layout
from kbackup.archive.models import ArchiveInfo
from kbackup.errors import CorruptError, WrongKeyError
from kbackup.store.base import Store, encryption_of

KNOWN = {None, "kbackup-encryption-2"}
_FILES = 3


def check_encryption(store: Store, info: ArchiveInfo) -> None:
    """Raise `WrongKeyError` where a key is missing, or given for a plain archive. A wrong key shows in reading."""
    given = encryption_of(store)
    if given == info.encryption:
        return
    if info.encryption not in KNOWN:
        raise CorruptError(
            f"file {layout.ARCHIVE} says encryption {info.encryption!r}, which is not known here",
            "use the kbackup that wrote it, or a newer one",
        )
    if given is None:
        raise WrongKeyError(
            f"archive {store.url} is encrypted{_under(store)}, and no key is given",
            "set encryption.key (or --encryption-key)",
        )
    raise WrongKeyError(
        f"archive {store.url} is not encrypted, but a key is given",
        "remove encryption.key, or make another archive: an archive is encrypted from its start or never",
    )


def _under(store: Store) -> str:
    """Return the names of the keys that the archive is encrypted under, by the newest files of `keys/`."""
    from kbackup.store.crypt.key_files import list_files, read_files  # and what it takes to open them

    files, _ = read_files(store, list_files(store)[-_FILES:])
    names = sorted({named.file.kek for named in files})
    return f" under key {' or '.join(names)}" if names else ""
