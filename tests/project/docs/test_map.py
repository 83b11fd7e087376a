"""The maps of the code, `README.md` of kbackup and of each system in it, name packages and functions that there are."""

from __future__ import annotations

import importlib
import pkgutil
import re
from itertools import chain
from pathlib import Path

import pytest

from kbackup.systems import PACKAGES as PACKAGES_OF_SYSTEMS
from tests.project.docs.documents import ROOT

OTHER_WORDS = {"": {"command", "job", "kbackup"}, "migrate": {"bootstrap.checkpoint"}}
"""Words in the maps that are no names of the code, by folder."""


def names_in(folder: str) -> list[str]:
    """Return the names in the map of a folder, as they go on from `kbackup`."""
    text = (ROOT / "kbackup" / folder / "README.md").read_text()
    found: list[str] = []
    for name in re.findall(r"`([a-z_]+(?:\.\w+)*)`", text):
        if name in OTHER_WORDS.get(folder, ()):
            continue
        if name.startswith("kbackup."):
            found.append(name.removeprefix("kbackup."))
        else:
            found.append(f"{folder}.{name}" if folder else name)
    return found


NAMES = names_in("")
SYSTEMS = [package.removeprefix("kbackup.") for package in PACKAGES_OF_SYSTEMS]
PACKAGES = {each.name for each in pkgutil.iter_modules([str(ROOT / "kbackup")])}


@pytest.mark.parametrize("name", sorted({*NAMES, *chain.from_iterable(map(names_in, SYSTEMS))}))
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


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_module_of_a_system_is_on_its_map(system: str) -> None:
    modules = {each.name for each in pkgutil.iter_modules([str(ROOT / "kbackup" / system)])}
    assert {f"{system}.{module}" for module in modules} <= set(names_in(system))


def _is_file(module: str) -> bool:
    return Path(ROOT, *module.split(".")).with_suffix(".py").is_file()
