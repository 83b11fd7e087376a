"""The archive that must be there: `archive_id`, and the newest catalog that a machine has seen."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from msgspec import structs

from kbackup.archive import layout
from kbackup.archive.catalog.commit import SeenCatalog
from kbackup.archive.catalog.documents import Latest, Pin
from kbackup.archive.models import ArchiveInfo, dump
from kbackup.archive.reader import open_archive
from kbackup.errors import MismatchError
from kbackup.store import Store, open_store
from kbackup.store.crypt.kek import generate_key
from tests.support.archives import make_archive
from tests.support.memory_store import MemoryStore
from tests.support.printed import Kbackup

LOOKS = [["list"], ["info"], ["ls"], ["verify", "--quick"], ["expire"], ["key", "list"], ["repair"], ["unlock"]]


@pytest.fixture(params=["plain", "encrypted"])
def key(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "plain":
        return ""
    (tmp_path / "key").write_text(generate_key())
    key = f"file:{tmp_path / 'key'}"
    monkeypatch.setenv("KBACKUP_ENCRYPTION_KEY", key)
    return key


def made(folder: Path, key: str) -> str:
    """Make an archive and return its id, which is no other archive's."""
    make_archive(open_store(str(folder), key=key, key_class=layout.key_class), copied=False)
    return id_of(folder, key)


def id_of(folder: Path, key: str) -> str:
    return open_archive(open_store(str(folder), key=key, key_class=layout.key_class)).info.id


@pytest.mark.exhaustive
@pytest.mark.parametrize("command", LOOKS, ids=[" ".join(command) for command in LOOKS])
def test_another_archive_is_refused(command: list[str], key: str, tmp_path: Path, kbackup: Kbackup) -> None:
    """An archive that was replaced as a whole by another one under the same key."""
    expected = made(tmp_path / "archive", key)
    other = made(tmp_path / "other", key)
    shutil.rmtree(tmp_path / "archive")
    shutil.copytree(tmp_path / "other", tmp_path / "archive")
    archive = ["--archive", str(tmp_path / "archive")]
    kbackup("list", *archive)  # nobody else finds out
    err = kbackup(*command, *archive, "--set", f"archive_id={expected}", code=10).err
    assert f"is {other}, and archive_id expects {expected}" in err
    assert "find out who put it there" in err


def test_the_one_that_is_expected(key: str, tmp_path: Path, kbackup: Kbackup) -> None:
    archive_id = made(tmp_path / "archive", key)
    at = ["--archive", str(tmp_path / "archive"), "--set", f"archive_id={archive_id}"]
    kbackup("list", *at)
    kbackup("copy", str(tmp_path / "copy"), *at)
    assert kbackup("info", "--json", *at).json["archive_id"] == archive_id


def test_an_empty_place_is_refused(tmp_path: Path, kbackup: Kbackup) -> None:
    """Or a backup would begin anew where somebody took the archive away."""
    at = ["--archive", str(tmp_path / "archive"), "--set", f"archive_id={32 * '0'}"]
    err = kbackup("backup", *at, "--set", "source.bootstrap.servers=127.0.0.1:1", code=10).err
    assert "there is no archive" in err
    assert not (tmp_path / "archive").exists()


def test_a_repair_makes_archive_json_again(key: str, tmp_path: Path, kbackup: Kbackup) -> None:
    archive_id = made(tmp_path / "archive", key)
    (tmp_path / "archive" / "archive.json").unlink()
    at = ["--archive", str(tmp_path / "archive"), "--set", f"archive_id={archive_id}"]
    kbackup("list", *at, code=10)
    kbackup("repair", "--confirm", *at)
    kbackup("list", *at)


@pytest.mark.parametrize("wrong", ["0123", "A" * 32, "$(reboot)", "0" * 32 + "\n", "\x1b[2J"], ids=ascii)
def test_an_id_that_is_not_hex_is_refused_by_name(wrong: str, tmp_path: Path, kbackup: Kbackup) -> None:
    err = kbackup("list", str(tmp_path), "--set", f"archive_id={wrong}", code=2).err
    assert "archive_id" in err
    assert "is not 32 hex digits" in err
    assert "\x1b" not in err


def test_a_repair_takes_no_id_that_is_not_hex(mine: str, kbackup: Kbackup) -> None:
    """Not from archive.json, and not from the documents that tell the id where it is lost."""
    store, archive_id = open_store(mine), id_of(Path(mine), "")
    store.put(layout.ARCHIVE, dump(ArchiveInfo(id="$(reboot)", created_at="")))
    store.put(layout.LATEST, dump(Latest(archive_id="$(reboot)", number=1)))
    kbackup("list", mine, code=13)
    kbackup("repair", "--confirm", mine)
    assert id_of(Path(mine), "") == archive_id


# An archive whose newest catalogs were deleted is refused on a machine that has seen them.


JUNK = layout.catalog_key(9999999999)


@pytest.fixture
def store(mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("KBACKUP_METADATA_CACHE", "true")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return open_store(mine)


def catalog_numbers(store: Store) -> list[int]:
    return sorted(number for entry in store.list(layout.CATALOG) if (number := layout.parse_catalog_key(entry.key)))


def roll_back(store: Store) -> tuple[int, int]:
    """Delete the newest catalog and make the hint agree; returns the newest number then and before."""
    numbers = catalog_numbers(store)
    store.delete([layout.catalog_key(numbers[-1]), layout.LATEST, layout.DERIVED])
    return numbers[-2], numbers[-1]


@pytest.mark.parametrize("command", ["list", "info", "log", "keep"])
def test_a_rollback_is_refused(command: str, store: Store, kbackup: Kbackup) -> None:
    kbackup("list", store.url)
    older, newer = roll_back(store)
    arguments = [command, "-a", store.url, *(["1"] if command == "keep" else [])]
    error = kbackup(*arguments, code=10).err
    assert f"its newest catalog is {older}, but this machine has seen catalog {newer}" in error
    assert "--accept-rollback" in error
    kbackup(*arguments, code=10)  # refused until it is accepted
    kbackup(*arguments, "--accept-rollback")
    kbackup(*arguments)


def test_a_command_remembers_the_catalog_that_it_committed(store: Store, kbackup: Kbackup) -> None:
    kbackup("keep", "1", "-a", store.url)
    roll_back(store)
    kbackup("list", store.url, code=10)


def test_an_emptied_archive_is_refused(store: Store, kbackup: Kbackup) -> None:
    kbackup("list", store.url)
    store.delete([entry.key for entry in store.list()])
    assert "its newest catalog is missing" in kbackup("list", store.url, code=10).err


def test_a_damaged_newest_catalog_is_repaired_and_is_no_rollback(store: Store, kbackup: Kbackup) -> None:
    """A machine that has read the newest catalog repairs it, and refuses its deletion afterwards as before."""
    kbackup("list", store.url)
    store.put(layout.catalog_key(catalog_numbers(store)[-1]), b"{}")
    kbackup("list", store.url, code=13)  # damage, not a rollback
    kbackup("repair", store.url, "--confirm")
    kbackup("list", store.url)
    roll_back(store)
    assert "was rolled back" in kbackup("list", store.url, code=10).err


def test_nothing_is_kept_without_the_cache(store: Store, kbackup: Kbackup) -> None:
    kbackup("list", store.url, "--no-cache")
    roll_back(store)
    kbackup("list", store.url)


def test_a_sweep_of_old_catalogs_is_no_rollback(tmp_path: Path) -> None:
    store = MemoryStore()
    make_archive(store)
    catalog = open_archive(store).committed.catalog
    assert catalog is not None

    def put(number: int) -> None:
        store.put_new(layout.catalog_key(number), dump(structs.replace(catalog, number=number)))

    SeenCatalog(store, tmp_path / "seen").check(accept_rollback=False)
    store.delete([entry.key for entry in store.list(layout.CATALOG)])
    put(9999)
    SeenCatalog(store, tmp_path / "seen").check(accept_rollback=False)
    store.delete([layout.catalog_key(9999)])
    put(9998)
    with pytest.raises(MismatchError, match="has seen catalog 9999"):
        SeenCatalog(store, tmp_path / "seen").check(accept_rollback=False)


def test_a_catalog_whose_checksum_was_not_seen_is_compared_with_nothing(tmp_path: Path) -> None:
    """A machine that lacked the key has seen the number alone."""
    store = MemoryStore()
    make_archive(store)
    SeenCatalog(store, tmp_path / "seen").check(accept_rollback=False)
    (file,) = (tmp_path / "seen").iterdir()
    seen = json.loads(file.read_bytes())
    file.write_text(json.dumps({**seen, "checksum": ""}))
    SeenCatalog(store, tmp_path / "seen").check(accept_rollback=False)
    assert json.loads(file.read_bytes()) == seen, "now it is known"


def test_another_address_has_a_memory_of_its_own(store: Store, tmp_path: Path, kbackup: Kbackup) -> None:
    kbackup("list", store.url)
    other = open_store(str(tmp_path / "other"))
    make_archive(other)
    roll_back(other)
    kbackup("list", other.url)


def test_a_memory_that_can_not_be_written_stops_nothing(tmp_path: Path) -> None:
    store = MemoryStore()
    make_archive(store)
    (tmp_path / "file").write_text("")
    SeenCatalog(store, tmp_path / "file" / "seen").check(accept_rollback=False)


def test_a_number_that_was_only_listed_is_not_remembered(store: Store, kbackup: Kbackup) -> None:
    """One object under a number far beyond stops no command, neither while it is there nor after its removal."""
    newest = open_archive(store).state.number
    store.put(JUNK, b"junk")
    for command in (["list"], ["keep", "1"], ["log"], ["expire", "--keep-last", "1", "--confirm"]):
        assert f"{JUNK} is passed over" in kbackup(*command, "-a", store.url).err
    assert "no run gave it that number" in kbackup("verify", "--quick", "-a", store.url, code=13).out
    kbackup("repair", "--confirm", "-a", store.url)
    assert open_archive(store).state.number < newest + 10
    store.delete([JUNK])
    kbackup("list", "-a", store.url)


def test_a_rollback_beside_junk_is_refused(store: Store, kbackup: Kbackup) -> None:
    kbackup("list", store.url)
    roll_back(store)
    store.put(JUNK, b"junk")
    kbackup("list", store.url, code=10)


def test_a_replaced_catalog_is_refused(store: Store, kbackup: Kbackup) -> None:
    kbackup("list", store.url)
    catalog = open_archive(store).committed.catalog
    assert catalog is not None
    store.put(layout.catalog_key(catalog.number), dump(structs.replace(catalog, pins=(Pin(point=1, at=""),))))
    assert f"catalog {catalog.number} is not the one" in kbackup("list", store.url, code=10).err
    kbackup("list", store.url, "--accept-rollback")
    kbackup("list", store.url)


def test_no_link_in_the_cache_leads_a_write_away(store: Store, tmp_path: Path, kbackup: Kbackup) -> None:
    """Names that another user could foresee, in a folder that was open to all."""
    precious = tmp_path / "precious"
    precious.write_text("mine")
    kbackup("list", store.url)
    (kept,) = (tmp_path / "cache" / "kbackup" / "seen").iterdir()
    kept.unlink()
    for name in (kept.name, kept.with_suffix(f".{os.getpid()}").name):
        (kept.parent / name).symlink_to(precious)
    kbackup("list", store.url)
    assert precious.read_text() == "mine"
    assert not kept.is_symlink()


def test_a_cache_of_another_user_is_neither_read_nor_written(
    store: Store, tmp_path: Path, kbackup: Kbackup, monkeypatch: pytest.MonkeyPatch
) -> None:
    kbackup("list", store.url)
    (kept,) = (tmp_path / "cache" / "kbackup" / "seen").iterdir()
    before = kept.read_bytes()
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    kbackup("keep", "1", "-a", store.url)
    assert kept.read_bytes() == before, "another user's memory stays as it is"
    roll_back(store)
    kbackup("list", store.url)  # nor does it count
