"""A kind of store that kbackup does not know: registered by one line, it serves every command."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pytest

from kbackup.store import registry
from kbackup.store.base import KeyClasses, Store, StoreKind, StoreQuestion
from kbackup.store.file import FileStore

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShelfOptions:
    room: Annotated[str, "Room that the shelves are in."] = ""
    door_token: Annotated[str, "Token of the door."] = field(default="", repr=False)
    width_bytes: Annotated[int, "Width of a shelf."] = 1 << 20


def open_shelf(url: str, options: ShelfOptions, key_class: KeyClasses) -> Store:
    return FileStore(Path(options.room) / url.removeprefix("shelf://"), url, key_class)


SHELF = StoreKind(
    "shelf",
    "shelf://name",
    open_shelf,
    "room",
    ShelfOptions,
    ("room",),
    (StoreQuestion("room", "Room"), StoreQuestion("door_token", "", "env:DOOR", "room")),
)

_REGISTERED = """
import sys
from kbackup.store import registry
from tests.unit.store.test_registry import SHELF
registry.register(SHELF)
"""
_COMMAND = """
from kbackup.cli import main
sys.exit(main(sys.argv[1:]))
"""
_SOURCE = """
from kbackup.archive.reader import open_archive
from kbackup.spark.source.options import request_of
store = request_of({"archive": sys.argv[1], "room.room": sys.argv[2]}).store()
print(open_archive(store).state.next_point)
"""


def run(folder: Path, program: str, *argv: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _REGISTERED + program, *argv],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "KBACKUP_ROOM_DOOR_TOKEN": "hush", "HOME": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def kbackup(folder: Path, *argv: str) -> str:
    return run(folder, _COMMAND, *argv)


@pytest.mark.exhaustive
def test_every_command_knows_it(tmp_path: Path) -> None:
    from tests.support.archives import make_archive

    room = tmp_path / "room"
    make_archive(FileStore(room / "first"))
    flags = ("--room-room", str(room))
    assert "2026-01-02T00:00:00.000Z" in kbackup(tmp_path, "list", "shelf://first", *flags)
    copied = kbackup(tmp_path, "copy", "shelf://second", "-a", "shelf://first", *flags)
    assert copied.startswith("shelf://second: ")
    there = ("copy", "shelf://third", "-a", "shelf://first", *flags, "--to-room-room", str(tmp_path / "annex"))
    kbackup(tmp_path, *there)
    assert {path.name for path in room.iterdir()} == {"first", "second"}
    assert (tmp_path / "annex" / "third" / "archive.json").is_file()
    kbackup(tmp_path, "verify", "shelf://second", "--quick", *flags)
    shown = kbackup(tmp_path, "config", *flags, "-a", "shelf://first")
    assert re.search(rf"^room\.room +{room} +flag --room-room$", shown, re.MULTILINE)
    assert re.search(r"^room\.door_token +\*+ +environment KBACKUP_ROOM_DOOR_TOKEN$", shown, re.MULTILINE)
    assert "hush" not in shown
    assert "Width of a shelf." in kbackup(tmp_path, "config", "--keys")
    kbackup(tmp_path, "init", "--yes", "--no-check", "--bootstrap-server", "h:1", "-a", "shelf://first", *flags)
    assert f'room = "{room}"' in (tmp_path / "kbackup.toml").read_text()
    assert "2026-01-02T00:00:00.000Z" in kbackup(tmp_path, "list"), "by the file alone"
    assert run(tmp_path, _SOURCE, "shelf://first", str(room)).strip() == "3", "a read of Spark"


def test_a_scheme_is_taken_once() -> None:
    with pytest.raises(ValueError, match="file://"):
        registry.register(SHELF._replace(scheme="file"))
