"""Commands that print the records of an archive."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kbackup import cli

Said = pytest.CaptureFixture[str]


def run(capsys: Said, *args: str) -> str:
    assert cli.main(args) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def lines(capsys: Said, *args: str) -> list[Any]:
    return [json.loads(line) for line in run(capsys, *args, "--json").splitlines()]
