"""The command line and archives of the integration tests."""

from __future__ import annotations

from tests.integration.conftest import archive, archive_bucket, kbackup, new_archive

__all__ = ["archive", "archive_bucket", "kbackup", "new_archive"]
