"""`kbackup ui` before it serves anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kbackup.cli import main


def test_the_extra_that_it_needs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["ui", "--archive", str(tmp_path), "--listen", "127.0.0.1:0"]) == 2
    said = capsys.readouterr().err
    assert "the package uvicorn of 'kbackup ui' is not installed" in said
    assert "pip install 'kafka-kbackup[web]'" in said


@pytest.mark.parametrize("listen", ["nowhere", "127.0.0.1:99999", "256.0.0.1:1"])
def test_addresses_that_are_none(tmp_path: Path, listen: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ui", "--archive", str(tmp_path), "--listen", listen]) == 2
    assert f"can't listen on {listen}" in capsys.readouterr().err.replace("'", "").replace("cant", "can't")


def test_there_must_be_an_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ui", "--archive", str(tmp_path), "--listen", "127.0.0.1:0"]) == 10
    assert "there is no archive at" in capsys.readouterr().err


def test_a_token_of_its_own_is_not_printed_into_a_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod listens on all addresses, and who reads its log could read every record."""
    listen = ["ui", "--archive", str(tmp_path), "--listen", "0.0.0.0:0"]
    assert main(listen) == 2
    assert "a new token would be printed into a log" in capsys.readouterr().err
    monkeypatch.setenv("KBACKUP_UI_TOKEN", "0123456789abcdef")
    assert main(listen) == 10, "with a token the archive is opened"
