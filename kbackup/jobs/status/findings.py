"""The findings of a status: each names what is wrong, and the command that shows or mends it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from kbackup.jobs.status.report import (
    LastDrill,
    LastVerification,
    LeaseStatus,
    NewestPoint,
    StatusFinding,
)
from kbackup.util.text import shorten
from kbackup.util.times import duration_text, rfc3339

_FOLLOWERS = ("kbackup backup --follow", "kbackup mirror")
_SKEW = timedelta(minutes=5)
_NAMED = 5


def age_findings(
    newest: NewestPoint | None, max_age: float, at: datetime, lease: LeaseStatus | None
) -> Iterator[StatusFinding]:
    """A follower that holds the lease makes no restore point while nothing is new: then the age is a warning."""
    if newest is None:
        yield StatusFinding("critical", "age", "the archive has no restore point", "kbackup backup")
        return
    point = f"the newest restore point, {newest.number}"
    if newest.committed_at > rfc3339(at + _SKEW):
        message = f"{point}, is of {newest.committed_at}, later than this machine's clock"
        yield StatusFinding("warning", "age", message, "kbackup list")
    if newest.age_seconds <= max_age:
        return
    message = (
        f"{point}, is {duration_text(newest.age_seconds)} old; backup.max_age is {duration_text(max_age)}"
    )
    if lease is not None and lease.state == "alive" and lease.command.startswith(_FOLLOWERS):
        message += (
            f"; {lease.command} on {lease.host} runs and found nothing new, or its rounds fail: see its log"
        )
        yield StatusFinding("warning", "age", message, "kbackup check")
    else:
        yield StatusFinding("critical", "age", message, "kbackup backup")


def loss_findings(losses: int, days: int) -> Iterator[StatusFinding]:
    if losses:
        noun = "loss" if losses == 1 else "losses"
        message = f"backups of the last {days} days found {losses:,} {noun} of records"
        yield StatusFinding("warning", "losses", message, "kbackup info")


def damage_findings(
    verifications: Sequence[LastVerification], damaged: Sequence[int], reports: Sequence[str]
) -> Iterator[StatusFinding]:
    """`verifications` are the newest of each scope, the newest first. A full one answers for all earlier ones.
    `reports` are the errors of damaged reports of verifications and drills."""
    for message in reports:
        yield StatusFinding("critical", "damage", message, "kbackup verify")
    for verification in verifications:
        mendable = verification.findings - verification.unmendable
        of = f"the {verification.scope} verification of {verification.ended_at} has"
        if mendable:
            message = f"{of} {_findings(mendable)}; repair the archive, then verify it again"
            command = "kbackup repair --read-data" if verification.need_read else "kbackup repair"
            yield StatusFinding("critical", "damage", message, command)
        if verification.unmendable:
            message = (
                f"{of} {_findings(verification.unmendable)} that no repair can mend, of restores, drills, "
                "verifications or mirrors; verify names the files: take each from another copy or delete it"
            )
            yield StatusFinding("critical", "damage", message, "kbackup verify")
        if verification.scope == "full":
            break
    if damaged:
        noun = "restore point lacks" if len(damaged) == 1 else "restore points lack"
        named = shorten([str(number) for number in damaged], _NAMED)
        message = f"{len(damaged):,} {noun} damaged segments: {named}"
        yield StatusFinding("warning", "damage", message, "kbackup list")


def _findings(count: int) -> str:
    return "1 finding" if count == 1 else f"{count:,} findings"


def drill_findings(drilled: LastDrill | None) -> Iterator[StatusFinding]:
    if drilled is not None and drilled.result == "failed":
        message = f"drill {drilled.id} failed: restore point {drilled.restore_point} may not be restorable"
        yield StatusFinding("critical", "drill", message, "kbackup drill")


def lease_findings(lease: LeaseStatus | None) -> Iterator[StatusFinding]:
    if lease is not None and lease.state == "dead":
        message = (
            f"{lease.command} on {lease.host} (pid {lease.pid}) began at {lease.acquired_at} and ended without "
            "releasing its lease; the next writer takes it over"
        )
        yield StatusFinding("warning", "lease", message, "kbackup unlock")
