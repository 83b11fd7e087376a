"""`kbackup serve-user` through the command line."""

from __future__ import annotations

import io
import stat
import sys
from pathlib import Path

import pytest

from kbackup.serve.users import read_users
from tests.support.printed import Kbackup


def type_in(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_a_user_is_added_with_the_password_of_the_standard_input(
    tmp_path: Path, kbackup: Kbackup, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "users"
    type_in(monkeypatch, "a pass word\n")
    printed = kbackup("serve-user", str(file), "anna")
    assert printed.out == f'user anna may log in: set serve.users = "{file}"\n'
    assert read_users(file)["SCRAM-SHA-512", "anna"].fits("a pass word")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_another_password_takes_the_place_of_the_first(
    tmp_path: Path, kbackup: Kbackup, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "users"
    for password in ("first\n", "second\n"):
        type_in(monkeypatch, password)
        document = kbackup("serve-user", str(file), "anna", "--json").json
        assert (document["file"], document["user"]) == (str(file), "anna")
    assert read_users(file)["SCRAM-SHA-256", "anna"].fits("second")
    assert not read_users(file)["SCRAM-SHA-256", "anna"].fits("first")


def test_without_a_password_nothing_is_written(
    tmp_path: Path, kbackup: Kbackup, monkeypatch: pytest.MonkeyPatch
) -> None:
    type_in(monkeypatch, "")
    printed = kbackup("serve-user", str(tmp_path / "users"), "anna", code=2)
    assert "the standard input has no password" in printed.err
    assert list(tmp_path.iterdir()) == []
