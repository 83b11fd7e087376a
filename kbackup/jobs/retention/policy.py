"""Which restore points a policy keeps: restic's rules. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Policy:
    """How many to keep: the last ones, and the newest one of each day, week (ISO), month and year in UTC that has any.
    `within` keeps all that are so much older than the newest, or younger; one of a clock that was ahead counts as of
    now. Nothing set keeps all."""

    last: int = 0
    daily: int = 0
    weekly: int = 0
    monthly: int = 0
    yearly: int = 0
    within: timedelta | None = None

    @property
    def keeps_all(self) -> bool:
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
    """By number why a restore point is kept; one that is in none is not. `moments` are in order of their numbers.

    The newest is kept whatever the policy says. As restic does it, the oldest is kept where a count is not used up, so
    that the past that is covered is as long as can be.
    """
    kept: dict[int, list[str]] = {}
    if not moments:
        return kept
    if policy.keeps_all:
        return {m.number: ["no policy"] for m in moments}
    newest, oldest = moments[-1], moments[0]
    for m in reversed(moments):
        if policy.within is not None and m.at >= min(newest.at, now) - policy.within:
            kept.setdefault(m.number, []).append("within")
    for name, bucket_of in _BUCKETS.items():
        left: int = getattr(policy, name)
        before: object = None
        for m in reversed(moments):
            bucket = bucket_of(m)
            if left and (bucket != before or m == oldest):
                kept.setdefault(m.number, []).append(name if bucket != before else f"oldest {name}")
                before, left = bucket, left - 1
    kept.setdefault(newest.number, ["newest"])
    return kept
