"""The cache of development servers: whole entries or none, and only what was locked."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from kbackup.errors import CorruptError, KbackupError
from scripts.dev import cache, tools


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KBACKUP_CACHE", str(tmp_path))
    return tmp_path


def test_failed_fill_leaves_no_entry_and_the_next_one_fills(root: Path) -> None:
    def half(folder: Path) -> None:
        (folder / "a").write_text("1")
        raise KbackupError("no more")

    with pytest.raises(KbackupError, match="no more"):
        cache.entry("thing", half)
    assert [path.name for path in root.iterdir()] == ["thing.lock"]
    assert (cache.entry("thing", lambda folder: (folder / "a").touch()) / "a").exists()


def test_two_runs_fill_once() -> None:
    filled: list[Path] = []
    both = threading.Barrier(2)

    def fill(folder: Path) -> None:
        filled.append(folder)

    def ask() -> None:
        both.wait()
        cache.entry("thing", fill)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(filled) == 1


@pytest.mark.parametrize("wrong", [{"a": b"2"}, {}, {"a": b"1", "b": b""}])
def test_other_files_than_the_locked_are_refused(tmp_path: Path, wrong: dict[str, bytes]) -> None:
    sums = tmp_path / "sums"
    sums.write_text(f"{hashlib.sha256(b'1').hexdigest()}  a\n")
    folder = tmp_path / "files"
    folder.mkdir()
    for name, data in wrong.items():
        (folder / name).write_bytes(data)
    with pytest.raises(CorruptError, match=r"not the locked ones: [ab];"):
        cache.check_sums(folder, cache.read_sums(sums))


def test_locked_files_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    cache.check_sums(tmp_path, {"a": hashlib.sha256(b"1").hexdigest()})


def test_failed_step_shows_the_end_of_its_output() -> None:
    with pytest.raises(KbackupError, match=r"the step ended with exit code 3:\nwhy\n; a hint"):
        cache.run(["/bin/sh", "-c", "echo why; exit 3"], "the step", "a hint")


@pytest.mark.parametrize(
    ("printed_version", "accepted"), [("17.0.1", True), ("21", True), ("11.0.2", False), ("1.8.0", False)]
)
def test_java_must_be_17(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed_version: str, accepted: bool) -> None:
    fake = tmp_path / "bin" / "java"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\necho 'openjdk version \"{printed_version}\"' >&2\n")
    fake.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if accepted:
        assert tools.java() == str(fake)
    else:
        with pytest.raises(tools.MissingToolError, match="install a JDK >= 17"):
            tools.java()


def test_missing_tools_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(tools.MissingToolError, match="java: not found in PATH; install a JDK"):
        tools.java()
    with pytest.raises(tools.MissingToolError, match="go: not found in PATH; install Go"):
        tools.go()


@pytest.mark.parametrize(
    ("uid", "there", "expected"),
    [(0, ["apt-get"], "as root, later on"), (0, ["apt-get", "chromium"], "nothing"), (1000, ["apt-get"], "nothing")],
)
def test_packages_to_install_as_root_are_named_before(
    uid: int, there: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in there:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert tools.plan().startswith(expected)
    assert ("chromium" in tools.plan()) == (expected != "nothing")
