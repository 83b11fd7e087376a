"""Which limit on timestamps a target has, by the configs of its topic or its broker."""

from __future__ import annotations

import pytest

from kbackup.jobs.restore.preflight import _effective, _time_limit

DAY = "86400000"
NONE = str((1 << 63) - 1)


@pytest.mark.parametrize(
    ("defaults", "limit"),
    [
        ({}, (int(NONE), "after.max.ms")),
        ({"log.message.timestamp.after.max.ms": "3600000"}, (3_600_000, "after.max.ms")),
        ({"log.message.timestamp.difference.max.ms": DAY}, (int(DAY), "difference.max.ms")),
        (
            {"log.message.timestamp.difference.max.ms": DAY, "log.message.timestamp.after.max.ms": NONE},
            (int(DAY), "after.max.ms"),
        ),
        (
            {"log.message.timestamp.difference.max.ms": DAY, "log.message.timestamp.after.max.ms": "3600000"},
            (3_600_000, "after.max.ms"),
        ),
    ],
    ids=["none", "after", "before-3.6", "3.6-default", "3.6-both"],
)
def test_a_new_topic_has_the_limit_of_its_broker(defaults: dict[str, str], limit: tuple[int, str]) -> None:
    assert _time_limit(_effective({}, defaults), "after") == limit


def test_a_topics_own_limit_wins() -> None:
    broker = {"log.message.timestamp.before.max.ms": DAY}
    assert _time_limit(_effective({"message.timestamp.before.max.ms": "5"}, broker), "before").ms == 5


@pytest.mark.parametrize(
    ("defaults", "keep"),
    [
        ({}, None),
        ({"log.retention.hours": "168"}, "604800000"),
        ({"log.retention.hours": "168", "log.retention.minutes": "5"}, "300000"),
        ({"log.retention.minutes": "5", "log.retention.ms": "7"}, "7"),
        ({"log.retention.hours": "168", "log.retention.minutes": "-1"}, "-1"),
    ],
)
def test_a_new_topic_keeps_records_as_long_as_its_broker_says(defaults: dict[str, str], keep: str | None) -> None:
    assert _effective({}, defaults).get("retention.ms") == keep
    assert _effective({"retention.ms": "1"}, defaults)["retention.ms"] == "1"
