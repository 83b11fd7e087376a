"""Read the newest reports of drills and verifications in an archive."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from kbackup.archive import layout
from kbackup.archive.models import load
from kbackup.errors import CorruptError
from kbackup.jobs.drill.stored import list_drills, read_report
from kbackup.jobs.status.report import LastDrill, LastVerification
from kbackup.jobs.verify.report import Verification, VerificationFinding
from kbackup.store.base import Store

_THREADS = 4
_BY_SIZE = re.compile(r"is missing|has [0-9]+ bytes, not ")


def age_at(moment: datetime, time: str) -> float:
    """Return the seconds from `time` (RFC 3339) to `moment`; 0 for a later time."""
    return max(0.0, (moment - datetime.fromisoformat(time)).total_seconds())


def newest_verifications(store: Store, moment: datetime) -> tuple[list[LastVerification], list[CorruptError]]:
    """Return the newest verification of each scope, the newest first, and the errors of damaged records."""
    newest: dict[str, str] = {}
    for entry in store.list(layout.VERIFICATIONS):
        parsed = layout.parse_verification_key(entry.key)
        if parsed is not None:
            newest[parsed[1]] = entry.key

    def read(key: str) -> LastVerification | CorruptError:
        try:
            record = load(Verification, store.get(key), key)
        except CorruptError as error:
            return error
        unnamed = max(0, record.finding_count - len(record.findings))
        return LastVerification(
            id=record.verification_id,
            scope=record.scope,
            ended_at=record.ended_at,
            age_seconds=age_at(moment, record.ended_at),
            findings=record.finding_count,
            need_read=sum(_needs_read(finding) for finding in record.findings) + unnamed,
            unmendable=sum(finding.file.startswith(layout.BESIDE) for finding in record.findings),
        )

    with ThreadPoolExecutor(_THREADS) as pool:
        read_now = list(pool.map(read, sorted(newest.values(), reverse=True)))
    whole = [each for each in read_now if isinstance(each, LastVerification)]
    return whole, [each for each in read_now if isinstance(each, CorruptError)]


def _needs_read(finding: VerificationFinding) -> bool:
    """Return whether a finding is of a segment whose files are there in their sizes."""
    place = layout.parse_topic_key(finding.file)
    is_segment = place is not None and layout.parse_segment(place[1]) is not None
    return is_segment and not _BY_SIZE.match(finding.message)


def newest_drill(state: Store, moment: datetime) -> LastDrill | None:
    """Return the drill whose report was stored last. `CorruptError` for a damaged report."""
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
