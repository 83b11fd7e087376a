"""The core without the systems on it: whoever deletes their folders and their lines has a product without them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kbackup.systems import PACKAGES

ROOT = Path(__file__).parents[2]
ARCHIVE = ROOT / "tests" / "golden" / "kept" / "0.1.0" / "plain"

_IMPORT_ALL = """
import importlib, pkgutil
import kbackup
for module in pkgutil.walk_packages(kbackup.__path__, "kbackup."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package kbackup, without the folders of systems and without their lines."""
    top = tmp_path_factory.mktemp("core")
    folders = [package.rpartition(".")[2] for package in PACKAGES]
    shutil.copytree(ROOT / "kbackup", top / "kbackup", ignore=shutil.ignore_patterns("__pycache__", *folders))
    file = top / "kbackup" / "systems.py"
    text = file.read_text()
    line = next(line for line in text.splitlines() if line.startswith("PACKAGES = "))
    file.write_text(text.replace(line, "PACKAGES: tuple[str, ...] = ()"))
    return top


def run(core: Path, *arguments: str) -> str:
    """Run Python in the folder of the core, and return what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(core), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=core, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_module_of_the_core_can_be_imported(core: Path) -> None:
    assert run(core, "-c", f"{_IMPORT_ALL}\nprint(kbackup.__file__)").strip() == str(core / "kbackup" / "__init__.py")


def test_the_commands_of_the_systems_are_gone_and_the_others_work(core: Path) -> None:
    lines = run(core, "-m", "kbackup", "--help").splitlines()
    assert any(line.startswith("  backup ") for line in lines)
    for command in ("mirror", "migrate"):
        assert not any(line.startswith(f"  {command} ") for line in lines)
    assert "restore_points" in run(core, "-m", "kbackup", "list", str(ARCHIVE), "--json")
