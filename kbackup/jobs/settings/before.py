"""Store the settings of a target before they are changed: restores/<id>/settings-before-<n>.json.

Stored before each change, so that it can be undone; numbered from 1, created and never replaced. It holds no secret:
sensitive configs are never changed.
"""

from __future__ import annotations

from typing import Literal

from kbackup.archive.models import Document
from kbackup.jobs.common import NumberedCaptures
from kbackup.jobs.settings.plan import Changes
from kbackup.store.base import Store
from kbackup.util.times import now


class SettingsBefore(Document, frozen=True, kw_only=True):
    """restores/<id>/settings-before-<number>.json: `changes` were about to be made; each has the value `before`. ACLs
    that were to be made were not there, those that were to be deleted were."""

    format: Literal["kbackup-settings-before"] = "kbackup-settings-before"
    restore_id: str
    number: int
    by: Literal["restore", "undo"]
    captured_at: str
    target_cluster_id: str
    changes: Changes


class SettingsCaptures(NumberedCaptures[SettingsBefore]):
    """The captures of settings of one restore on `state`."""

    def __init__(self, state: Store, restore_id: str) -> None:
        super().__init__(SettingsBefore, "settings-before", state, restore_id)

    def write(self, by: Literal["restore", "undo"], cluster_id: str, changes: Changes) -> int:
        """Store what is about to be changed; returns its number. The changes may be made from then on."""
        return self.create(
            lambda number: SettingsBefore(
                restore_id=self.restore_id,
                number=number,
                by=by,
                captured_at=now(),
                target_cluster_id=cluster_id,
                changes=changes,
            )
        )
