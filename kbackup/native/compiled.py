"""The kernels: take them from here. README.md says when they are compiled, and where they are kept.

`ImportError` if they can't be loaded: no numba, or a librdkafka that is not one of those known. They are compiled
once and kept beside the code, or where that can't be written in the user's cache, or for this process alone.
"""

from __future__ import annotations

import os
from tempfile import TemporaryDirectory

from numba.core import config

from kbackup.native.librdkafka import version

__all__ = ["fill", "produce", "version"]

# It finds a way of its own where nothing can be kept. Imported after the others it would look for the folder below.
import kbackup.native.schema_kernel  # noqa: F401

try:
    from kbackup.native import fill, produce
except RuntimeError:  # numba finds no place to keep compiled code
    with TemporaryDirectory(prefix="kbackup-kernels-") as _folder:
        os.environ["NUMBA_CACHE_DIR"] = _folder
        config.reload_config()  # type: ignore[no-untyped-call]
        from kbackup.native import fill, produce
