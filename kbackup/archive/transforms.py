"""The function through which records go on their way out of an archive, as documents name it."""

from __future__ import annotations

from msgspec import UnsetType

from kbackup.archive.models import Member


class TransformRef(Member, frozen=True, kw_only=True):
    """A function of a file of Python: `name` is `FILE:FUNCTION`, without folders. `sha256` is of the file's bytes."""

    name: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.name} (sha256 {self.sha256[:12]})"

    @property
    def function(self) -> str:
        _, _, function = self.name.rpartition(":")
        return function


def named_transform(transform: TransformRef | UnsetType) -> TransformRef | None:
    """Return the transform of a document, None if it has none."""
    return None if isinstance(transform, UnsetType) else transform


def is_same_transform(one: TransformRef | None, other: TransformRef | None) -> bool:
    """Return whether two transforms do the same: the same function of the same bytes, whatever the file's name; or
    neither is there."""
    if one is None or other is None:
        return one is other
    return (one.function, one.sha256) == (other.function, other.sha256)
