"""The status of an archive in one line."""

from __future__ import annotations

from kbackup.cli.common.human import human_size, plural
from kbackup.jobs.status.report import ArchiveStatus, LastVerification
from kbackup.util.times import duration_text


def summary(status: ArchiveStatus) -> str:
    """Return the figures in one line, whether or not they are findings."""
    newest, drill, lease, growth = status.newest, status.drilled, status.lease, status.growth
    point = (
        f"restore point {newest.number} is {duration_text(newest.age_seconds)} old"
        if newest
        else "no restore point"
    )
    parts = [
        point,
        plural(status.losses, "loss") if status.losses == 1 else f"{status.losses:,} losses",
        _verified(status.verified),
        f"drill {drill.result} {duration_text(drill.age_seconds)} ago" if drill else "no drill",
        f"{human_size(growth.stored_bytes)} added in {growth.days} days",
    ]
    if lease is not None and lease.state == "alive":
        parts.append(f"{lease.command} runs on {lease.host}")
    return "; ".join(parts)


def _verified(verified: LastVerification | None) -> str:
    if verified is None:
        return "never verified"
    findings = plural(verified.findings, "finding") if verified.findings else "no findings"
    return f"verified ({verified.scope}) {duration_text(verified.age_seconds)} ago, {findings}"
