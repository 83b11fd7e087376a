"""The archive that must be there: `archive_id`, and the newest catalog that a machine has seen."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from msgspec import structs

from kbackup import cli
from kbackup.archive import layout
from kbackup.archive.catalog.documents import Latest, Pin
from kbackup.archive.catalog.seen import SeenCatalog
from kbackup.archive.models import ArchiveInfo, dump
from kbackup.archive.reader import open_archive
from kbackup.cli import main
from kbackup.errors import MismatchError
from kbackup.store import Store, open_store
from kbackup.store.crypt.kek import generate_key
from tests.support.archives import make_archive
from tests.support.memory_store import MemoryStore

Said = pytest.CaptureFixture[str]
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
    store = open_store(str(folder), key=key, key_class=layout.key_class)
    make_archive(store)
    return open_archive(store).info.id


@pytest.fixture
def swapped(tmp_path: Path, key: str) -> str:
    """An archive at `archive` that was replaced as a whole by another one under the same key; the id of the first."""
    mine = made(tmp_path / "archive", key)
    made(tmp_path / "other", key)
    shutil.rmtree(tmp_path / "archive")
    shutil.copytree(tmp_path / "other", tmp_path / "archive")
    return mine


@pytest.mark.exhaustive
@pytest.mark.parametrize("command", LOOKS, ids=[" ".join(command) for command in LOOKS])
def test_another_archive_is_refused(command: list[str], swapped: str, tmp_path: Path, capsys: Said) -> None:
    archive = ["--archive", str(tmp_path / "archive")]
    assert cli.main(["list", *archive]) == 0, "nobody else finds out"
    existing = open_archive(
        open_store(str(tmp_path / "archive"), key=key_of(tmp_path), key_class=layout.key_class)
    ).info.id
    capsys.readouterr()
    assert cli.main([*command, *archive, "--set", f"archive_id={swapped}"]) == 10
    err = capsys.readouterr().err
    assert f"is {existing}, and archive_id expects {swapped}" in err
    assert "find out who put it there" in err


def key_of(folder: Path) -> str:
    return f"file:{folder / 'key'}" if (folder / "key").exists() else ""


def test_the_one_that_is_expected(key: str, tmp_path: Path, capsys: Said) -> None:
    archive_id = made(tmp_path / "archive", key)
    at = ["--archive", str(tmp_path / "archive"), "--set", f"archive_id={archive_id}"]
    assert cli.main(["list", *at]) == 0
    assert cli.main(["copy", str(tmp_path / "copy"), *at]) == 0
    capsys.readouterr()
    assert cli.main(["info", "--json", *at]) == 0
    assert json.loads(capsys.readouterr().out)["archive_id"] == archive_id


def test_an_empty_place_is_refused(tmp_path: Path, capsys: Said) -> None:
    """Or a backup would begin anew where somebody took the archive away."""
    at = ["--archive", str(tmp_path / "archive"), "--set", f"archive_id={32 * '0'}"]
    assert cli.main(["backup", *at, "--set", "source.bootstrap.servers=127.0.0.1:1"]) == 10
    assert "there is no archive" in capsys.readouterr().err
    assert not (tmp_path / "archive").exists()


def test_a_repair_makes_archive_json_again(key: str, tmp_path: Path) -> None:
    archive_id = made(tmp_path / "archive", key)
    (tmp_path / "archive" / "archive.json").unlink()
    at = ["--archive", str(tmp_path / "archive"), "--set", f"archive_id={archive_id}"]
    assert cli.main(["list", *at]) == 10
    assert cli.main(["repair", "--confirm", *at]) == 0
    assert cli.main(["list", *at]) == 0


@pytest.mark.parametrize("wrong", ["0123", "A" * 32, "$(reboot)", "0" * 32 + "\n", "\x1b[2J"], ids=ascii)
def test_an_id_that_is_not_hex_is_refused_by_name(wrong: str, tmp_path: Path, capsys: Said) -> None:
    assert cli.main(["list", str(tmp_path), "--set", f"archive_id={wrong}"]) == 2
    err = capsys.readouterr().err
    assert "archive_id" in err
    assert "is not 32 hex digits" in err
    assert "\x1b" not in err


def test_a_repair_takes_no_id_that_is_not_hex(tmp_path: Path, capsys: Said) -> None:
    """Not from archive.json, and not from the documents that tell the id where it is lost."""
    archive_id = made(tmp_path / "archive", "")
    store = open_store(str(tmp_path / "archive"))
    store.put(layout.ARCHIVE, dump(ArchiveInfo(id="$(reboot)", created_at="")))
    store.put(layout.LATEST, dump(Latest(archive_id="$(reboot)", number=1)))
    assert cli.main(["list", str(tmp_path / "archive")]) == 13
    assert cli.main(["repair", "--confirm", str(tmp_path / "archive")]) == 0
    capsys.readouterr()
    assert open_archive(store).info.id == archive_id


# An archive whose newest catalogs were deleted is refused on a machine that has seen them.


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("KBACKUP_METADATA_CACHE", "true")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    store = open_store(str(tmp_path / "archive"))
    make_archive(store)
    return store


def roll_back(store: Store) -> tuple[int, int]:
    """Delete the newest catalog and make the hint agree; returns the newest number then and before."""
    numbers = sorted(number for entry in store.list(layout.CATALOG) if (number := layout.parse_catalog_key(entry.key)))
    store.delete([layout.catalog_key(numbers[-1]), layout.LATEST, layout.DERIVED])
    return numbers[-2], numbers[-1]


@pytest.mark.parametrize("command", ["list", "info", "log", "keep"])
def test_a_rollback_is_refused(command: str, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", store.url]) == 0
    older, newer = roll_back(store)
    capsys.readouterr()
    arguments = ["-a", store.url, *(["1"] if command == "keep" else [])]
    assert main([command, *arguments]) == 10
    error = capsys.readouterr().err
    assert f"its newest catalog is {older}, this machine has seen catalog {newer}" in error
    assert "--accept-rollback" in error
    assert main([command, *arguments]) == 10  # refused until it is accepted
    assert main([command, *arguments, "--accept-rollback"]) == 0
    assert main([command, *arguments]) == 0


def test_a_command_remembers_the_catalog_that_it_committed(store: Store) -> None:
    assert main(["keep", "1", "-a", store.url]) == 0
    roll_back(store)
    assert main(["list", store.url]) == 10


def test_an_emptied_archive_is_refused(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", store.url]) == 0
    store.delete([entry.key for entry in store.list()])
    capsys.readouterr()
    assert main(["list", store.url]) == 10
    assert "its newest catalog is missing" in capsys.readouterr().err


def test_a_damaged_newest_catalog_is_repaired_and_is_no_rollback(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine that has read the newest catalog repairs it, and refuses its deletion afterwards as before."""
    assert main(["list", store.url]) == 0
    newest = max(number for e in store.list(layout.CATALOG) if (number := layout.parse_catalog_key(e.key)))
    store.put(layout.catalog_key(newest), b"{}")
    assert main(["list", store.url]) == 13, "damage, not a rollback"
    assert main(["repair", store.url, "--confirm"]) in (0, 3)
    assert main(["list", store.url]) == 0
    roll_back(store)
    capsys.readouterr()
    assert main(["list", store.url]) == 10
    assert "went back" in capsys.readouterr().err


def test_nothing_is_kept_without_the_cache(store: Store) -> None:
    assert main(["list", store.url, "--no-cache"]) == 0
    roll_back(store)
    assert main(["list", store.url]) == 0


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


def test_another_address_has_a_memory_of_its_own(store: Store, tmp_path: Path) -> None:
    assert main(["list", store.url]) == 0
    other = open_store(str(tmp_path / "other"))
    make_archive(other)
    roll_back(other)
    assert main(["list", other.url]) == 0


def test_a_memory_that_can_not_be_written_stops_nothing(tmp_path: Path) -> None:
    store = MemoryStore()
    make_archive(store)
    (tmp_path / "file").write_text("")
    SeenCatalog(store, tmp_path / "file" / "seen").check(accept_rollback=False)


JUNK = layout.catalog_key(9999999999)


def test_a_number_that_was_only_listed_is_not_remembered(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """One object under a number far beyond stops no command, neither while it is there nor after its removal."""
    newest = open_archive(store).state.number
    store.put(JUNK, b"junk")
    for command in (["list"], ["keep", "1"], ["log"], ["expire", "--keep-last", "1", "--confirm"]):
        assert main([*command, "-a", store.url]) == 0
        assert f"{JUNK} is passed over" in capsys.readouterr().err
    assert main(["verify", "--quick", "-a", store.url]) == 13
    assert "no run gave it that number" in capsys.readouterr().out
    assert main(["repair", "--confirm", "-a", store.url]) in (0, 3)
    assert open_archive(store).state.number < newest + 10
    store.delete([JUNK])
    assert main(["list", "-a", store.url]) == 0


def test_a_rollback_beside_junk_is_refused(store: Store) -> None:
    assert main(["list", store.url]) == 0
    roll_back(store)
    store.put(JUNK, b"junk")
    assert main(["list", store.url]) == 10


def test_a_replaced_catalog_is_refused(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", store.url]) == 0
    catalog = open_archive(store).committed.catalog
    assert catalog is not None
    store.put(layout.catalog_key(catalog.number), dump(structs.replace(catalog, pins=(Pin(point=1, at=""),))))
    capsys.readouterr()
    assert main(["list", store.url]) == 10
    assert f"catalog {catalog.number} is not the one" in capsys.readouterr().err
    assert main(["list", store.url, "--accept-rollback"]) == 0
    assert main(["list", store.url]) == 0


def test_no_link_in_the_cache_leads_a_write_away(store: Store, tmp_path: Path) -> None:
    """Names that another user could foresee, in a folder that was open to all."""
    precious = tmp_path / "precious"
    precious.write_text("mine")
    assert main(["list", store.url]) == 0
    (kept,) = (tmp_path / "cache" / "kbackup" / "seen").iterdir()
    kept.unlink()
    for name in (kept.name, kept.with_suffix(f".{os.getpid()}").name):
        (kept.parent / name).symlink_to(precious)
    assert main(["list", store.url]) == 0
    assert precious.read_text() == "mine"
    assert not kept.is_symlink()


def test_a_cache_of_another_user_is_neither_read_nor_written(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["list", store.url]) == 0
    folder = tmp_path / "cache" / "kbackup" / "seen"
    (kept,) = folder.iterdir()
    before = kept.read_bytes()
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    assert main(["keep", "1", "-a", store.url]) == 0
    assert kept.read_bytes() == before, "another user's memory stays as it is"
    roll_back(store)
    assert main(["list", store.url]) == 0, "nor does it count"
