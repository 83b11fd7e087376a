"""The kernels: take them from here. README.md says when they are compiled, and where they are kept.

`ImportError` if they can't be loaded: no numba, or a librdkafka that is not one of those known. They are compiled
once and kept beside the code, or where that can't be written in the user's cache, or for this process alone.
"""

from __future__ import annotations

# Imported before the others, for whom a folder may have to be found: these two find it by themselves.
import kbackup.native.batch_kernel
import kbackup.native.schema_kernel  # noqa: F401
from kbackup.native.kept_code import folder_of_this_process
from kbackup.native.librdkafka import version

__all__ = ["fill", "produce", "version"]

try:
    from kbackup.native import fill, produce
except RuntimeError:  # numba finds no place to keep compiled code
    with folder_of_this_process():
        from kbackup.native import fill, produce
