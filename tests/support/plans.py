"""Plans of restores, of which a test names what it is about."""

from __future__ import annotations

from typing import Any

from kbackup.archive.restores.plan import PlannedTopic, RestorePlan


def restore_plan(**other: Any) -> RestorePlan:
    given = {"restore_id": "r", "archive_id": "x", "restore_point": 1, "target_cluster_id": "c", "created_at": ""}
    more = {"transactions": True, "transaction_bytes": 1, "into_existing": False}
    return RestorePlan(**{**given, **more, "topics": (), "units": (), "groups": (), **other})


def planned_topic(source: str, target: str) -> PlannedTopic:
    """A topic of two partitions with ten records."""
    return PlannedTopic(
        source=source,
        target=target,
        incarnation=1,
        as_of=1,
        partitions=2,
        records=10,
        bytes=100,
        configs={},
        replication_factor=1,
    )
