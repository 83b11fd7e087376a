"""Read the fields of archived records, in loops that numba compiles where it is installed, and that plain Python runs
elsewhere.

Every length is checked to lie inside its record before anything is read. Plain Python gets memoryviews in place of
arrays, whose elements are Python's own integers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from struct import Struct
from typing import Any

import numpy as np

from kbackup.types import Bytes

numba: Any = None
if os.environ.get("KBACKUP_KERNEL") != "python":  # as `native.kernel` reads it
    with suppress(ImportError):
        numba = import_module("numba")
COMPILED = numba is not None
int64: Any = numba and numba.int64
uint64: Any = numba and numba.uint64

# Nothing is allocated, so that arrays need no counts of references (`_nrt`): those took two thirds of the time.
_OPTIONS = {"_nrt": False}

LEAST_RECORD = 24
"""Bytes of the shortest archived record."""

_PLAIN = Struct(">I")


def inline(function: Callable[..., Any]) -> Any:
    """Make `function` a part of the loops that call it."""
    return numba.njit(forceinline=True, **_OPTIONS)(function) if COMPILED else function


def given(kind: Any) -> Any:
    """Return numba's type of an array that is only read."""
    return numba.types.Array(kind, 1, "C", readonly=True)


def compiled(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a loop for one signature, and keep the result where there is a place for it."""

    def compile_(function: Callable[..., Any]) -> Any:
        try:
            return numba.njit(signature, cache=True, nogil=True, **_OPTIONS)(function)
        except RuntimeError:  # no place to keep compiled code
            from kbackup.native.kept_code import folder_of_this_process

            with folder_of_this_process():
                return numba.njit(signature, cache=True, nogil=True, **_OPTIONS)(function)

    return compile_


def viewed(argument: Any) -> Any:
    """Return what plain Python gets in place of an array, or of a tuple of them."""
    if isinstance(argument, np.ndarray):
        return argument.data
    if isinstance(argument, tuple):
        return type(argument)(*(column.data for column in argument))
    return argument


@inline
def word_at(data: Any, at: Any) -> Any:
    if COMPILED:
        at = uint64(at)  # so that the compiler sees four bytes in a row, and makes one load of them
        one, two, three = at + uint64(1), at + uint64(2), at + uint64(3)
        return int64(data[at]) << 24 | int64(data[one]) << 16 | int64(data[two]) << 8 | int64(data[three])
    return _PLAIN.unpack_from(data, at)[0]


@inline
def int32_at(data: Bytes, at: int) -> Any:
    return (word_at(data, at) ^ 0x80000000) - 0x80000000


@inline
def int64_at(data: Bytes, at: int) -> Any:
    return int32_at(data, at) << 32 | word_at(data, at + 4)


@inline
def read_field(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return the position of a field whose length is at `at`, and its length: -1 for null, -2 if it goes past `end`."""
    if end - at < 4:
        return end, -2
    length = int32_at(data, at)
    at += 4
    if length < -1 or length > end - at:
        return end, -2
    return at, length
