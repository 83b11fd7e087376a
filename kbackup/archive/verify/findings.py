"""The results of a verification: findings, which fail it, and notes, which do not; and the check of one segment."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

from kbackup.archive import layout
from kbackup.archive.identity import ANOTHER_COPY
from kbackup.archive.models import Document, Member, NewerError
from kbackup.archive.segments.read import read_index, read_records
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.writer import greatest, least
from kbackup.errors import CorruptError, NotFoundError
from kbackup.formats.index import SegmentIndex
from kbackup.store.base import Store
from kbackup.types import RecordBlock

Scope = Literal["full", "quick", "partial"]
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


class Findings:
    """The findings and notes of a verification, each once. Many threads may add to them."""

    def __init__(self) -> None:
        self.entries: set[Finding] = set()
        self.notes: set[Note] = set()

    def add(self, file: str, message: str, hint: str) -> None:
        self.entries.add(Finding(file, message, _beside(file) or hint))

    def note(self, file: str, message: str, size: int = 0) -> None:
        self.notes.add(Note(file, message, size))

    @contextmanager
    def catching(self, file: str) -> Iterator[None]:
        """Make damage that the block meets in `file` a finding. The block ends there, and the verification goes on."""
        try:
            yield
        except NotFoundError:
            self.add(file, "is missing", ANOTHER_COPY)
        except CorruptError as error:
            self.entries.add(of_error(file, error))


def of_error(file: str, error: CorruptError) -> Finding:
    """Return the finding of an error, without the file's name in its text and a hint to do what is being done."""
    what = error.message.removeprefix("file ").removeprefix(file).lstrip(": ")
    hint = ANOTHER_COPY if "kbackup verify" in error.hint else error.hint
    # A newer version can read the file: nobody should delete it, though no restore point needs it.
    if not isinstance(error, NewerError):
        hint = _beside(file) or hint
    return Finding(file, what, hint)


def _beside(file: str) -> str:
    """Return what to do about a file that no restore point needs; '' for others."""
    if not file.startswith(layout.BESIDE):
        return ""
    folder = layout.folder_beside(file)
    if not folder and file.endswith(f"/{layout.STATUS}"):
        return f"delete {file}: the mirror writes it again"
    delete = f", or delete {folder}: no restore point needs it" if folder else ""
    return f"{ANOTHER_COPY}{delete}; 'kbackup repair' can't mend it"


# One segment read back: every byte, against checksum, index and descriptor.


@dataclass(frozen=True, slots=True)
class SegmentResult:
    """The `records` and `bytes` of a segment that were read, and what is wrong with it."""

    records: int
    bytes: int
    findings: tuple[Finding, ...]


def check_segment(store: Store, segment: Segment, lacking: Collection[str] = ()) -> SegmentResult:
    """Read back index and records of a segment, each on its own and unless its object is `lacking`: if the index is
    damaged, the records are walked without it. The segment's descriptor is compared with what was read."""
    findings = Findings()
    index_key = layout.index_key_of(segment.key)
    index: SegmentIndex | None = None
    if index_key not in lacking:
        with findings.catching(index_key):
            index = read_index(store, segment)
    seen = replace(segment, count=0, first=0, last=-1, bytes=1, min_timestamp=None, max_timestamp=None, largest=0)
    if segment.key not in lacking:
        with findings.catching(segment.key):
            for block in read_records(store, segment, index):
                seen = _with_block(seen, block)
            _compare(segment, seen, findings)
    return SegmentResult(seen.count, seen.bytes, tuple(sorted(findings.entries)))


def _with_block(seen: Segment, block: RecordBlock) -> Segment:
    """Return the descriptor of the records that were read, with one more block."""
    return replace(
        seen,
        count=seen.count + len(block),
        first=seen.first if seen.count else int(block.offsets[0]),
        last=int(block.offsets[-1]),
        bytes=seen.bytes + block.nbytes,
        largest=max(seen.largest, block.largest),
        min_timestamp=least(seen.min_timestamp, block.min_timestamp),
        max_timestamp=greatest(seen.max_timestamp, block.max_timestamp),
    )


def _compare(segment: Segment, seen: Segment, findings: Findings) -> None:
    """Add a finding for each field of a descriptor that differs from `seen`, the descriptor of what was read."""
    names = ["count", "first", "last", "bytes", "largest"]
    if segment.crc:  # a descriptor without a checksum is made from a Java tool's index, which knows no timestamps
        names += ["min_timestamp", "max_timestamp"]
    for name in names:
        promised = getattr(segment, name)
        actual = getattr(seen, name)
        if promised != actual:
            what = f"has {name.replace('_', ' ')} {actual}, its restore point says {promised}"
            findings.add(segment.key, what, CHANGED)


# The record of a verification in its archive.


class VerificationFinding(Member, frozen=True, kw_only=True):
    """A finding about the object with the key `file`."""

    file: str
    message: str
    hint: str


class Verification(Document, frozen=True, kw_only=True):
    """verifications/<id>/report.json: the result of one `kbackup verify` of this archive.

    `scope` is 'full' (every record of every restore point was read back), 'quick' (sizes and stored checksums) or
    'partial' (up to one restore point). `restore_points` counts the verified restore points, `newest` is the newest of
    them. `findings` are the first ones of `finding_count`. `seconds` is the time of each phase.
    """

    format: Literal["kbackup-verification"] = "kbackup-verification"
    verification_id: str
    archive_id: str
    tool: str
    scope: Scope
    started_at: str
    ended_at: str
    restore_points: int
    newest: int | None
    segments: int
    read_records: int
    read_bytes: int
    finding_count: int
    findings: tuple[VerificationFinding, ...]
    note_count: int
    orphan_bytes: int
    seconds: dict[str, float]
