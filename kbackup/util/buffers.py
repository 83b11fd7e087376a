"""Large buffers used again and again, each handed back by the last reference to it."""

from __future__ import annotations

import mmap
import threading
import weakref
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # `types` imports pyarrow
    from kbackup.types import Bytes


class BufferPool:
    """Buffers of `size` bytes, for any number of threads; at most `keep` unused ones are held.

    A buffer is leased until no array, memoryview or Arrow buffer over it is left: nobody gives it back, and
    nobody can be left with memory that is filled anew. The memory is mapped, so that what is not kept returns
    to the system at once, and private, so that a forked process has its own.
    """

    def __init__(self, size: int, keep: int = 4) -> None:
        if size < 1 or keep < 0:
            raise ValueError(f"a pool of buffers of {size} bytes that keeps {keep}")
        self.size = size
        self._free: deque[mmap.mmap] = deque(maxlen=keep)
        self._lock = threading.Lock()
        self._allocated = 0

    @property
    def allocated(self) -> int:
        """Number of buffers made so far; leases of used ones are not counted."""
        return self._allocated

    def take(self) -> Bytes:
        """A lease: uint8[size], writable, of undefined content. Never waits."""
        try:
            memory = self._free.pop()
        except IndexError:
            memory = self._make()
        # Views of an array over foreign memory refer to that array, not to the memory: when it dies, all have.
        lease: Bytes = np.frombuffer(memory, np.uint8)
        # The callback may run in any thread, and in the midst of `take` (a garbage collection): it takes no lock.
        weakref.finalize(lease, self._free.append, memory).atexit = False
        return lease

    def _make(self) -> mmap.mmap:
        memory = mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            # the first touch of 16 MiB took 2 ms instead of 10; a system without huge pages refuses
            with suppress(OSError):
                memory.madvise(mmap.MADV_HUGEPAGE)
        with self._lock:
            self._allocated += 1
        return memory
