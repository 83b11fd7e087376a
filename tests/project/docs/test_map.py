"""The map of the code, `kbackup/README.md`, names packages and functions that there are."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

from tests.project.docs.documents import ROOT

TEXT = (ROOT / "kbackup" / "README.md").read_text()
NAMES = [name for name in re.findall(r"`([a-z_]+(?:\.\w+)*)`", TEXT) if name not in ("command", "job", "kbackup")]
PACKAGES = {each.name for each in pkgutil.iter_modules([str(ROOT / "kbackup")])}


@pytest.mark.parametrize("name", sorted(set(NAMES)))
def test_a_name_is_there(name: str) -> None:
    module, rest = "kbackup", name.split(".")
    while rest and (Path(ROOT, *f"{module}.{rest[0]}".split(".")).is_dir() or _is_file(f"{module}.{rest[0]}")):
        module, rest = f"{module}.{rest[0]}", rest[1:]
    found: object = importlib.import_module(module)
    for each in rest:
        found = getattr(found, each)
    assert found


def test_every_package_is_on_it() -> None:
    assert PACKAGES - {"__main__", "discovery"} <= set(NAMES)


def _is_file(module: str) -> bool:
    return Path(ROOT, *module.split(".")).with_suffix(".py").is_file()
