"""The file of users has no passwords, and only its owner reads it."""

from __future__ import annotations

import logging
import resource
import stat
from pathlib import Path

import pytest

from kbackup.errors import UsageError
from kbackup.serve.users import UsersFile, is_exposed, make_verifier, read_users, user_lines, write_user


def a_file(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "users"
    path.write_text("".join(f"{line}\n" for line in lines))
    path.chmod(0o600)
    return path


def test_a_verifier_is_the_one_of_the_specification() -> None:
    """RFC 7677, 3: user "user", password "pencil"; its proof of the server is made of the server key."""
    import base64
    import hmac

    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    verifier = make_verifier("SCRAM-SHA-256", "pencil", salt, 4096)
    signed = (
        b"n=user,r=rOprNGfwEbeRWgbNEkqO,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    )
    proof = hmac.digest(verifier.server_key, signed, "sha256")
    assert base64.b64encode(proof) == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_lines_have_no_password_and_never_the_same_salt() -> None:
    first = user_lines("anna", "secret-word")
    second = user_lines("anna", "secret-word")
    assert not set(first) & set(second)
    assert "secret-word" not in "".join(first)
    assert [line.partition("$")[0] for line in first] == ["anna SCRAM-SHA-256", "anna SCRAM-SHA-512"]


def test_a_user_is_added_and_gets_another_password(tmp_path: Path) -> None:
    path = tmp_path / "users"
    write_user(path, "anna", "first")
    write_user(path, "anna b", "other")
    write_user(path, "anna", "second")
    users = read_users(path)
    assert sorted({name for _, name in users}) == ["anna", "anna b"]
    assert users["SCRAM-SHA-256", "anna"].fits("second")
    assert not users["SCRAM-SHA-256", "anna"].fits("first")
    assert users["SCRAM-SHA-512", "anna b"].fits("other")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["users"]


def test_a_file_that_can_not_be_written_stays_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "users"
    write_user(path, "anna", "first")
    bounds = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, bounds[1]))
    try:
        with pytest.raises(UsageError, match="file too large"):
            write_user(path, "ben", "other")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, bounds)
    assert [each.name for each in tmp_path.iterdir()] == ["users"]
    assert {name for _, name in read_users(path)} == {"anna"}


def test_comments_and_empty_lines_stay(tmp_path: Path) -> None:
    path = a_file(tmp_path, "# who may read", "", *user_lines("anna", "first"))
    write_user(path, "ben", "other")
    assert path.read_text().startswith("# who may read\n\nanna SCRAM")
    assert len(read_users(path)) == 4


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = a_file(tmp_path, *user_lines("anna", "first"))
    path.chmod(mode)
    with pytest.raises(UsageError, match=f"can be read by others than its owner; run: chmod 600 {path}"):
        read_users(path)
    with pytest.raises(UsageError, match="chmod 600"):
        write_user(path, "ben", "other")


@pytest.mark.parametrize(
    ("mode", "owner", "user", "exposed"),
    [
        (0o600, 1000, 1000, False),
        (0o400, 1000, 1000, False),
        (0o640, 1000, 1000, True),
        (0o640, 0, 0, True),
        (0o440, 0, 1000, False),
        (0o660, 0, 1000, True),
        (0o444, 0, 1000, True),
    ],
)
def test_the_group_may_read_a_file_of_root_as_kubernetes_mounts_it(
    mode: int, owner: int, user: int, exposed: bool
) -> None:
    assert is_exposed(mode, owner, user) is exposed


@pytest.mark.parametrize(
    "line",
    [
        "anna",
        "anna secret-word",
        "anna SCRAM-SHA-1$4096:c2FsdA==$a2V5:a2V5",
        "anna SCRAM-SHA-256$100:c2FsdA==$a2V5:a2V5",
        "anna SCRAM-SHA-256$4096:####$a2V5:a2V5",
        "anna SCRAM-SHA-256$4096:c2FsdA==$a2V5:a2V5",
        user_lines("anna", "x")[0].removeprefix("anna"),
        user_lines("anna", "x")[0].replace("16384", "99999999"),
    ],
)
def test_a_line_that_is_none_is_named_by_its_number_and_not_shown(tmp_path: Path, line: str) -> None:
    path = a_file(tmp_path, *user_lines("ben", "x"), line)
    with pytest.raises(UsageError, match="line 3 is no line of a user") as error:
        read_users(path)
    assert "secret-word" not in str(error.value)


def test_a_file_without_users_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no users; run: kbackup serve-user"):
        read_users(a_file(tmp_path, "# nobody"))
    with pytest.raises(UsageError, match="no such file or directory"):
        read_users(tmp_path / "missing")


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = a_file(tmp_path)
    path.write_bytes(b"anna \xff\xfe")
    with pytest.raises(UsageError, match="is no text"):
        read_users(path)


@pytest.mark.parametrize("name", ["", " anna", "#anna", "an\nna"])
def test_a_name_that_a_line_can_not_have_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="can't be used"):
        user_lines(name, "x")


def test_an_empty_password_is_refused() -> None:
    with pytest.raises(UsageError, match="password is empty"):
        user_lines("anna", "")


def test_a_file_that_breaks_leaves_the_users_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="kbackup")
    path = tmp_path / "users"
    write_user(path, "anna", "first")
    users = UsersFile(path)
    path.write_text("broken\n")
    assert ("SCRAM-SHA-256", "anna") in users.users()
    assert ("SCRAM-SHA-256", "anna") in users.users()
    assert len(caplog.messages) == 1, "a file that stays broken is named once"
    path.unlink()
    assert ("SCRAM-SHA-256", "anna") in users.users()
    write_user(path, "ben", "other")
    assert {name for _, name in users.users()} == {"ben"}
