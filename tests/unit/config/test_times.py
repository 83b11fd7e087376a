"""Times as people write them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from datetime import time as clock_time
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kbackup.config.times import (
    FutureTimeError,
    absolute_text,
    moment_of,
    named_zone,
    not_a_time,
    parse_time,
    shown_time,
)
from kbackup.errors import UsageError

NOW = 1_700_000_000_500
"""2023-11-14T22:13:20.500Z, a Tuesday; in Berlin 23:13, in Tokyo Wednesday 07:13."""
BERLIN, TOKYO = ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Tokyo")
NAMES = ("UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/St_Johns", "Asia/Kathmandu")
ZONES = [ZoneInfo(name) for name in NAMES]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


@pytest.fixture
def tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine in Tokyo."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("text", "down", "up"),
    [
        ("1970-01-01T00:00:00Z", 0, 0),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000, 1_700_000_000_000),
        ("2023-11-14t22:13:20z", 1_700_000_000_000, 1_700_000_000_000),
        ("2023-11-14 23:13:20+01:00", 1_700_000_000_000, 1_700_000_000_000),
        ("2023-11-14T16:43:20.25-05:30", 1_700_000_000_250, 1_700_000_000_250),
        ("2023-11-14T22:13:20.0009Z", 1_700_000_000_000, 1_700_000_000_001),
        ("2023-11-14T22:13:20.123000000001Z", 1_700_000_000_123, 1_700_000_000_124),
        ("9999-12-31T23:59:59Z", 253_402_300_799_000, 253_402_300_799_000),
        ("1700000000000", 1_700_000_000_000, 1_700_000_000_000),
        (" 0 ", 0, 0),
        ("9223372036854775807", 2**63 - 1, 2**63 - 1),
        ("now", NOW, NOW),
        ("2h ago", NOW - 7_200_000, NOW - 7_200_000),
        ("2 hours ago", NOW - 7_200_000, NOW - 7_200_000),
        ("1h30m ago", NOW - 5_400_000, NOW - 5_400_000),
        ("1 hour 30 minutes ago", NOW - 5_400_000, NOW - 5_400_000),
        ("an hour ago", NOW - 3_600_000, NOW - 3_600_000),
        ("2 weeks ago", NOW - 14 * 86_400_000, NOW - 14 * 86_400_000),
        ("1.5m ago", NOW - 90_000, NOW - 90_000),
        ("250 ms ago", NOW - 250, NOW - 250),
        ("100000d ago", 0, 0),
    ],
)
def test_a_time_between_two_milliseconds_is_rounded_down_or_up(text: str, down: int, up: int) -> None:
    assert (parse_time(text, NOW), parse_time(text, NOW, up=True)) == (down, up)


@pytest.mark.parametrize(
    ("text", "in_berlin"),
    [
        ("14:05", "2023-11-14T14:05:00+01:00"),
        ("9:05", "2023-11-14T09:05:00+01:00"),
        ("14:05:30.250", "2023-11-14T14:05:30.250+01:00"),
        ("today 14:05", "2023-11-14T14:05:00+01:00"),
        ("14:05 yesterday", "2023-11-13T14:05:00+01:00"),
        ("Yesterday at 14:05", "2023-11-13T14:05:00+01:00"),
        ("yesterday 23:30", "2023-11-13T23:30:00+01:00"),
        ("2023-11-01 14:05", "2023-11-01T14:05:00+01:00"),
        ("2023-7-1 14:05", "2023-07-01T14:05:00+02:00"),
        ("2023-07-01T14:05", "2023-07-01T14:05:00+02:00"),
        # a zone of its own decides which day is today
        ("14:05Z", "2023-11-14T14:05:00+00:00"),
        ("14:05 UTC", "2023-11-14T14:05:00+00:00"),
        ("7:00 +09:00", "2023-11-15T07:00:00+09:00"),
        ("yesterday 23:00+0900", "2023-11-14T23:00:00+09:00"),
        ("2023-11-01 14:05-05", "2023-11-01T14:05:00-05:00"),
    ],
)
def test_a_time_without_a_zone_is_by_the_clock_of_the_zone(text: str, in_berlin: str) -> None:
    assert parse_time(text, NOW, zone=BERLIN) == ms(in_berlin)
    assert absolute_text(text, NOW, BERLIN) in (text, in_berlin.replace("+00:00", "Z"))


def test_without_a_zone_the_clock_of_this_machine_counts(tokyo: None) -> None:
    assert parse_time("7:05", NOW) == ms("2023-11-15T07:05:00+09:00")
    assert parse_time("yesterday 7:05", NOW) == ms("2023-11-14T07:05:00+09:00")
    assert absolute_text("2023-11-01 14:05", NOW) == "2023-11-01T14:05:00+09:00"
    assert shown_time(NOW) == "2023-11-14T22:13:20.500Z (2023-11-15 07:13:20 +09:00 by this machine's clock)"


@pytest.mark.parametrize(
    ("text", "yesterday"),
    [("23:14", "yesterday 23:14"), ("today 23:59", "yesterday 23:59"), ("23:14 +01:00", "yesterday 23:14 +01:00")],
)
def test_a_time_of_today_that_is_to_come_is_never_taken_for_yesterdays(text: str, yesterday: str) -> None:
    with pytest.raises(FutureTimeError) as raised:
        parse_time(text, NOW, zone=BERLIN)
    told = not_a_time(f"--to-time {text}", raised.value)
    assert told.message == f"--to-time {text} is still to come today"
    assert told.hint == f"for the day before, give '{yesterday}'"
    assert parse_time(yesterday, NOW, zone=BERLIN) < NOW


def test_the_minute_of_now_is_not_to_come() -> None:
    assert parse_time("23:13", NOW, zone=BERLIN) <= NOW


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2026-13-45", "there is no month 13 and no day 45"),
        ("2026-13-01 14:05", "there is no month 13"),
        ("2026-00-10 14:05", "there is no month 00"),
        ("2026-02-30 14:05", "there is no day 30 in February 2026"),
        ("2026-02-29T00:00:00Z", "there is no day 29 in February 2026"),
        ("25:00", "there is no hour 25"),
        ("yesterday 14:60", "there is no minute 60"),
        ("2026-01-31T14:05:60Z", "there is no second 60"),
        ("2026-01-31T24:61:61Z", "there is no hour 24 and no minute 61 and no second 61"),
        ("2026-01-31T14:05:00+25:00", "there is no zone +25:00"),
        ("2026-01-31T14:05:00+01:75", "there is no zone +01:75"),
        ("1969-12-31T23:59:59Z", "there is no time of a record in 1969"),
        ("2026-01-31", "it has no time of day; give '2026-01-31 00:00'"),
        ("yesterday", "it has no time of day; give 'yesterday 00:00'"),
        ("1700000000", "in milliseconds it is 1700000000000"),
        ("20260131", "if it is a date, give 2026-01-31"),
        ("31.01.2026 14:05", "a date is year-month-day"),
        ("2:05 pm", "hours go from 0 to 23"),
        ("2026-01-31 14:05 CET", "an offset such as +01:00, or --tz Europe/Berlin"),
        ("2026-01-31 14:05 Asia/Tokyo", "or --tz Asia/Tokyo"),
        ("2h", "a duration needs 'ago': '2h ago'"),
        ("1h30 ago", "'1h30' is not a duration"),
        ("2 months ago", "months and years differ in length"),
        ("tomorrow 14:05", "the words are 'now', 'today 14:05'"),
        ("14:05:", "it has no form of a time"),
    ],
)
def test_a_wrong_time_says_which_part_is_wrong(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        parse_time(text, NOW)


@pytest.mark.parametrize(
    "text",
    [
        *("", "2h", "ago", "2 fortnights ago", "-5", "1e3", "٣", "9223372036854775808", "99999999999999999999"),
        *(
            "20231114T221320Z",
            "2023-11-14T22:13:20Z\n2",
            "14:\u06605",
            "\u0662\u0660\u0662\u0663-11-14 10:00",
            "14.05",
            "yesterday today 1:00",
        ),
    ],
)
def test_a_text_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_time(text, NOW)


def test_an_hour_that_clocks_repeat_is_refused_with_both_readings() -> None:
    with pytest.raises(ValueError) as raised:
        parse_time("2023-10-29 02:30", NOW, zone=BERLIN)
    assert str(raised.value) == (
        "02:30:00 is twice on 2023-10-29 in Europe/Berlin, as clocks go back: "
        "it is 2023-10-29T02:30:00+02:00 or 2023-10-29T02:30:00+01:00"
    )


def test_an_hour_that_clocks_skip_is_refused_with_both_readings() -> None:
    with pytest.raises(ValueError) as raised:
        parse_time("2023-03-26 02:30", NOW, zone=BERLIN)
    assert str(raised.value) == (
        "02:30:00 is skipped on 2023-03-26 in Europe/Berlin, as clocks go forward: "
        "give 2023-03-26T01:30:00+01:00 or 2023-03-26T03:30:00+02:00"
    )


def test_a_change_of_this_machines_clocks_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Europe/Berlin")
        time.tzset()
        with pytest.raises(ValueError, match="by this machine's clock, as clocks go back"):
            parse_time("2023-10-29 02:30", NOW)
        with pytest.raises(ValueError, match="by this machine's clock, as clocks go forward"):
            parse_time("2023-03-26 02:30", NOW)
    time.tzset()


def test_an_unknown_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="Berlin is not a time zone; give one such as Europe/Berlin or UTC"):
        named_zone("Berlin")


def test_a_time_is_shown_in_utc_and_by_the_clock_of_its_zone() -> None:
    assert shown_time(NOW, BERLIN) == "2023-11-14T22:13:20.500Z (2023-11-14 23:13:20 +01:00 in Europe/Berlin)"
    assert shown_time(NOW, UTC) == "2023-11-14T22:13:20.500Z"
    assert shown_time(2**63 - 1, BERLIN) == f"{2**63 - 1} ms"


def test_a_datetime_needs_a_zone() -> None:
    assert moment_of("to_time", datetime.fromtimestamp(NOW / 1000, TOKYO)) == NOW
    with pytest.raises(UsageError, match="has no zone"):
        moment_of("to_time", datetime(2026, 1, 31, 14, 5))


@given(st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31)).map(lambda t: t.replace(tzinfo=UTC)))
def test_times_in_microseconds_lie_between_their_milliseconds(moment: datetime) -> None:
    micros = (moment - EPOCH).total_seconds()
    down, up = (parse_time(moment.isoformat(), NOW, up=up) for up in (False, True))
    exact = moment.microsecond % 1000 == 0
    assert up - down == (0 if exact else 1)
    assert down / 1000 <= micros + 1e-4
    assert up / 1000 >= micros - 1e-4


@given(
    st.datetimes(datetime(1975, 1, 2), datetime(2037, 12, 30)),
    st.sampled_from(ZONES),
    st.sampled_from(["%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d at %H:%M"]),
)
def test_a_local_time_means_the_one_moment_at_which_clocks_show_it_or_is_refused(
    local: datetime, zone: ZoneInfo, form: str
) -> None:
    """Every moment around is asked what clocks show then: this knows nothing of offsets and folds."""
    text = local.strftime(form)
    shown = datetime.strptime(text, form)
    around = shown.replace(tzinfo=UTC)
    offsets = {(around + timedelta(hours=hours)).astimezone(zone).utcoffset() for hours in range(-30, 31)}
    moments = [around - offset for offset in offsets if offset is not None]
    meant = [moment for moment in moments if moment.astimezone(zone).replace(tzinfo=None) == shown]
    if len(meant) != 1:
        with pytest.raises(ValueError, match="as clocks go"):
            parse_time(text, NOW, zone=zone)
        return
    assert parse_time(text, NOW, zone=zone) == int((meant[0] - EPOCH).total_seconds()) * 1000


@given(st.times(), st.sampled_from(ZONES), st.integers(ms("1975-01-03T00:00:00Z"), ms("2037-12-30T00:00:00Z")))
def test_a_time_of_day_is_of_today_and_not_to_come(clock: clock_time, zone: ZoneInfo, now: int) -> None:
    text = clock.strftime("%H:%M")
    today = (EPOCH + timedelta(milliseconds=now)).astimezone(zone).date()
    try:
        moment = parse_time(text, now, zone=zone)
    except ValueError:
        return  # later today, or clocks change at that time
    assert moment <= now
    there = (EPOCH + timedelta(milliseconds=moment)).astimezone(zone)
    assert (there.date(), there.strftime("%H:%M")) == (today, text)


ANY_TEXT = (
    st.from_regex(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})")
    | st.from_regex(r"((today|yesterday|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}) )?[0-9]{1,2}:[0-9]{2}( ?(Z|UTC|[+-][0-9]{4}))?")
    | st.from_regex(r"[0-9]{1,400}(\.[0-9])? ?(ms|s|m|hours|days|weeks)?( [0-9]+ minutes)? ago")
    | st.from_regex(r"-?[0-9]{1,25}")
    | st.text()
)


@given(ANY_TEXT, st.booleans(), st.sampled_from(ZONES))
def test_any_text_is_a_time_or_is_refused(text: str, up: bool, zone: ZoneInfo) -> None:
    try:
        moment = parse_time(text, NOW, up=up, zone=zone)
    except ValueError:
        return
    assert 0 <= moment < 2**63


@given(ANY_TEXT, st.sampled_from(ZONES), st.sampled_from(ZONES), st.booleans())
@example("yesterday 14:05", ZONES[1], ZONES[4], False)
@example("14:05:00.0005", ZONES[4], ZONES[1], True)
@example("7:00 +09:00", ZONES[1], ZONES[0], False)
def test_an_absolute_text_means_the_same_in_every_zone(text: str, zone: ZoneInfo, other: ZoneInfo, up: bool) -> None:
    try:
        absolute = absolute_text(text, NOW, zone)
    except ValueError:
        return
    moment = parse_time(text, NOW, up=up, zone=zone)
    assert parse_time(absolute, NOW, up=up, zone=other) == moment
    assert absolute_text(absolute, NOW, other) == absolute
    if " ago" not in text.lower() and text.strip().lower() != "now":
        assert parse_time(absolute, NOW + 86_400_000, up=up, zone=other) == moment
