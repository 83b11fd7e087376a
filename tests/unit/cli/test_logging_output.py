"""Logs, numbers and texts that commands print."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from kbackup.cli.common.output import configure_logging
from kbackup.util.text import human_count, human_duration, human_size, printable


@pytest.fixture
def _logging() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("kbackup")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:], level, our_level = before
    root.setLevel(level)
    ours.setLevel(our_level)


@pytest.mark.usefixtures("_logging")
@pytest.mark.parametrize(
    ("verbose", "expected"),
    [
        (0, {"kbackup.x WARNING", "botocore WARNING"}),
        (1, {"kbackup.x WARNING", "kbackup.x INFO", "botocore WARNING"}),
        (2, {"kbackup.x WARNING", "kbackup.x INFO", "kbackup.x DEBUG", "botocore WARNING", "botocore INFO"}),
    ],
)
def test_logging(verbose: int, expected: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(verbose)
    configure_logging(verbose)
    for name in ("kbackup.x", "botocore"):
        for level in (logging.WARNING, logging.INFO, logging.DEBUG):
            logging.getLogger(name).log(level, "topic \x1b[2J")
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert len(lines) == len(expected)
    assert {f"{line.split()[3].rstrip(':')} {line.split()[2]}" for line in lines} == expected
    assert all(line.endswith(": topic \\x1b[2J") for line in lines)


def test_human_numbers() -> None:
    assert [human_size(size) for size in (0, 1023, 1536, 5 << 30, 1 << 60)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 GiB",
        "1024.0 PiB",
    ]
    assert [human_count(number) for number in (0, 1234567, 12_345_678, 5e9, 2e12)] == [
        "0",
        "1,234,567",
        "12.3M",
        "5.0G",
        "2.0T",
    ]
    assert [human_duration(seconds) for seconds in (0.4, 59, 65, 3725)] == ["0s", "59s", "1m05s", "1h02m"]


def test_printable() -> None:
    assert printable("plain é 漢") == "plain é 漢"
    assert printable("\x1b\n\x00\u202e\ud800") == "\\x1b\\n\\x00\\u202e\\ud800"
