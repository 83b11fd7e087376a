"""The C library's treatment of freed memory."""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""`M_TRIM_THRESHOLD` and `M_MMAP_THRESHOLD` of glibc's `malloc.h`."""
_REUSED = 64 << 20
_LARGE = 32 << 20
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def reuse_freed_memory() -> bool:
    """Have glibc hold up to 64 MiB of freed memory for the next allocation; return False where it can't.

    By default glibc returns each freed batch to the system, and the next one takes new pages. That was an
    eighth of a reader's CPU (`scripts/bench`). Allocations above 32 MiB are returned at once. Variables of
    glibc in the environment win.
    """
    if any(name in os.environ for name in _VARIABLES):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # another C library
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _REUSED)) and bool(mallopt(_MMAP_THRESHOLD, _LARGE))
