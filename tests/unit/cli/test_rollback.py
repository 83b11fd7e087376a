"""An archive whose newest catalogs were deleted is refused on a machine that has seen them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbackup.archive import layout
from kbackup.archive.catalog.seen import SeenCatalog
from kbackup.cli import main
from kbackup.errors import MismatchError
from kbackup.store import Store, open_store
from tests.support.archives import make_archive
from tests.support.memory_store import MemoryStore


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("KBACKUP_METADATA_CACHE", "true")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    store = open_store(str(tmp_path / "archive"))
    make_archive(store)
    return store


def roll_back(store: Store) -> tuple[int, int]:
    """Delete the newest catalog and make the hint agree; returns the newest number then and before."""
    numbers = sorted(
        number for entry in store.list(layout.CATALOG) if (number := layout.parse_catalog_key(entry.key))
    )
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


def test_nothing_is_kept_without_the_cache(store: Store) -> None:
    assert main(["list", store.url, "--no-cache"]) == 0
    roll_back(store)
    assert main(["list", store.url]) == 0


def test_a_sweep_of_old_catalogs_is_no_rollback(tmp_path: Path) -> None:
    store = MemoryStore()
    for number in range(1, 5):
        store.put_new(layout.catalog_key(number), b"{}")
    SeenCatalog(store, tmp_path).check(accept_rollback=False)
    store.delete([layout.catalog_key(number) for number in range(1, 5)])
    store.put_new(layout.catalog_key(9), b"{}")
    SeenCatalog(store, tmp_path).check(accept_rollback=False)
    store.delete([layout.catalog_key(9)])
    store.put_new(layout.catalog_key(8), b"{}")
    with pytest.raises(MismatchError, match="has seen catalog 9"):
        SeenCatalog(store, tmp_path).check(accept_rollback=False)


def test_another_address_has_a_memory_of_its_own(store: Store, tmp_path: Path) -> None:
    assert main(["list", store.url]) == 0
    other = open_store(str(tmp_path / "other"))
    make_archive(other)
    roll_back(other)
    assert main(["list", other.url]) == 0


def test_a_memory_that_can_not_be_written_stops_nothing(tmp_path: Path) -> None:
    store = MemoryStore()
    store.put_new(layout.catalog_key(1), b"{}")
    (tmp_path / "file").write_text("")
    SeenCatalog(store, tmp_path / "file" / "seen").check(accept_rollback=False)
