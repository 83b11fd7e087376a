"""What stood on a target before settings were changed: restores/<id>/settings-before-<n>.json.

Stored before each change, so that it can be undone; numbered from 1, created and never replaced. It holds no secret:
sensitive configs are never changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from kbackup.archive import layout
from kbackup.archive.models import Document, dump, load, now
from kbackup.errors import AlreadyExistsError
from kbackup.jobs.settings.changes import Changes
from kbackup.store.base import Store

_NAME = re.compile(r"^settings-before-([1-9][0-9]*)\.json$")


class SettingsBefore(Document, frozen=True, kw_only=True):
    """restores/<id>/settings-before-<number>.json: `changes` were about to be made; each says what stood `before`.
    ACLs that were to be made were not there, those that were to be deleted were."""

    format: Literal["kbackup-settings-before"] = "kbackup-settings-before"
    restore_id: str
    number: int
    by: Literal["restore", "undo"]
    captured_at: str
    target_cluster_id: str
    changes: Changes


@dataclass(frozen=True)
class SettingsCaptures:
    """The captures of one restore on `state`."""

    state: Store
    restore_id: str

    def every(self) -> Iterator[SettingsBefore]:
        for number in self._numbers():
            key = self._key(number)
            yield load(SettingsBefore, self.state.get(key), key)

    def write(self, by: Literal["restore", "undo"], cluster_id: str, changes: Changes) -> int:
        """Store what is about to be changed; returns its number. The changes may be made from then on."""
        number = max(self._numbers(), default=0) + 1
        while True:
            document = SettingsBefore(
                restore_id=self.restore_id,
                number=number,
                by=by,
                captured_at=now(),
                target_cluster_id=cluster_id,
                changes=changes,
            )
            try:
                self.state.put_new(self._key(number), dump(document))
            except AlreadyExistsError:
                number += 1
                continue
            return number

    def _numbers(self) -> list[int]:
        prefix = layout.restore_key(self.restore_id, "settings-before-")
        names = (entry.key.rpartition("/")[2] for entry in self.state.list(prefix))
        return sorted(int(found[1]) for name in names if (found := _NAME.match(name)))

    def _key(self, number: int) -> str:
        return layout.restore_key(self.restore_id, f"settings-before-{number}.json")
