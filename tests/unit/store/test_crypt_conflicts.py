"""Files that hold different data keys under one id: no rotation, reader or copy decides by their order."""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from kbackup.cli import main
from kbackup.errors import CorruptError
from kbackup.jobs.copy import copy_archive
from kbackup.jobs.keys import held_keys, rotate_keys
from kbackup.metrics.registry import Silent
from kbackup.store.crypt.kek import Kek, load_kek
from kbackup.store.crypt.keyring import KEYS, list_files, new_file, read_files
from kbackup.store.file import FileStore
from tests.support.archives import make_archive
from tests.support.growing_archive import grow
from tests.support.key_files import filled, key_file, kms, opened

pytestmark = pytest.mark.exhaustive(keep=2)


def conflicting(inner: FileStore, kek: Kek, name: str) -> str:
    """Plant a file that gives every data key another value, properly wrapped by `kek`, and return its path."""
    path, data = new_file(kek, {key_id: bytes(32) for key_id in key_ids(inner)}, name, archive_id_of(inner))
    inner.put_new(path, data)
    return path


def key_ids(inner: FileStore) -> list[bytes]:
    files, _ = read_files(inner, list_files(inner))
    return [key_id for named in files for key_id in named.file.wrapped()]


def archive_id_of(inner: FileStore) -> str:
    archive_id: str = json.loads(inner.get("archive.json"))["id"]
    return archive_id


def key_bytes(inner: FileStore) -> dict[str, bytes]:
    return {info.key: inner.get(info.key) for info in inner.list(KEYS)}


@pytest.mark.parametrize("kek", [key_file, lambda folder: kms(folder / "kms")], ids=["file", "command"])
@pytest.mark.parametrize("name", ["000", "zzz"])
def test_no_rotation_decides_between_two_values_of_a_data_key(
    kek: Any, name: str, inner: FileStore, tmp_path: Path
) -> None:
    """The holder of a leaked key can wrap other data keys under the same ids, before or after the genuine files."""
    source, new = kek(tmp_path), key_file(tmp_path, "new")
    stored = filled(inner, source)
    planted = conflicting(inner, load_kek(source), name)
    before = key_bytes(inner)
    for target in (new, source):
        with pytest.raises(
            CorruptError, match=rf"{planted}.* hold different data keys .*nothing was changed"
        ):
            rotate_keys(opened(inner, source), target, 60)
        assert key_bytes(inner) == before, "a rotation that finds a conflict changes no file"
    conflicts = held_keys(opened(inner, source)).conflicts
    assert len(conflicts) == 3, "one for each data key"
    inner.delete([planted])
    assert rotate_keys(opened(inner, source), new, 60).keys == 3
    assert {opened(inner, new).get(key) for key in stored} == {b"data"}


def test_a_conflict_under_the_new_key_stops_a_rotation(inner: FileStore, tmp_path: Path) -> None:
    source, new = key_file(tmp_path), key_file(tmp_path, "new")
    filled(inner, source)
    conflicting(inner, load_kek(new), "zzz")
    before = key_bytes(inner)
    with pytest.raises(CorruptError, match="hold different data keys"):
        rotate_keys(opened(inner, source), new, 60)
    assert key_bytes(inner) == before


@pytest.mark.parametrize("same", [False, True])
def test_junk_with_all_ids_under_the_new_key_replaces_no_file(
    same: bool, inner: FileStore, tmp_path: Path
) -> None:
    """The name of a key is public: a file that claims to be under the new key, with every id, and opens nothing."""
    source, new = key_file(tmp_path), key_file(tmp_path, "new")
    stored = filled(inner, source, 1)
    if same:
        new = source
    (path,) = key_bytes(inner)
    junk = json.loads(inner.get(path)) | {"kek": load_kek(new).name}
    junk["keys"] = dict.fromkeys(junk["keys"], base64.b64encode(bytes(60)).decode())
    inner.put("keys/000.json", json.dumps(junk).encode())
    done = rotate_keys(opened(inner, source), new, 60)
    assert done.file != "keys/000.json", "a file that opens nothing can't be the one that stays"
    assert [each.path for each in done.skipped] == ["keys/000.json"]
    assert {opened(inner, new).get(key) for key in stored} == {b"data"}


@pytest.mark.parametrize("kek", [key_file, lambda folder: kms(folder / "kms")], ids=["file", "command"])
@pytest.mark.parametrize("name", ["000", "zzz"])
def test_objects_are_read_with_the_data_key_that_opens_them(
    kek: Any, name: str, inner: FileStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = kek(tmp_path)
    stored = filled(inner, source)
    planted = conflicting(inner, load_kek(source), name)
    store = opened(inner, source)
    store.keyring.check()
    assert [store.get(key) for key in stored] == [b"data"] * 3
    assert planted in caplog.text
    task = pickle.loads(pickle.dumps(opened(inner, source)))
    assert [task.get_range(key, 0, 4) for key in stored] == [b"data"] * 3


def test_an_overwritten_key_file_is_passed_over_where_another_one_opens(
    inner: FileStore, tmp_path: Path
) -> None:
    """A reader looks into the file of the data key's name first, which a writer can overwrite."""
    source = key_file(tmp_path)
    stored = filled(inner, source, 1)
    (path,) = key_bytes(inner)
    inner.put("keys/joined.json", inner.get(path))
    inner.put(*new_file(load_kek(source), {key_ids(inner)[0]: bytes(32)}, path[5:-5], archive_id_of(inner)))
    assert [opened(inner, source).get(key) for key in stored] == [b"data"]


def test_a_data_key_that_opens_nothing_stops_a_rotation(inner: FileStore, tmp_path: Path) -> None:
    """The genuine file was overwritten: no conflict shows, so a rotation tries what it would leave."""
    source, new = key_file(tmp_path), key_file(tmp_path, "new")
    make_archive(opened(inner, source))
    grow(opened(inner, source), 3, 50, 60)
    for path, file in read_files(inner, list_files(inner))[0]:
        genuine = inner.get(path)
        inner.put(
            *new_file(
                load_kek(source), dict.fromkeys(file.wrapped(), bytes(32)), path[5:-5], archive_id_of(inner)
            )
        )
        before = key_bytes(inner)
        with pytest.raises(CorruptError):
            rotate_keys(opened(inner, source), new, 60)
        assert before.items() <= key_bytes(inner).items(), "no file is deleted before what stays was tried"
        inner.put(path, genuine)
        inner.delete(key_bytes(inner).keys() - before.keys())


def test_verify_names_key_files_in_conflict(
    inner: FileStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = key_file(tmp_path)
    make_archive(opened(inner, source))
    asked = ["--archive", inner.url, "--encryption-key", source]
    assert main(["verify", "--quick", *asked]) == 0
    planted = conflicting(inner, load_kek(source), "zzz")
    capsys.readouterr()
    for command in (["verify", "--quick"], ["key", "list"]):
        assert main([*command, *asked]) == 13
        assert planted in "".join(capsys.readouterr())


def test_a_copy_keeps_data_keys_apart(tmp_path: Path) -> None:
    """A file of data keys that was replaced, at the source or at the copy, stops the next copy by name."""
    source = key_file(tmp_path)
    inner, copy = FileStore(tmp_path / "archive"), FileStore(tmp_path / "copy")
    make_archive(opened(inner, source))
    copy_archive(opened(inner, source), opened(copy, source), 60, Silent())
    path = next(iter(key_bytes(inner)))
    for replaced, named in ((inner, "not genuine|no file of keys/"), (copy, path)):
        genuine = replaced.get(path)
        replaced.put(*new_file(load_kek(source), {bytes(16): bytes(32)}, path[5:-5], archive_id_of(inner)))
        before = key_bytes(inner), key_bytes(copy)
        with pytest.raises(CorruptError, match=named):
            copy_archive(opened(inner, source), opened(copy, source), 60, Silent())
        assert (key_bytes(inner), key_bytes(copy)) == before
        replaced.put(path, genuine)
    copy_archive(opened(inner, source), opened(copy, source), 60, Silent())
