"""The newest catalog that this machine has read at each address, by its number and checksum.

Whoever may write to a bucket can replace catalogs, or with more rights delete the newest ones, and then the archive is
another one, without a trace in the bucket. A machine that has read the catalog notices.
"""

from __future__ import annotations

import hashlib
import json
import logging
from contextlib import suppress
from pathlib import Path

from kbackup.archive import layout
from kbackup.archive.catalog.commit import far_numbers, list_catalogs
from kbackup.archive.catalog.documents import Catalog, Link
from kbackup.archive.models import load
from kbackup.errors import CorruptError, MismatchError, NotFoundError, WrongKeyError
from kbackup.store.base import Store
from kbackup.util.system import read_own, write_own

log = logging.getLogger(__name__)
_TRIED = 3


class SeenCatalog:
    """The memory of one archive's newest catalog: a file in `folder`, named by the archive's address."""

    def __init__(self, store: Store, folder: Path) -> None:
        address = json.dumps([store.address.server, *store.address.path])
        self._store = store
        self._file = folder / f"{hashlib.sha256(address.encode()).hexdigest()}.json"

    def check(self, accept_rollback: bool) -> None:
        """Raise `MismatchError` if the newest catalog is older than the one read before, or that one was replaced.
        One LIST, and a GET for each of the two catalogs."""
        seen = self._read()
        numbers = self._numbers(seen.number)
        newest = self._newest(numbers, seen.number)
        is_damaged = seen.number in numbers and newest.number < seen.number  # the command names it, and repair mends it
        if newest.number < seen.number and not is_damaged and not accept_rollback:
            raise MismatchError(
                f"archive {self._store.url} went back: its newest catalog is {newest.number or 'missing'}, "
                f"this machine has seen catalog {seen.number}",
                "find out who deleted the newer ones and restore them from bucket versions or a copy; "
                "pass --accept-rollback to go on with the older state",
            )
        now = self._load(seen.number) if seen.checksum and seen.number in numbers else None
        if now is not None and now.checksum != seen.checksum and not accept_rollback:
            raise MismatchError(
                f"archive {self._store.url} is another one: catalog {seen.number} is not the one that this machine "
                "has seen",
                "find out who replaced it and restore it from a bucket version or a copy; "
                "pass --accept-rollback to go on with the archive as it is",
            )
        if not is_damaged:
            self._keep(newest, seen)

    def remember(self) -> None:
        """Keep the newest catalog, which this command may have committed. One LIST, one GET."""
        seen = self._read()
        self._keep(self._newest(self._numbers(seen.number), seen.number), seen)

    def _numbers(self, seen: int) -> list[int]:
        """List the catalogs from the one that was seen on, or all where none of them follows it closely."""
        numbers = list_catalogs(self._store, seen)
        return list_catalogs(self._store) if seen > 1 and not {*numbers} - far_numbers(numbers, seen) else numbers

    def _load(self, number: int) -> Link | None:
        """Return a catalog's number and checksum; None if it can't be read, which the command reports."""
        key = layout.catalog_key(number)
        with suppress(NotFoundError, CorruptError, WrongKeyError):
            catalog = load(Catalog, self._store.get(key), key)
            return Link(number=number, checksum=catalog.checksum) if catalog.number == number else None
        return None

    def _newest(self, numbers: list[int], seen: int) -> Link:
        """Return the newest catalog that can be read: anybody who may write can put an object under a number. Without
        one, as without the key, the newest number that is not far beyond `seen`, and no checksum."""
        near = sorted({*numbers} - far_numbers(numbers, seen))
        for number in [*reversed(numbers[-_TRIED:]), *reversed(near[-_TRIED:])]:
            if (found := self._load(number)) is not None:
                return found
        return Link(number=max(near or numbers, default=0), checksum="")

    def _keep(self, newest: Link, seen: Link) -> None:
        if newest == seen or (newest.number and not newest.checksum):
            return
        document = {"archive": self._store.url, "catalog": newest.number, "checksum": newest.checksum}
        try:
            write_own(self._file, json.dumps(document).encode() + b"\n")
        except OSError as error:
            log.info("the newest catalog can't be kept in %s: %s", self._file.parent, error.strerror)

    def _read(self) -> Link:
        """Return the newest catalog that was seen; number 0 if none is kept or readable."""
        try:
            document = json.loads(read_own(self._file))
            return Link(number=int(document["catalog"]), checksum=str(document.get("checksum", "")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return Link(number=0, checksum="")
