"""The results of a verification: findings, which fail it, and notes, which do not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kbackup.archive import layout
from kbackup.archive.info import ANOTHER_COPY
from kbackup.archive.models import NewerError
from kbackup.archive.segments.table import Segment
from kbackup.errors import CorruptError, NotFoundError

REBUILD = "run kbackup repair --confirm for the Java tool, or wait for new records; kbackup does without it"
CHANGED = f"it was changed after it was written; {ANOTHER_COPY}"


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """`file` is a key of the archive's store."""

    file: str
    what: str
    hint: str


@dataclass(frozen=True, slots=True, order=True)
class Note:
    """Something worth knowing about a file of `bytes` that is no damage."""

    file: str
    what: str
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class ToRead:
    """A segment of which the records, the index or both are there in their sizes, to be read back."""

    segment: Segment
    records: bool = True
    index: bool = True


class Findings:
    """Collects; may be used by many threads."""

    def __init__(self) -> None:
        self.entries: set[Finding] = set()
        self.notes: set[Note] = set()

    def add(self, file: str, message: str, hint: str) -> None:
        self.entries.add(Finding(file, message, _beside(file) or hint))

    def note(self, file: str, message: str, size: int = 0) -> None:
        self.notes.add(Note(file, message, size))

    @contextmanager
    def catching(self, file: str, hint: str = "") -> Iterator[None]:
        """Damage that the block meets in `file` becomes a finding, and the block ends there. `hint` is what to do
        where it is missing."""
        try:
            yield
        except NotFoundError:
            self.add(file, "is missing", hint or ANOTHER_COPY)
        except CorruptError as error:
            self.entries.add(of_error(file, error))


def of_error(file: str, error: CorruptError) -> Finding:
    """The finding of an error, without the file's name in its text and a hint to do what is being done."""
    what = error.message.removeprefix("file ").removeprefix(file).lstrip(": ")
    hint = ANOTHER_COPY if "kbackup verify" in error.hint else error.hint
    return Finding(file, what, hint if isinstance(error, NewerError) else _beside(file) or hint)


def _beside(file: str) -> str:
    """Return what to do about a file that no restore point needs; '' for others."""
    if not file.startswith(layout.BESIDE):
        return ""
    folder = layout.folder_beside(file)
    if not folder and file.endswith(f"/{layout.STATUS}"):
        return f"delete {file}: the mirror writes it again"
    delete = f", or delete {folder}: no restore point needs it" if folder else ""
    return f"{ANOTHER_COPY}{delete}; 'kbackup repair' can't mend it"
