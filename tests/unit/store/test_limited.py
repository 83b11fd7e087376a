"""A limited store moves its bytes at a rate that all processes on this machine share, and lets small objects pass."""

from __future__ import annotations

import errno
import pickle
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kbackup.archive import layout
from kbackup.errors import UsageError
from kbackup.store import Store, open_store, wrappers
from kbackup.store.crypt.kek import generate_key
from kbackup.store.wrappers import LimitedStore, RateLimit, limit_beside

RATE = 4 << 20
DATA = bytes(1 << 20)

_TAKE = """
import sys
from kbackup.store.wrappers import RateLimit
for _ in range(4):
    RateLimit(int(sys.argv[1]), sys.argv[2]).take(1 << 18)
"""


@pytest.fixture
def limited(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / secrets.token_hex(4)), rate=RATE)


def seconds(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def upload(store: Store) -> None:
    with store.upload("uploaded") as started:
        for _ in range(3):
            started.write(DATA)
        started.commit()


@pytest.mark.parametrize(
    "move",
    [
        upload,
        lambda store: [store.put(f"a/{number}", DATA) for number in range(3)],
        lambda store: [list(store.open_range("there", 0, len(DATA))) for _ in range(3)],
        lambda store: [store.get("there") for _ in range(3)],
        lambda store: [list(store.fill("there", 0, memoryview(bytearray(len(DATA))))) for _ in range(3)],
    ],
    ids=["upload", "put", "range", "get", "fill"],
)
def test_what_moves_takes_its_time(move: Callable[[Store], object], limited: LimitedStore) -> None:
    limited.inner.put("there", DATA)
    # the first of three does not wait
    assert seconds(lambda: move(limited)) >= 2 * len(DATA) / RATE


def test_small_objects_do_not_wait(tmp_path: Path) -> None:
    limited = open_store(str(tmp_path), rate=len(DATA) // 60)
    limited.put("large", DATA)  # the next bytes have their turn in a minute
    assert seconds(lambda: limited.replace("lock", b"1", limited.put("lock", b"0"))) < 30


def test_processes_share_a_rate() -> None:
    name = secrets.token_hex(8)
    started = time.monotonic()
    RateLimit(RATE, name).take(1 << 20)
    processes = [subprocess.Popen([sys.executable, "-c", _TAKE, str(RATE), name]) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    RateLimit(RATE, name).take(1)
    assert time.monotonic() - started >= (3 << 20) / RATE, "3 MiB went before"


def test_a_clock_of_another_start_of_the_machine_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = RateLimit(RATE, secrets.token_hex(8))
    monkeypatch.setattr(time, "monotonic", lambda: 1e9)
    limit.take(1)
    monkeypatch.undo()
    assert seconds(lambda: limit.take(1)) < 1


def test_a_folder_that_is_cleaned_up_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrappers, "_rates", [])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    limit = RateLimit(RATE, "name")
    for _ in range(2):
        limit.take(1)
        (folder,) = tmp_path.iterdir()
        shutil.rmtree(folder)


def test_a_tmpdir_of_another_user_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(purpose: str) -> Path:
        raise PermissionError(errno.EPERM, "another user can write there, or it is a link")

    monkeypatch.setattr(wrappers, "_rates", [])
    monkeypatch.setattr(wrappers, "folder_of_all_processes", refused)
    with pytest.raises(UsageError, match=r"limit_rate needs a folder in .*: another user can write there") as told:
        open_store(str(tmp_path), rate=RATE).put("key", DATA)
    assert "TMPDIR" in told.value.hint


def test_workers_and_clusters_have_the_same_rate(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(generate_key())
    store = open_store(str(tmp_path / "a"), key=f"file:{tmp_path}/key", key_class=layout.key_class, rate=RATE)
    limit = limit_beside(pickle.loads(pickle.dumps(store)))
    assert limit is not None
    assert limit.rate == RATE
    assert limit_beside(open_store(str(tmp_path / "a"))) is None
