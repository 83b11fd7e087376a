"""Report of a verification, and its record in the archive: verifications/<id>/report.json."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Literal

from kbackup import __version__
from kbackup.archive import layout
from kbackup.archive.models import Document, Member, dump
from kbackup.archive.query.java import JAVA
from kbackup.archive.verify.findings import Finding, Note
from kbackup.store.base import Store
from kbackup.util.times import now

Scope = Literal["full", "quick", "partial"]
STORED_FINDINGS = 100
"""Findings that a record names; all are counted."""


@dataclass(frozen=True)
class VerifyReport:
    """`restore_points` are the numbers that were looked at; none for a folder of the Java tool. `read_records`
    and `read_bytes` are what was read back. `orphan_bytes` is the size of objects of no restore point."""

    archive: str
    archive_id: str
    deep: bool
    restore_points: tuple[int, ...]
    segments: int
    read_records: int
    read_bytes: int
    findings: tuple[Finding, ...]
    notes: tuple[Note, ...]
    orphan_bytes: int
    seconds: dict[str, float] = field(default_factory=dict)


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


def verification_of(report: VerifyReport, started_at: str, partial: bool) -> Verification:
    """Return the record of a verification that ends now. `partial`: it was of one restore point and those before."""
    scope: Scope = "partial" if partial else "full" if report.deep else "quick"
    time = started_at.replace(":", "-").replace(".", "-")
    return Verification(
        verification_id=f"{time}-{scope}-{uuid.uuid4().hex[:8]}",
        archive_id=report.archive_id,
        tool=f"kbackup {__version__}",
        scope=scope,
        started_at=started_at,
        ended_at=now(),
        restore_points=len(report.restore_points),
        newest=max(report.restore_points, default=None),
        segments=report.segments,
        read_records=report.read_records,
        read_bytes=report.read_bytes,
        finding_count=len(report.findings),
        findings=tuple(
            VerificationFinding(file=f.file, message=f.what, hint=f.hint) for f in report.findings[:STORED_FINDINGS]
        ),
        note_count=len(report.notes),
        orphan_bytes=report.orphan_bytes,
        seconds=report.seconds,
    )


def record_verification(store: Store, report: VerifyReport, started_at: str, *, partial: bool) -> None:
    """Store the record of a verification that has just ended. A folder of the Java tool, and an archive whose id can't
    be read, take none."""
    if report.archive_id not in ("", JAVA):
        record = verification_of(report, started_at, partial)
        store.put(layout.verification_key(record.verification_id), dump(record))
