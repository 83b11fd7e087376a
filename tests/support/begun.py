"""Restores that the version before began (`tests/golden/begun/README.md`), beside the archives that they are of."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from kbackup.archive import layout
from kbackup.config.models import Restore
from kbackup.store import Store, open_store
from tests.support.archives import KEPT

BEGUN = KEPT.parent / "begun"
KINDS = ("plain", "encrypted")
TARGET = "bJlyzgRfSbG3ixBrnGXG1w"
"""The id of the cluster that they were begun into."""


class BegunArchive(NamedTuple):
    """A copy of an archive with its restores. `kind` is plain or encrypted."""

    kind: str
    store: Store

    @property
    def group(self) -> str:
        """The group of restore `mapped` on the target."""
        return f"{self.kind}-mapped-billing"

    def options(self, restore_id: str) -> Restore:
        """Return the options that a restore was begun with."""
        prefix = f"{self.kind}-{restore_id}"
        return Restore(
            restore_id=restore_id,
            topics=("/.*/",),
            exclude_topics=("nothing",),
            to_time="2100-01-01T00:00:00Z",
            skip=("orders:0:25",),
            map={"orders": f"{prefix}-orders"},
            map_regex=(f"^cl={prefix}-cl",),
            map_group={"billing": f"{prefix}-billing"},
            settings=("configs", "quotas"),
            topic_config={"retention.ms": "-1"},
            replication_factor=1,
            transaction_bytes=2000,
        )


def begun_archive(kind: str, folder: Path) -> BegunArchive:
    """Return a copy of an archive and its restores in `folder`."""
    shutil.copytree(KEPT / "0.1.0" / kind, folder, dirs_exist_ok=True)
    shutil.copytree(BEGUN / kind, folder, dirs_exist_ok=True)
    key = f"file:{KEPT}/0.1.0/key" if kind == "encrypted" else ""
    return BegunArchive(kind, open_store(str(folder), key=key, key_class=layout.key_class))
