"""kbackup: backups of Apache Kafka in object storage, and the way back.

What programs use is here, see `kbackup.library`; it is loaded at its first use, so that the command starts at once."""

from typing import TYPE_CHECKING

from kbackup import errors

if TYPE_CHECKING:
    from kbackup.library import BackupSettings, RestoreSettings, backup, restore, status, to_dict, verify
    from kbackup.library.reading import ArchiveReader, Record, RestorePoint, open_archive

__version__ = "0.2.0"
__all__ = [
    "ArchiveReader",
    "BackupSettings",
    "Record",
    "RestorePoint",
    "RestoreSettings",
    "backup",
    "errors",
    "open_archive",
    "restore",
    "status",
    "to_dict",
    "verify",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kbackup import library

    if hasattr(library, name):
        return getattr(library, name)
    from kbackup.library import reading

    return getattr(reading, name)
