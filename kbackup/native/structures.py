"""Memory that Python and the kernels share, with a name for each field.

The annotations of a class are the fields of a structure, eight bytes each. Python reads and writes a structure as an
object of that class, and so does a kernel, to which numba gives it as a record: both say `state.position`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar, cast

import numpy as np

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Structures(Protocol[T_co]):
    """An array of structures."""

    def __getitem__(self, row: int) -> T_co: ...

    def __len__(self) -> int: ...


def layout_of(fields: type) -> np.dtype[np.void]:
    """Return the layout of a structure: its fields in the order of the class, each a signed integer of eight bytes."""
    return np.dtype([(name, np.int64) for name in fields.__annotations__])


def offset_of(fields: type, name: str) -> int:
    """Return the bytes from the start of a structure to one of its fields."""
    entry = layout_of(fields).fields
    assert entry is not None  # noqa: S101 (a layout has named fields)
    return entry[name][1]


def make_structure(fields: type[T]) -> T:
    """Return a structure whose fields are all 0."""
    return make_structures(fields, 1)[0]


def make_structures(fields: type[T], count: int) -> Structures[T]:
    """Return an array of `count` structures whose fields are all 0."""
    return cast(Structures[T], np.zeros(count, layout_of(fields)).view(np.recarray))


def structures_of(fields: type[T], values: Sequence[tuple[Any, ...]]) -> Structures[T]:
    """Return an array of structures with these values, each a tuple in the order of the fields."""
    return cast(Structures[T], np.array(values, layout_of(fields)).view(np.recarray))


def twice_as_many(rows: Structures[T]) -> Structures[T]:
    """Return the structures, and as many behind them whose fields are all 0."""
    old = np.asarray(rows)
    return cast(Structures[T], np.concatenate([old, np.zeros_like(old)]).view(np.recarray))
