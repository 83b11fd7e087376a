"""The first byte of every binary file of the format, and the words in which damage is reported."""

from __future__ import annotations

from kbackup.errors import CorruptError
from kbackup.types import Bytes

Buffer = bytes | bytearray | memoryview | Bytes

MAGIC = 1
MAGIC_BYTE = bytes([MAGIC])

DAMAGED = "take the file from another copy of the archive: it is damaged, or another program wrote it"


def corrupt(name: str, at: int, damage: str, hint: str = DAMAGED) -> CorruptError:
    """Return the error for byte `at` (0 is the file's first) of the file `name`."""
    return CorruptError(f"{name} at byte {at}: {damage}", hint)


def check_magic(first: int | None, name: str) -> None:
    """Refuse a file whose first byte (None: an empty file) is not the version that we know."""
    if first is None:
        raise corrupt(name, 0, "the file is empty, without even its magic byte")
    if first != MAGIC:
        raise corrupt(
            name,
            0,
            f"magic byte 0x{first:02x} where 0x{MAGIC:02x} is known",
            "use a newer kbackup: it is another version of the format, or not a backup file",
        )
