from __future__ import annotations

import pytest

from kbackup.config import parse_duration, parse_rule, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1_024", 1024),
        ("8MiB", 8 << 20),
        ("8 mib", 8 << 20),
        ("1.5GiB", 3 << 29),
        ("2kB", 2000),
        ("3TB", 3 * 10**12),
        ("7B", 7),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "8M", "-1", "1.5", "8MiBs", "1e3", "٣", "1__0"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("250ms", 0.25), ("1.5m", 90), ("2h", 7200), ("1d", 86400)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


def test_rules_end_at_the_last_equals_sign() -> None:
    pattern, replacement = parse_rule(r"^[^=]=(.*)$=copy.\1")
    assert (pattern.pattern, replacement) == (r"^[^=]=(.*)$", r"copy.\1")
    with pytest.raises(ValueError):
        parse_rule("no-rule")
