"""The newest catalog number that this machine has seen at each address.

Whoever may write to a bucket can delete its newest catalogs, and then the archive is an older one, without a trace
in the bucket. A machine that has seen a newer catalog notices.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from contextlib import suppress
from pathlib import Path

from kbackup.archive import layout
from kbackup.errors import MismatchError
from kbackup.store.base import Store

log = logging.getLogger(__name__)


class SeenCatalog:
    """The memory of one archive's newest catalog number: a file in `folder`, named by the archive's address."""

    def __init__(self, store: Store, folder: Path) -> None:
        address = json.dumps([store.address.server, *store.address.path])
        self._store = store
        self._file = folder / f"{hashlib.sha256(address.encode()).hexdigest()}.json"

    def check(self, accept_rollback: bool) -> None:
        """Raise `MismatchError` where the newest catalog is older than the one seen before. One LIST."""
        seen, newest = self._read(), self._newest()
        if newest < seen and not accept_rollback:
            raise MismatchError(
                f"archive {self._store.url} went back: its newest catalog is {newest or 'missing'}, "
                f"this machine has seen catalog {seen}",
                "find out who deleted the newer ones and restore them from bucket versions or a copy; "
                "pass --accept-rollback to go on with the older state",
            )
        self._write(newest)

    def remember(self) -> None:
        """Keep the number of the newest catalog, which this command may have committed. One LIST."""
        self._write(self._newest())

    def _newest(self) -> int:
        seen = self._read()
        start = layout.catalog_key(seen - 1) if seen > 1 else ""
        keys = (entry.key for entry in self._store.list(layout.CATALOG, start))
        newest = max((number for key in keys if (number := layout.parse_catalog_key(key))), default=0)
        if newest or not start:
            return newest
        keys = (entry.key for entry in self._store.list(layout.CATALOG))
        return max((number for key in keys if (number := layout.parse_catalog_key(key))), default=0)

    def _read(self) -> int:
        """Return the highest number that was seen; 0 where none is kept or readable."""
        try:
            return int(json.loads(self._file.read_bytes())["catalog"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def _write(self, number: int) -> None:
        if number == self._read():
            return
        made = self._file.with_suffix(f".{os.getpid()}")
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            made.write_text(json.dumps({"archive": self._store.url, "catalog": number}) + "\n")
            made.replace(self._file)
        except OSError as error:
            log.info("the newest catalog number can't be kept in %s: %s", self._file.parent, error.strerror)
            with suppress(OSError):
                made.unlink()
