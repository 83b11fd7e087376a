"""The files at the root of an archive: archive.json and lock.json."""

from __future__ import annotations

from typing import Literal

from kbackup.archive.models.document import Document
from kbackup.util.text import ArchiveId


class ArchiveInfo(Document, frozen=True, kw_only=True):
    """archive.json"""

    format: Literal["kbackup-archive"] = "kbackup-archive"
    version: int = 2
    id: ArchiveId
    created_at: str
    encryption: str | None = None


class Lease(Document, frozen=True, kw_only=True):
    """lock.json. A holder renews it; `released` is set when it ended well."""

    format: Literal["kbackup-lease"] = "kbackup-lease"
    owner: str
    host: str
    pid: int
    command: str
    acquired_at: str
    expires_at: str
    released: bool = False
