"""Read the newest reports of drills and verifications in an archive."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from kbackup.archive import layout
from kbackup.archive.models import load
from kbackup.jobs.drill.stored import list_drills, read_report
from kbackup.jobs.status.report import LastDrill, LastVerification
from kbackup.jobs.verify.report import Verification
from kbackup.store.base import Store

_THREADS = 4


def age_at(moment: datetime, time: str) -> float:
    """Return the seconds from `time` (RFC 3339) to `moment`; 0 for a later time."""
    return max(0.0, (moment - datetime.fromisoformat(time)).total_seconds())


def newest_verifications(store: Store, moment: datetime) -> list[LastVerification]:
    """Return the newest verification of each scope, the newest first."""
    newest: dict[str, str] = {}
    for entry in store.list(layout.VERIFICATIONS):
        parsed = layout.parse_verification_key(entry.key)
        if parsed is not None:
            newest[parsed[1]] = entry.key

    def read(key: str) -> LastVerification:
        record = load(Verification, store.get(key), key)
        return LastVerification(
            id=record.verification_id,
            scope=record.scope,
            ended_at=record.ended_at,
            age_seconds=age_at(moment, record.ended_at),
            findings=record.finding_count,
        )

    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(read, sorted(newest.values(), reverse=True)))


def newest_drill(state: Store, moment: datetime) -> LastDrill | None:
    """Return the drill whose report was stored last."""
    drills = list_drills(state)
    if not drills:
        return None
    report = read_report(state, drills[0].drill_id)
    return LastDrill(
        id=report.drill_id,
        result=report.result,
        ended_at=report.ended_at,
        age_seconds=age_at(moment, report.ended_at),
        restore_point=report.restore_point,
    )
