from __future__ import annotations

import gc
import os
import threading
import weakref
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kbackup.types import Bytes
from kbackup.util.system import BufferPool


def address(lease: Bytes) -> int:
    return int(lease.__array_interface__["data"][0])


def test_a_lease_is_writable_memory_of_its_own() -> None:
    pool = BufferPool(4096)
    one, two = pool.take(), pool.take()
    one[:], two[:] = 1, 2
    assert len(one) == len(two) == pool.size == 4096
    assert set(one.tolist()) == {1}
    assert pool.allocated == 2


def test_memory_returns_with_the_last_reference_and_not_before() -> None:
    pool = BufferPool(4096)
    lease = pool.take()
    where = address(lease)
    lease[:] = 7
    whole: Any = lease
    holders: list[Any] = [
        lease[8:20][2:],
        memoryview(whole[5:])[3:],
        pa.py_buffer(whole),
        lease.view(">i8")[1:],
    ]
    del lease, whole
    while holders:
        other = pool.take()
        assert address(other) != where, f"reused beside {holders}"
        other[:] = 0
        del other
        assert np.frombuffer(holders[-1], np.uint8).max() == 7
        holders.pop()
    leases = [pool.take() for _ in range(pool.allocated)]
    assert where in {address(lease) for lease in leases}
    assert pool.allocated == 2


def test_reuse_needs_no_garbage_collection() -> None:
    pool = BufferPool(1 << 20)
    gc.disable()
    try:
        for n in range(50):
            block = pool.take()[: n + 1]
            del block
    finally:
        gc.enable()
    assert pool.allocated == 1


def test_at_most_keep_unused_buffers_are_held() -> None:
    pool = BufferPool(4096, keep=2)
    leases = [pool.take() for _ in range(5)]
    leases.clear()
    again = [pool.take() for _ in range(5)]
    assert pool.allocated == 8
    assert len({address(lease) for lease in again}) == 5


def test_leases_outlive_their_pool() -> None:
    pool = BufferPool(4096)
    lease = pool.take()
    lease[:] = 9
    gone = weakref.ref(pool)
    del pool
    assert gone() is None
    assert lease[1:].tolist() == [9] * 4095


def test_threads_never_share_a_lease() -> None:
    pool = BufferPool(256, keep=3)
    wrong: list[int] = []

    def work(mark: int) -> None:
        for _ in range(500):
            lease = pool.take()
            lease[:] = mark
            view = lease[100:]
            del lease
            if (view != mark).any():
                wrong.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # other tests may have left threads
def test_a_forked_process_has_its_own_memory() -> None:
    pool = BufferPool(4096)
    lease = pool.take()
    lease[:] = 1
    pid = os.fork()
    if not pid:
        lease[:] = 2
        os._exit(int(lease[0]))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
    assert lease.max() == 1


@pytest.mark.parametrize(("size", "keep"), [(0, 1), (1, -1)])
def test_impossible_pools(size: int, keep: int) -> None:
    with pytest.raises(ValueError, match=f"buffers of {size} bytes that keeps {keep}"):
        BufferPool(size, keep)
