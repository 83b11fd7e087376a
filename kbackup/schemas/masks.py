"""What masks put in the place of values, whatever format these have, and what they say where that can't be done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from kbackup.errors import UndecodableError, UsageError

Scalar = str | bytes | int | float | bool | None

Tree: TypeAlias = "dict[str, Tree]"
"""The names of fields, each with the tree of what is below it; an empty tree below a name that is masked."""

HINT = "mask all of it by the path 'key' or 'value', or leave such records out"


@dataclass(frozen=True)
class Mask:
    """What stands in the place of a value: the `digest` of its text, or the same `value` everywhere. `name` is of the
    function, for messages."""

    name: str
    value: Scalar = None
    digest: Callable[[bytes], str] | None = None

    @property
    def keeps_null(self) -> bool:
        """Return whether null stays null."""
        return self.digest is not None

    @property
    def is_null(self) -> bool:
        """Return whether null stands in the place of all values."""
        return self.digest is None and self.value is None

    def of(self, text: bytes) -> Scalar:
        """Return what stands in the place of a value with this text."""
        return self.value if self.digest is None else self.digest(text)

    def refuse(self, place: str, kind: str, *, is_nest: bool = False) -> NoReturn:
        """Raise the error of a type that can't hold what the mask puts there. A nest has fields of its own."""
        if self.digest is not None:
            what = "a digest"
            hint = "null it, or fix it to a value of its type"
        elif self.value is None:
            what = "null"
            hint = "fix it to a value of its type"
        else:
            what = repr(self.value)
            hint = "give a value of its type"
        if is_nest:
            hint = f"name the fields inside it, or {hint}"
        raise UsageError(f"{self.name}: {place} is of type {kind}, which can't hold {what}", hint)


def refuse_path(place: str, kind: str) -> NoReturn:
    """Raise the error of a value that has no fields, though a path goes on in it: it may be what is to be hidden."""
    raise UndecodableError(f"{place} is of type {kind}, though a path goes on in it", HINT)
