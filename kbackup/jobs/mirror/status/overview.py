"""The flows of an archive as people look at them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from kbackup.archive.reader import Archive
from kbackup.jobs.mirror.status.document import FlowStatus, Incident, Refusal, read_status
from kbackup.jobs.mirror.status.lag import flow_lag
from kbackup.store.base import Store


@dataclass(frozen=True)
class TopicOverview:
    """`applied` are the applied positions of `incarnation` by partition: the next source offset to apply."""

    topic: str
    remote: str
    incarnation: int
    applied: tuple[int, ...]
    records_behind: int
    held_back: str


@dataclass(frozen=True)
class FlowOverview:
    """`restore_point` is applied, `newest_restore_point` is the archive's. `silent_seconds` have passed since the flow
    gave a sign of life. The numbers of records are those of the process that runs, or ran last. `records_behind` is
    None where the flow has not seen its topics yet."""

    flow: str
    source: str
    target: str
    restore_point: int
    restore_point_at: str
    newest_restore_point: int
    newest_restore_point_at: str
    records_behind: int | None
    seconds_behind: float
    written_at: str
    silent_seconds: float
    started_at: str
    rounds: int
    records: int
    bytes: int
    round_at: str
    round_records: int
    round_bytes: int
    round_seconds: float
    topics: tuple[TopicOverview, ...]
    incidents: tuple[Incident, ...]
    refusals: tuple[Refusal, ...]
    error: str

    @property
    def held_back(self) -> tuple[TopicOverview, ...]:
        return tuple(topic for topic in self.topics if topic.held_back)


def flows_of(archive: Archive, state: Store, at: datetime | None = None) -> list[FlowOverview]:
    """The flows of an archive that have begun, at a time (default: now). `state` is where they keep theirs, as
    a rule the archive's store. A flow of another archive that shares `state` is left out."""
    at = at or datetime.now(UTC)
    statuses = [status for status in read_status(state) if status.archive_id == archive.info.id]
    return [_overview(archive, status, at) for status in statuses]


def _overview(archive: Archive, status: FlowStatus, at: datetime) -> FlowOverview:
    lag = flow_lag(archive.state, status, at)
    silent = (at - datetime.fromisoformat(status.written_at)).total_seconds()
    return FlowOverview(
        flow=status.name,
        source=status.source,
        target=status.target,
        restore_point=status.restore_point,
        restore_point_at=status.restore_point_at,
        newest_restore_point=lag.newest,
        newest_restore_point_at=lag.newest_at,
        records_behind=lag.records,
        seconds_behind=lag.seconds,
        written_at=status.written_at,
        silent_seconds=max(0.0, round(silent, 3)),
        started_at=status.started_at,
        rounds=status.rounds,
        records=status.records,
        bytes=status.bytes,
        round_at=status.round_at,
        round_records=status.round_records,
        round_bytes=status.round_bytes,
        round_seconds=status.round_seconds,
        topics=tuple(
            TopicOverview(
                topic=topic.source,
                remote=topic.remote,
                incarnation=topic.incarnation,
                applied=topic.applied,
                records_behind=lag.topics[topic.remote],
                held_back=topic.held_back,
            )
            for topic in status.topics
        ),
        incidents=status.incidents,
        refusals=status.refusals,
        error=status.error,
    )
