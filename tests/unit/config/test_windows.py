"""Times and ranges of offsets as people write them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.config import Files, Range, Restore, load, parse_range, parse_time
from kbackup.errors import UsageError

NOW = 1_700_000_000_500


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
        ("1.5m ago", NOW - 90_000, NOW - 90_000),
        ("250 ms ago", NOW - 250, NOW - 250),
        ("100000d ago", 0, 0),
    ],
)
def test_times(text: str, down: int, up: int) -> None:
    assert (parse_time(text, NOW), parse_time(text, NOW, up=True)) == (down, up)


@given(st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31)).map(lambda t: t.replace(tzinfo=UTC)))
def test_times_in_microseconds_lie_between_their_milliseconds(moment: datetime) -> None:
    micros = (moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
    down, up = (parse_time(moment.isoformat(), NOW, up=up) for up in (False, True))
    exact = moment.microsecond % 1000 == 0
    assert up - down == (0 if exact else 1)
    assert down / 1000 <= micros + 1e-4
    assert up / 1000 >= micros - 1e-4


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "yesterday",
            "2h",
            "ago",
            "2 fortnights ago",
            "-5",
            "1e3",
            "٣",
            "1700000000",
            "9223372036854775808",
        ),
        *(
            "2023-11-14",
            "2023-11-14T22:13:20",
            "2023-11-14T22:13Z",
            "2023-02-30T00:00:00Z",
            "20231114T221320Z",
        ),
        *("2023-11-14T22:13:60Z", "1969-12-31T23:59:59Z", "2023-11-14T22:13:20Z\n2"),
    ],
)
def test_no_times(text: str) -> None:
    """Without a zone nobody knows which moment it is; ten digits are seconds."""
    with pytest.raises(ValueError):
        parse_time(text, NOW)


@given(
    st.from_regex(
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})"
    )
    | st.from_regex(r"[0-9]{1,400}(\.[0-9])?(ms|s|m|h|d)? ago")
    | st.from_regex(r"-?[0-9]{1,25}")
    | st.text(),
    st.booleans(),
)
def test_any_text_is_a_time_or_none(text: str, up: bool) -> None:
    try:
        assert 0 <= parse_time(text, NOW, up=up) < 2**63
    except ValueError:
        return


@given(st.from_regex(r"[a-z]{1,3}:[0-9]{1,12}:[0-9]{0,21}-[0-9]{0,21}") | st.text())
def test_any_text_is_a_range_or_none(text: str) -> None:
    try:
        found = parse_range(text)
    except ValueError:
        return
    assert 0 <= (found.start or 0) < (2**63 if found.end is None else found.end) <= 2**63


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("orders:0:5-10", Range("orders", 0, 5, 10)),
        ("a.b_c-1:12:-10", Range("a.b_c-1", 12, None, 10)),
        ("orders:0:5-", Range("orders", 0, 5, None)),
        (" orders:0:- ", Range("orders", 0, None, None)),
        ("orders:0:0-9223372036854775807", Range("orders", 0, 0, 2**63 - 1)),
    ],
)
def test_ranges(text: str, expected: Range) -> None:
    assert parse_range(text) == expected
    assert parse_range(text.replace(":", "/")) == expected
    assert str(expected) == text.strip()


@pytest.mark.parametrize(
    "text",
    [
        *("", "orders", "orders:0", "orders:0:5", "orders:0:a-b", "orders:-1:0-5", "or ders:0:0-5", ":0:0-5"),
        *("orders:0:5-5", "orders:0:9-5", "orders:0:-0", "orders:0:0-9223372036854775808"),
        *("orders:0:9223372036854775808-", "orders:0:٣-٤", "orders:x:0-5"),
    ],
)
def test_no_ranges(text: str) -> None:
    with pytest.raises(ValueError):
        parse_range(text)


def of_file(folder: Path, text: str) -> Restore:
    file = folder / "kbackup.toml"
    file.write_text(f"[restore]\n{text}\n", encoding="utf-8")
    return load([], Files(config=str(file)), {}).config.restore


def test_a_file_may_have_times_as_toml_has_them(tmp_path: Path) -> None:
    restore = of_file(tmp_path, "from_time = 1700000000000\nto_time = 2023-11-14T23:13:20Z")
    assert restore.from_time == "1700000000000"
    assert parse_time(restore.to_time or "", NOW) == 1_700_003_600_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'to_time = "2023-11-14T23:13:20"',
            "restore.to_time '2023-11-14T23:13:20' is not a time such as 2026-01-31T12:00:00Z",
        ),
        ("from_time = 1700000000", "restore.from_time '1700000000' is not a time"),
        ('range = ["orders:0:9-5"]', "is not a list of topic:partition:from-to"),
    ],
)
def test_invalid_addresses_are_refused_before_a_job_begins(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        of_file(tmp_path, text)
