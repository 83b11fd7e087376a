"""The document of a target's settings before they are changed: restores/<id>/settings-before-<n>.json.

A capture is stored before each change, so that the change can be undone. Captures are numbered from 1, created and
never replaced. They hold no secret: sensitive configs are never changed.
"""

from __future__ import annotations

from typing import Literal

from kbackup.archive.models import Document
from kbackup.archive.restores.journal import NumberedCaptures
from kbackup.jobs.settings.plan import Changes


class SettingsBefore(Document, frozen=True, kw_only=True):
    """restores/<id>/settings-before-<number>.json: `changes` were about to be made; each has the value `before`. ACLs
    that were to be made were not there, and ACLs that were to be deleted were there."""

    format: Literal["kbackup-settings-before"] = "kbackup-settings-before"
    restore_id: str
    number: int
    by: Literal["restore", "undo"]
    captured_at: str
    target_cluster_id: str
    changes: Changes


class SettingsCaptures(NumberedCaptures[SettingsBefore]):
    kind, name = SettingsBefore, "settings-before"
