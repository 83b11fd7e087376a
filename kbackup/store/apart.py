"""Check that two stores share no objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbackup.errors import UsageError

if TYPE_CHECKING:
    from kbackup.store.base import Store


def check_apart(destination: Store, archive: Store) -> None:
    """Raise `UsageError` if `destination` is the address of `archive`, lies in it, or holds it."""
    if destination.address == archive.address:
        relation = "is the archive itself"
    elif archive.address.holds(destination.address):
        relation = "lies within the archive"
    elif destination.address.holds(archive.address):
        relation = "holds the archive"
    else:
        return
    at_url = "" if destination.url == archive.url else f" at {archive.url}"
    raise UsageError(
        f"destination {destination.url} {relation}{at_url}", "name a destination outside the archive"
    )
