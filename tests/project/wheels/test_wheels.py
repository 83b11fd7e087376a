"""The trial of the wheel: it names the Pythons that are missing, and an installation that is not whole fails it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from kbackup.errors import KbackupError
from scripts.dev import tools
from scripts.dev.wheels.environment import ROOT, Environment, extras
from scripts.dev.wheels.smoke import try_commands


def test_pythons_are_those_of_the_metadata() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    prefix = "Programming Language :: Python :: "
    named = [text.removeprefix(prefix) for text in project["classifiers"] if text.startswith(prefix)]
    assert tuple(named) == tools.PYTHONS
    assert project["requires-python"] == f">={named[0]}"


def test_a_python_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ".".join(map(str, sys.version_info[:2]))
    monkeypatch.setattr(tools, "PYTHONS", (own, "3.99"))
    assert tools.pythons() == {own: sys.executable, "3.99": None}
    assert tools.pythons_plan() == (
        f"wheels: Python {own} ({sys.executable}); not on this machine, so not tested: 3.99"
    )


def test_a_shim_with_nothing_behind_it_is_no_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shim = tmp_path / "python3.99"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(tools, "PYTHONS", ("3.99",))
    assert tools.pythons() == {"3.99": None}


@dataclass(frozen=True)
class Whole(Environment):
    """An environment whose programs answer as those of a whole installation, but for one argument."""

    broken: str = ""

    def run(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        answers = {
            "--version": "kbackup 0.1.0\n",
            "--help": "Back up Apache Kafka\n",
            "cat": "{}\n" * 145,
            "verify": '{"findings": [], "read_records": 385}',
            "-c": "",
        }
        key = arguments[0]
        return subprocess.CompletedProcess(arguments, 0, "no" if key == self.broken else answers[key], "")


def whole(folder: Path, broken: str = "") -> Whole:
    page = folder / "share" / "man" / "man1" / "kbackup.1"
    page.parent.mkdir(parents=True)
    page.touch()
    return Whole(folder, broken)


def test_a_whole_installation_passes(tmp_path: Path) -> None:
    assert try_commands(whole(tmp_path)) == 5


@pytest.mark.parametrize("broken", ["--version", "--help", "cat", "-c"])
def test_an_installation_that_is_not_whole_fails(tmp_path: Path, broken: str) -> None:
    with pytest.raises(KbackupError, match="did not do its work: no"):
        try_commands(whole(tmp_path, broken))


def test_a_program_that_prints_a_warning_fails(tmp_path: Path) -> None:
    environment = whole(tmp_path)
    program = environment.program("kbackup")
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho kbackup 0.1.0\necho DeprecationWarning >&2\n")
    program.chmod(0o755)
    with pytest.raises(KbackupError, match=r"exit code 0\nkbackup 0\.1\.0\nDeprecationWarning"):
        try_commands(Environment(tmp_path))


def test_all_extras_are_installed() -> None:
    assert {"delta", "native", "schemas", "web", "zookeeper"} <= set(extras())
