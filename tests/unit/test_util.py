"""Attempts, buffers, commands as text, files of this user, freed memory, durations and linear regular expressions."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive.query.selection import Selection
from kbackup.errors import UsageError
from kbackup.jobs.restore.request import TopicNames
from kbackup.mirror.filters import compile_patterns
from kbackup.types import Bytes
from kbackup.util.linear_regex import LinearRegex
from kbackup.util.system import BufferPool, attempts, folder_of_all_processes, make_own, read_own, write_own
from kbackup.util.text import kafka_command, kbackup_command, shell_line
from kbackup.util.times import duration_text


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which passes in pauses alone."""
    now = [100.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", sleep)
    return now


def test_the_last_attempt_comes_when_the_time_is_over(clock: list[float]) -> None:
    """The last one comes when the time is over; success ends them without a pause."""
    assert [clock[0] for _ in attempts(0.0, 0.4)] == [100.0]
    for _ in attempts(1.0, 0.4):
        break
    assert clock == [100.0]
    assert [clock[0] for _ in attempts(1.0, 0.4)] == pytest.approx([100.0, 100.4, 100.8, 101.2])


def address(lease: Bytes) -> int:
    return int(lease.__array_interface__["data"][0])


def test_a_lease_is_writable_memory_of_its_own() -> None:
    pool = BufferPool(4096)
    one, two = pool.take(), pool.take()
    one[:], two[:] = 1, 2
    assert len(one) == len(two) == pool.size == 4096
    assert set(one.tolist()) == {1}
    assert pool.allocated == 2


def test_memory_returns_with_the_last_reference_and_not_before() -> None:
    pool = BufferPool(4096)
    lease = pool.take()
    where = address(lease)
    lease[:] = 7
    whole: Any = lease
    holders: list[Any] = [lease[8:20][2:], memoryview(whole[5:])[3:], pa.py_buffer(whole), lease.view(">i8")[1:]]
    del lease, whole
    while holders:
        other = pool.take()
        assert address(other) != where, f"reused beside {holders}"
        other[:] = 0
        del other
        assert np.frombuffer(holders[-1], np.uint8).max() == 7
        holders.pop()
    leases = [pool.take() for _ in range(pool.allocated)]
    assert where in {address(lease) for lease in leases}
    assert pool.allocated == 2


def test_reuse_needs_no_garbage_collection() -> None:
    pool = BufferPool(1 << 20)
    gc.disable()
    try:
        for n in range(50):
            block = pool.take()[: n + 1]
            del block
    finally:
        gc.enable()
    assert pool.allocated == 1


def test_at_most_keep_unused_buffers_are_held() -> None:
    pool = BufferPool(4096, keep=2)
    leases = [pool.take() for _ in range(5)]
    leases.clear()
    again = [pool.take() for _ in range(5)]
    assert pool.allocated == 8
    assert len({address(lease) for lease in again}) == 5


def test_leases_outlive_their_pool() -> None:
    pool = BufferPool(4096)
    lease = pool.take()
    lease[:] = 9
    gone = weakref.ref(pool)
    del pool
    assert gone() is None
    assert lease[1:].tolist() == [9] * 4095


def test_threads_never_share_a_lease() -> None:
    pool = BufferPool(256, keep=3)
    wrong: list[int] = []

    def work(mark: int) -> None:
        for _ in range(500):
            lease = pool.take()
            lease[:] = mark
            view = lease[100:]
            del lease
            if (view != mark).any():
                wrong.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # other tests may have left threads
def test_a_forked_process_has_its_own_memory() -> None:
    pool = BufferPool(4096)
    lease = pool.take()
    lease[:] = 1
    pid = os.fork()
    if not pid:
        lease[:] = 2
        os._exit(int(lease[0]))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
    assert lease.max() == 1


# A copied command means what it was made of, and shows no control character.


HOSTILE = (
    *("orders", "", "-x", "=ls", "a b", "it's $(reboot) `reboot` \\", "$HOME", "gr\u00fc\u00dfe \U0001f389"),
    *("a\nreboot\n", "\r\x1b[1A", "\x07" + "7", "'\n\\'", "\x7f", "\u202eab", "\U000e0001", "$(x)\n", "\udcff\n"),
)


@pytest.mark.parametrize("word", HOSTILE, ids=ascii)
def test_a_shell_reads_the_word_that_was_meant(word: str) -> None:
    line = shell_line("printf", r"%s\0", word, f"{word}0")
    assert line.isprintable(), "a terminal shows it as it is"
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=True)
    assert done.stdout.split(b"\0")[:2] == [each.encode("utf-8", "surrogateescape") for each in (word, f"{word}0")]


def test_commands_with_hostile_names_show_no_control_character() -> None:
    name = "g\n\x1b]0;x\x07"
    assert kbackup_command("groups", "apply", "--group", name).endswith(r"--group $'g\012\033]0;x\007'")
    assert kafka_command("kafka-topics", "h:1", "--topic", name).endswith(r"--topic $'g\012\033]0;x\007'")


# Files in the cache: no other user's folder, no link.


def test_a_file_is_private_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "own" / "file"
    for data in (b"one", b"two"):
        write_own(path, data)
        assert read_own(path) == data
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert [*path.parent.iterdir()] == [path], "no unfinished file stays"


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
def test_missing_parents_are_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write_own(tmp_path / "cache" / "kbackup" / "seen" / "file", b"1")
    finally:
        os.umask(before)
    folders = [tmp_path / "cache", tmp_path / "cache" / "kbackup", tmp_path / "cache" / "kbackup" / "seen"]
    assert [folder.stat().st_mode & 0o777 for folder in folders] == [0o700] * 3


@pytest.fixture
def shared_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A TMPDIR that everybody can write to."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_processes_of_a_user_find_one_folder(shared_tmp: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(folder_of_all_processes, ["rates"] * 8))
    first = folder_of_all_processes("rates")
    assert folder_of_all_processes("rates") == first
    assert first == min(found)
    assert first.stat().st_mode & 0o777 == 0o700
    assert folder_of_all_processes("other") != first


def test_what_others_put_there_first_is_passed_over(shared_tmp: Path, tmp_path: Path) -> None:
    name = f"kbackup-rates-{os.getuid()}"
    for taken in (name, f"{name}-0"):
        (shared_tmp / taken).mkdir()
    (shared_tmp / f"{name}-0").chmod(0o777)
    (shared_tmp / f"{name}-1").symlink_to(tmp_path)
    (shared_tmp / f"{name}-2").write_bytes(b"")
    if os.getuid() == 0:
        (shared_tmp / f"{name}-3").mkdir(0o700)
        os.chown(shared_tmp / f"{name}-3", 65534, 65534)
    found = folder_of_all_processes("rates")
    assert found.name.startswith(f"{name}-0")
    assert found.stat().st_uid == os.getuid()
    assert list(found.iterdir()) == []


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
    for work in (lambda: write_own(tmp_path / "link" / "file", b"x"), lambda: read_own(tmp_path / "link" / "file")):
        with pytest.raises(PermissionError, match="another user can write there, or it is a link"):
            work()


@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_a_folder_that_others_write_to_is_refused(mode: int, tmp_path: Path) -> None:
    make_own(tmp_path / "own")
    (tmp_path / "own").chmod(mode)
    with pytest.raises(PermissionError):
        write_own(tmp_path / "own" / "file", b"x")


def test_a_folder_below_that_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


# Reuse of freed memory by the C library.


_BLOCKS = """
import ctypes, resource, sys
from kbackup.util.system import reuse_freed_memory
print(reuse_freed_memory())
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def use():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [libc.malloc(1 << 20) for _ in range(16)]
    for block in blocks:
        ctypes.memset(block, 1, 1 << 20)
    for block in blocks:
        libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

use()
print(use())
"""


def _run(**variables: str) -> tuple[str, int]:
    run = subprocess.run(
        [sys.executable, "-c", _BLOCKS], env=dict(os.environ) | variables, capture_output=True, text=True, check=True
    )
    kept, faults = run.stdout.split()
    return kept, int(faults)


def test_freed_blocks_are_used_again_without_new_pages_unless_the_environment_forbids_it() -> None:
    kept, faults = _run()
    assert kept == "True"
    assert faults < 100
    kept, faults = _run(MALLOC_TRIM_THRESHOLD_="0")
    assert kept == "False"
    assert faults > 1000  # of 4,096 pages


# Times and durations as text.


@pytest.mark.parametrize(
    ("seconds", "text"), [(-5, "0s"), (100, "1m40s"), (5400, "1h30m"), (93600, "26h"), (172800, "2d"), (190800, "2d5h")]
)
def test_durations_are_in_their_two_largest_units(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


# Expressions in Python's syntax that run in linear time.


_PARTS = ("a", "b", ".", "[ab]", "[^a]", "(a|b)", "(?:ab)", r"\.", r"\u0061", r"\x62", r"\w", r"\d", "^", "$")
_REPEATS = ("", "*", "+", "?", "*?", "{2}")
_PATTERNS = st.lists(st.tuples(st.sampled_from(_PARTS), st.sampled_from(_REPEATS)), max_size=5).map(
    lambda parts: "".join(part if part in "^$" else part + repeat for part, repeat in parts)
)


@given(_PATTERNS, st.text("ab.1é", max_size=8), st.sampled_from([r"x", r"<\g<0>>", "a\\\\"]))
def test_matches_and_replacements_are_pythons(pattern: str, text: str, template: str) -> None:
    regex, expected = LinearRegex(pattern), re.compile(pattern, re.ASCII)
    assert regex.fullmatch(text) == bool(expected.fullmatch(text))
    assert regex.search(text) == bool(expected.search(text))
    assert regex.replace_first(template, text) == expected.sub(template, text, count=1)


def test_groups_of_a_replacement_are_pythons() -> None:
    regex = LinearRegex(r"(?P<first>[a-z]+)-(\d+)")
    for template in (r"\2-\1", r"\g<first>.\g<2>", r"\g<0>\g<0>"):
        assert regex.replace_first(template, "orders-17-x") == re.sub(regex.pattern, template, "orders-17-x", count=1)
    for template in (r"\3", r"\g<last>", r"\x"):
        with pytest.raises(ValueError, match="no group"):
            regex.replace_first(template, "orders-17-x")


def test_expressions_that_backtracking_does_not_end_with_end() -> None:
    name, endless = "a" * 200 + "!", "(a+)+b"
    began = time.monotonic()
    assert not Selection.of([f"/{endless}/"], []).matches(name)
    pattern = compile_patterns([endless])
    assert pattern is not None
    assert not pattern.fullmatch(name)
    assert TopicNames.of({}, [f"{endless}=x"]).target_of(name) == name
    assert time.monotonic() - began < 60, "an expression took more than linear time"


@pytest.mark.parametrize("pattern", ["(?!a).*", "(?<=a)b", r"(a)\1", "(?>a)", "a*+", "(", "a{1000}" * 10_000])
def test_expressions_that_are_not_linear_are_refused_with_a_hint(pattern: str) -> None:
    with pytest.raises(re.error):
        LinearRegex(pattern)
    with pytest.raises(UsageError, match="is not a regular expression") as caught:
        Selection.of([f"/{pattern}/"], [])
    assert "look-around" in (caught.value.hint or "")
    with pytest.raises(ValueError):
        compile_patterns([pattern])
