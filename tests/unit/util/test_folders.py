"""Files in the cache: no other user's folder, no link."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kbackup.util.system import make_own, read_own, write_own


def test_a_file_is_private_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "own" / "file"
    for data in (b"one", b"two"):
        write_own(path, data)
        assert read_own(path) == data
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert [*path.parent.iterdir()] == [path], "no unfinished file stays"


def test_links_are_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"mine")
    make_own(tmp_path / "own")
    path = tmp_path / "own" / "file"
    path.symlink_to(precious)
    with pytest.raises(OSError, match="symbolic links"):
        read_own(path)
    write_own(path, b"new")
    assert (precious.read_bytes(), read_own(path)) == (b"mine", b"new")
    (tmp_path / "link").symlink_to(tmp_path / "own")
    for work in (
        lambda: write_own(tmp_path / "link" / "file", b"x"),
        lambda: read_own(tmp_path / "link" / "file"),
    ):
        with pytest.raises(PermissionError, match="another user can write there, or it is a link"):
            work()


@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_a_folder_that_others_write_to_is_refused(mode: int, tmp_path: Path) -> None:
    make_own(tmp_path / "own")
    (tmp_path / "own").chmod(mode)
    with pytest.raises(PermissionError):
        write_own(tmp_path / "own" / "file", b"x")


def test_a_folder_below_that_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He could put a link in its place."""
    other = os.getuid() + 1
    lstat = Path.lstat

    def owned(path: Path) -> os.stat_result:
        status = lstat(path)
        return os.stat_result((*status[:4], other, *status[5:10])) if path == tmp_path / "his" else status

    make_own(tmp_path / "his" / "own")
    monkeypatch.setattr(Path, "lstat", owned)
    with pytest.raises(PermissionError, match="his"):
        write_own(tmp_path / "his" / "own" / "file", b"x")
