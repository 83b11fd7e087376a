"""Reuse of freed memory by the C library."""

from __future__ import annotations

import os
import subprocess
import sys

_BLOCKS = """
import ctypes, resource, sys
from kbackup.util.system import reuse_freed_memory
print(reuse_freed_memory())
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def use():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [libc.malloc(1 << 20) for _ in range(16)]
    for block in blocks:
        ctypes.memset(block, 1, 1 << 20)
    for block in blocks:
        libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

use()
print(use())
"""


def _run(**variables: str) -> tuple[str, int]:
    run = subprocess.run(
        [sys.executable, "-c", _BLOCKS],
        env=dict(os.environ) | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    kept, faults = run.stdout.split()
    return kept, int(faults)


def test_freed_blocks_are_used_again_without_new_pages() -> None:
    kept, faults = _run()
    assert kept == "True"
    assert faults < 100


def test_the_environment_wins() -> None:
    kept, faults = _run(MALLOC_TRIM_THRESHOLD_="0")
    assert kept == "False"
    assert faults > 1000  # of 4,096 pages
