"""Select the restore points that a policy keeps, by restic's rules. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Policy:
    """Numbers of restore points to keep.

    `last` counts the newest ones; `daily` to `yearly` count the newest one of each day, week (ISO), month and year in
    UTC. `within` keeps all that are at most so much older than the newest; a time in the future counts as now. A
    policy without numbers keeps all.
    """

    last: int = 0
    daily: int = 0
    weekly: int = 0
    monthly: int = 0
    yearly: int = 0
    within: timedelta | None = None

    @property
    def is_empty(self) -> bool:
        return self == Policy()


class Moment(NamedTuple):
    number: int
    at: datetime


_Bucket = Callable[[Moment], object]
_BUCKETS: dict[str, _Bucket] = {
    "last": lambda m: m.number,
    "daily": lambda m: m.at.date(),
    "weekly": lambda m: m.at.isocalendar()[:2],
    "monthly": lambda m: (m.at.year, m.at.month),
    "yearly": lambda m: m.at.year,
}


def moment(number: int, committed_at: str) -> Moment:
    return Moment(number, datetime.fromisoformat(committed_at).astimezone(UTC))


def reasons(policy: Policy, moments: Sequence[Moment], now: datetime) -> dict[int, list[str]]:
    """Return the reasons to keep each restore point, by number; the others expire. `moments` are sorted by number.

    The newest restore point is always kept. As with restic, the oldest is kept where a count is not used up, so that
    restore points reach back as far as possible.
    """
    kept: dict[int, list[str]] = {}
    if not moments:
        return kept
    if policy.is_empty:
        return {m.number: ["no policy"] for m in moments}
    newest, oldest = moments[-1], moments[0]
    for m in reversed(moments):
        if policy.within is not None and m.at >= min(newest.at, now) - policy.within:
            kept.setdefault(m.number, []).append("within")
    for name, bucket_of in _BUCKETS.items():
        remaining: int = getattr(policy, name)
        before: object = None
        for m in reversed(moments):
            bucket = bucket_of(m)
            if remaining and (bucket != before or m == oldest):
                kept.setdefault(m.number, []).append(name if bucket != before else f"oldest {name}")
                before, remaining = bucket, remaining - 1
    kept.setdefault(newest.number, ["newest"])
    return kept
