"""Hide pandas from a process that has no use for it.

pyarrow imports pandas at the first value that it converts, to know pandas' types. The import takes a fifth of a second
of CPU, and more memory than all else that a command loads.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _NoPandas(MetaPathFinder):
    """A finder that finds no pandas."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("kbackup does without pandas here", name=name)
        return None


def hide_pandas() -> None:
    """Raise `ModuleNotFoundError` where this process imports pandas from now on."""
    sys.meta_path.insert(0, _NoPandas())


def show_pandas() -> None:
    """Undo `hide_pandas`. pyarrow goes on without pandas if it has looked for it meanwhile."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _NoPandas)]
