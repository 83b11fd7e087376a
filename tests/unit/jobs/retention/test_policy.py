"""Compare the restore points that a policy retains with restic's rules by brute force."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from kbackup.jobs.retention import Moment, Policy, moment, reasons

EPOCH = datetime(2025, 11, 20, tzinfo=UTC)
LATER = datetime(2030, 1, 1, tzinfo=UTC)
LABELS: dict[str, Callable[[Moment], str]] = {
    "last": lambda m: str(m.number),
    "daily": lambda m: m.at.strftime("%Y-%m-%d"),
    "weekly": lambda m: m.at.strftime("%G-%V"),
    "monthly": lambda m: m.at.strftime("%Y-%m"),
    "yearly": lambda m: m.at.strftime("%Y"),
}


def brute(policy: Policy, moments: list[Moment], now: datetime) -> set[int]:
    """Of the last n periods that have any, the newest; the oldest of all where fewer than n were found."""
    kept = {moments[-1].number}
    for name, label in LABELS.items():
        newest: dict[str, int] = {}
        for m in moments:
            newest[label(m)] = m.number
        some = sorted(newest.values(), reverse=True)
        count = getattr(policy, name)
        kept |= set(some[:count])
        if count > len(some):
            kept.add(moments[0].number)
    if policy.within is not None:
        kept |= {m.number for m in moments if min(moments[-1].at, now) - m.at <= policy.within}
    return kept


counts = st.integers(0, 4)


@given(
    st.lists(st.integers(0, 24 * 800), min_size=1, max_size=30).map(sorted),
    st.builds(
        Policy,
        counts,
        counts,
        counts,
        counts,
        counts,
        st.none() | st.integers(0, 100).map(lambda d: timedelta(d)),
    ),
    st.integers(0, 1000),
)
def test_policy_agrees_with_brute_force(hours: list[int], policy: Policy, today: int) -> None:
    now = EPOCH + timedelta(days=today)
    moments = [Moment(n, EPOCH + timedelta(hours=hour)) for n, hour in enumerate(hours, 1)]
    kept = reasons(policy, moments, now)
    expected = {m.number for m in moments} if policy.is_empty else brute(policy, moments, now)
    assert set(kept) == expected
    assert all(kept.values())
    assert moments[-1].number in kept, "the newest stays in any case"


def test_each_says_why() -> None:
    days = [moment(n, f"2026-01-{n:02}T23:30:00.000+01:00") for n in range(1, 15)]
    kept = reasons(Policy(last=1, daily=2, weekly=2, within=timedelta(days=2)), days, LATER)
    assert kept == {
        14: ["within", "last", "daily", "weekly"],
        13: ["within", "daily"],
        12: ["within"],
        11: ["weekly"],
    }
    assert reasons(Policy(yearly=3), days, LATER) == {14: ["yearly"], 1: ["oldest yearly"]}
    assert reasons(Policy(), days[:2], LATER) == {1: ["no policy"], 2: ["no policy"]}
    assert reasons(Policy(last=1), [], LATER) == {}


def test_clocks_that_went_back_keep_more_not_less() -> None:
    days = [3, 1, 2]
    moments = [Moment(n, EPOCH + timedelta(days=d)) for n, d in enumerate(days, 1)]
    kept = reasons(Policy(daily=3), moments, LATER)
    assert set(kept) == {1, 2, 3}


def test_a_clock_that_was_ahead_once_takes_nothing_from_within() -> None:
    """The newest restore point is of ten years from now: what is of the last week is of the last week all the same."""
    today = EPOCH + timedelta(days=10)
    moments = [Moment(n, EPOCH + timedelta(days=n)) for n in range(1, 10)]
    moments.append(Moment(10, today + timedelta(days=3650)))
    kept = reasons(Policy(within=timedelta(days=7)), moments, today)
    assert set(kept) == set(range(3, 11))
