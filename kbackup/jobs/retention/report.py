"""The options of an expiration, and what the job reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from kbackup.jobs.retention.policy import Policy


@dataclass(frozen=True)
class Expiry:
    """Options of an expiration.

    Expired are restore points that `policy` does not keep, and records older than `older_than`, counted back from the
    newest restore point. Orphans are deleted when `grace` is over. Records that a flow of a mirror has not applied
    are retained where the flow was active within `grace`, unless `ignore_mirrors`.
    """

    policy: Policy
    older_than: timedelta | None = None
    grace: timedelta = timedelta(days=1)
    ignore_mirrors: bool = False


@dataclass(frozen=True)
class PointFate:
    """Retained or expired restore point: `reasons` to retain it; none: it expires.

    `records` are retained, `records_gone` expire; None where the restore point itself expires.
    """

    number: int
    committed_at: str
    reasons: tuple[str, ...]
    records: int | None
    records_gone: int | None

    @property
    def stays(self) -> bool:
        return bool(self.reasons)


@dataclass(frozen=True)
class ExpireReport:
    """`confirmed`: it was done. `expiration` is the catalog that committed it, None where nothing expires.

    `records` and `segments` go, with `bytes` of objects that can be deleted from `deleted_from` on. `deleted` objects
    of `deleted_bytes` were deleted now; without `confirmed` nobody looked for orphans. `failed` maps the others to
    reasons. `unreadable` is a damaged catalog of the grace time: nothing is deleted before its time is over. `spared`
    topics keep all records: they are compacted, or their settings are not known. `mirrors` are the flows because of
    which records or restore points stay."""

    archive: str
    confirmed: bool
    expiration: int | None
    restore_points: tuple[PointFate, ...]
    records: int
    segments: int
    bytes: int
    before: str | None
    spared: tuple[str, ...]
    mirrors: tuple[str, ...]
    deleted_from: str | None
    deleted: int
    deleted_bytes: int
    unreadable: int | None
    failed: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class UndoReport:
    """`restore_points` are listed again; `catalog` committed it."""

    archive: str
    catalog: int
    restore_points: tuple[int, ...]
