"""The loops of `kbackup.native` as plain Python runs them where numba is not installed."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest

import kbackup.native

_FIELDS = "archived_fields"


def plain_kernel(name: str) -> ModuleType:
    """Return the module `kbackup.native.<name>` once more, without numba."""
    modules = [f"kbackup.native.{_FIELDS}", f"kbackup.native.{name}"]
    for module in modules:
        importlib.import_module(module)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KBACKUP_KERNEL", "python")
        # Both come back when the context ends: in the table of modules, and as names of the package.
        for module in modules:
            patch.delitem(sys.modules, module)
        for attribute in (_FIELDS, name):
            patch.setattr(kbackup.native, attribute, None)
        made = importlib.import_module(modules[1])
    assert not made.COMPILED
    return made
