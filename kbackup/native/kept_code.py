"""The place of compiled code where numba finds none: beside the modules and in the user's cache nothing can be written.

So it is in a container with a read-only root. numba reads compiled code only from a folder that it can write, so the
code that an installation keeps (`KEPT`, made by infra/image/Dockerfile) is copied into a folder of this process.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from numba.core import config

KEPT = Path(sys.prefix, "share", "kbackup", "kernels")
"""The code that was compiled when this installation was made; most installations have none."""

_VARIABLE = "NUMBA_CACHE_DIR"


@contextmanager
def folder_of_this_process() -> Iterator[None]:
    """Have numba take compiled code from a folder of this process, and leave there what it compiles itself. The folder
    goes with the block: a function that is compiled for a given signature has been loaded by then."""
    before = os.environ.get(_VARIABLE)
    with TemporaryDirectory(prefix="kbackup-kernels-") as folder:
        if KEPT.is_dir():
            shutil.copytree(KEPT, folder, dirs_exist_ok=True)
        _set(folder)
        try:
            yield
        finally:
            _set(before)


def _set(folder: str | None) -> None:
    if folder is None:
        os.environ.pop(_VARIABLE, None)
    else:
        os.environ[_VARIABLE] = folder
    config.reload_config()  # type: ignore[no-untyped-call]
