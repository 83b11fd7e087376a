"""The records of an archive that its flows have not applied yet."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from kbackup.archive.catalog.holds import Hold
from kbackup.jobs.mirror.status.document import read_status
from kbackup.store.base import Store


def flow_holds(store: Store, archive_id: str, grace: timedelta) -> list[Hold]:
    """Return the records that flows still have to read; flows without a sign of life within the grace time have
    none."""
    oldest = datetime.now(UTC) - grace
    return [
        Hold(
            name=status.name,
            restore_point=status.restore_point,
            positions={topic.source: (topic.incarnation, topic.applied) for topic in status.topics},
        )
        for status in read_status(store)
        if status.archive_id == archive_id and datetime.fromisoformat(status.written_at) >= oldest
    ]
