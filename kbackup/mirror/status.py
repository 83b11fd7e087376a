"""How far each flow is: lag, rounds, holds on restore points, and the overview of an archive.

The apply half writes a document into the archive at the end of each round. It is what `kbackup mirror status`, the web
page and `expire` know of a flow; no cluster is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from kbackup import __version__
from kbackup.archive.catalog.state import RetentionHold, State
from kbackup.archive.models import Manifest
from kbackup.archive.reader import Archive
from kbackup.archive.restores.unmapped import UnmappedRecords, sum_unmapped
from kbackup.archive.segments.table import SCHEMA, integers, of_topics
from kbackup.mirror.flow import FlowStatus, Incident, Refusal, TopicStatus, read_status
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from kbackup.util.times import now

if TYPE_CHECKING:
    from kbackup.mirror.apply.pending import Applied
    from kbackup.mirror.flow import AppliedPosition, Flow, RemoteTopic


_COLUMNS = ("topic", "incarnation", "partition", "first", "last", "count")


@dataclass(frozen=True)
class FlowLag:
    """`records` of the archive are not applied yet, `topics` has them by remote topic; None if the flow's topics
    are not known yet. `seconds` have passed since the first restore point that is not applied was committed; 0 where
    the newest one, `newest`, is applied."""

    newest: int
    newest_at: str
    records: int | None
    seconds: float
    topics: dict[str, int]


def flow_lag(state: State, status: FlowStatus, at: datetime | None = None) -> FlowLag:
    """Compare the applied positions of a flow with an archive's state, at a time (default: now)."""
    topics = records_behind(state, status.topics)
    seconds = 0.0
    waiting = [point for point in state.restore_points if point.number > status.restore_point]
    if waiting:
        since = datetime.fromisoformat(waiting[0].committed_at)
        moment = at or datetime.now(UTC)
        seconds = max(0.0, round((moment - since).total_seconds(), 3))
    # Before the first round the topics are not known, so nobody can say how many records are behind.
    records: int | None = None
    if status.topics or status.restore_point > 0:
        records = sum(topics.values())
    newest = state.newest
    if newest is None:
        return FlowLag(0, "", records, seconds, topics)
    return FlowLag(newest.number, newest.committed_at, records, seconds, topics)


def round_lag(state: State, status: FlowStatus) -> FlowLag:
    """Return the lag at the end of a round. Where a flow has applied the newest restore point and holds no topic back,
    only the records of topics that it has not begun with are counted."""
    newest = state.newest
    is_any_held_back = any(topic.held_back for topic in status.topics)
    if newest is None or newest.number > status.restore_point or is_any_held_back:
        return flow_lag(state, status)
    not_begun = tuple(topic for topic in status.topics if topic.incarnation < 0)
    topics = {topic.remote: 0 for topic in status.topics}
    topics |= records_behind(state, not_begun)
    records = sum(topics.values())
    return FlowLag(newest.number, newest.committed_at, records, 0.0, topics)


def records_behind(state: State, topics: tuple[TopicStatus, ...]) -> dict[str, int]:
    """Return, by remote topic, the number of archived records beyond the applied positions. A topic that was never
    applied begins with its newest incarnation. In a segment that is applied in part, records are taken to be spread
    evenly over its offsets."""
    by_source = {topic.source: topic for topic in topics}
    table = state.segments.read(_COLUMNS) if topics else SCHEMA.empty_table()
    if not len(table):
        return {topic.remote: 0 for topic in topics}
    table = of_topics(table, by_source)
    encoded = table.column("topic").combine_chunks().dictionary_encode()
    names: list[Any] = encoded.dictionary.to_pylist()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    incarnation, partition, first, last, count = (integers(table, name) for name in _COLUMNS[1:])

    incarnations: list[int] = []
    positions_of: list[int] = []
    lengths = [0]
    for name in names:
        topic = by_source[name]
        if topic.incarnation >= 0:
            applied = topic.applied
            incarnations.append(topic.incarnation)
        else:
            applied = ()
            incarnations.append(state.highest.get(name, 0))
        positions_of += [*applied, 0]
        lengths.append(len(applied))
    applied_in = np.array(incarnations, np.int64)
    # the positions of topic n begin at starts[n] + n; a 0 ends each topic's
    starts = np.cumsum(lengths, dtype=np.int64)
    positions = np.array(positions_of, np.int64)

    # By columns, as an archive has millions of segments. A partition that the flow has not reached takes its topic's
    # last position, which is the 0 at the end.
    index = np.minimum(partition, starts[codes + 1] - starts[codes])
    following = positions[starts[codes] + codes + index]
    following = np.where(incarnation == applied_in[codes], following, 0)
    following = np.where(incarnation < applied_in[codes], last + 1, following)
    offsets = np.clip(last + 1 - np.maximum(following, first), 0, None)
    behind = -(-count * offsets // np.maximum(last + 1 - first, 1))
    sums = np.zeros(len(names), np.int64)
    np.add.at(sums, codes, behind)
    counts: list[int] = sums.tolist()
    by_topic = dict(zip(names, counts, strict=True))
    return {topic.remote: by_topic.get(topic.source, 0) for topic in topics}


_INCIDENTS = 100  # newest ones that a status keeps


def first_status(flow: Flow, archive_id: str, before: FlowStatus | None) -> FlowStatus:
    """Return the status of a process that starts. It takes over from the flow's last one, `before`, what is applied,
    and the incidents."""
    at = now()
    earlier_incidents = before.incidents if before is not None else ()
    status = FlowStatus(
        source=flow.source,
        target=flow.target,
        archive_id=archive_id,
        tool=f"kbackup {__version__}",
        started_at=at,
        written_at=at,
        incidents=earlier_incidents,
    )
    # Of another archive, positions and restore points mean nothing here.
    if before is None or before.archive_id != archive_id:
        return status
    applied = {name: getattr(before, name) for name in ("restore_point", "restore_point_at", "topics", "unmapped")}
    return _replace(status, **applied)


def planned(before: FlowStatus, topics: Sequence[RemoteTopic]) -> FlowStatus:
    """Return the status of a round that begins. `topics` are the topics that the flow selects. Of a new one
    nothing is applied yet, so that its records count as behind, and `expire` keeps them."""
    known = {topic.remote: topic for topic in before.topics}
    planned_topics: list[TopicStatus] = []
    for topic in topics:
        status = known.get(topic.remote) or _topic(topic, {}, "")
        planned_topics.append(status)
    return _replace(before, topics=tuple(planned_topics))


def after_round(
    before: FlowStatus,
    point: Manifest,
    topics: Sequence[RemoteTopic],
    applied: Applied,
    refused: Mapping[str, Mapping[str, str] | Iterable[str]],
) -> FlowStatus:
    """Return the status after a round that applied `point`. `topics` are the topics that the flow selects.

    `refused` has the target's reasons by subject ('topics', 'configs', 'acls', 'groups'): texts, or reasons by name.
    Refusals of a subject that is not in it stay: the round did not set it.
    """
    at = now()
    held_back = {each.remote: each.message for each in applied.held_back}
    topic_reasons = refused.get("topics", {})
    if isinstance(topic_reasons, Mapping):
        held_back |= topic_reasons
    # A round that only did its duties would hide what the last round with records took.
    if applied.records or applied.point > before.restore_point:
        before = _replace(
            before,
            round_at=at,
            round_records=applied.records,
            round_bytes=applied.bytes,
            round_seconds=round(applied.seconds, 3),
        )
    incidents = [*before.incidents, *incidents_of(applied, at)]
    unmapped = sum_unmapped([*before.unmapped, *applied.unmapped])
    return _replace(
        before,
        written_at=at,
        restore_point=applied.point,
        restore_point_at=point.committed_at,
        rounds=before.rounds + 1,
        records=before.records + applied.records,
        bytes=before.bytes + applied.bytes,
        topics=topics_after_round(before.topics, topics, applied, held_back, at),
        incidents=tuple(incidents[-_INCIDENTS:]),
        refusals=refusals_after_round(before.refusals, refused),
        error="",
        unmapped=unmapped,
    )


def topics_after_round(
    before: Iterable[TopicStatus],
    topics: Iterable[RemoteTopic],
    applied: Applied,
    held_back: Mapping[str, str],
    at: str,
) -> tuple[TopicStatus, ...]:
    """Return the status of each topic. One that was held back before keeps the time since when; an older kbackup has
    not written it."""
    known = {topic.remote: topic for topic in before}
    after: list[TopicStatus] = []
    for topic in topics:
        reason = held_back.get(topic.remote, "")
        former = known.get(topic.remote)
        since = at if reason else ""
        if reason and former is not None and former.held_back:
            since = former.held_since or at
        after.append(_topic(topic, applied.positions, reason, since))
    return tuple(after)


def incidents_of(applied: Applied, at: str) -> list[Incident]:
    """Return what a round noticed: deleted remote topics, new incarnations, and lost records."""
    incidents: list[Incident] = []
    for deleted in applied.deleted:
        incidents.append(Incident(at=at, topic=deleted.topic, message=deleted.message))
    for recreated in applied.recreated:
        incidents.append(Incident(at=at, topic=recreated.topic, message=recreated.message))
    for lost in applied.too_late:
        incident = Incident(
            at=at, topic=lost.topic, partition=lost.partition, start=lost.start, end=lost.end, message=lost.message
        )
        incidents.append(incident)
    return incidents


def refusals_after_round(
    before: Iterable[Refusal], refused: Mapping[str, Mapping[str, str] | Iterable[str]]
) -> tuple[Refusal, ...]:
    """Return the refusals of each subject, each reason once. Those of a subject that the round did not set stay."""
    # Each subject has a clock of its own, so most rounds set a few of them.
    refusals = [refusal for refusal in before if refusal.subject not in refused]
    for subject, reasons in refused.items():
        if subject == "topics":  # `held_back` of each topic says it
            continue
        texts = reasons.values() if isinstance(reasons, Mapping) else reasons
        for reason in dict.fromkeys(texts):
            refusals.append(Refusal(subject=subject, reason=reason))
    return tuple(refusals)


def news_of(status: FlowStatus) -> object:
    """Return what a reader wants to know at once: all but how far the flow is."""
    topics = [(topic.remote, topic.incarnation, topic.held_back) for topic in status.topics]
    return topics, status.incidents, status.refusals, status.error, status.unmapped


def after_error(before: FlowStatus, message: str) -> FlowStatus:
    """Return the status after a round that failed, or after what ended the process."""
    return _replace(before, written_at=now(), error=message)


def with_unreported(before: FlowStatus, applied: Applied) -> Applied:
    """Add to a round's `recreated` the topics that it holds back and that the status does not report yet."""
    reported = {topic.held_back for topic in before.topics}
    reported.update(incident.message for incident in before.incidents)
    new = [each for each in applied.held_back if each.message not in reported]
    return replace(applied, recreated=(*new, *applied.recreated))


def _replace(status: FlowStatus, **fields: object) -> FlowStatus:
    return msgspec.structs.replace(status, **fields)


def _topic(
    topic: RemoteTopic, positions: Mapping[TopicPartition, AppliedPosition], held_back: str, held_since: str = ""
) -> TopicStatus:
    known = [positions.get(tp) for tp in topic.remote_partitions]
    incarnation = max((position.incarnation for position in known if position is not None), default=-1)
    applied: list[int] = []
    for position in known:
        if position is not None and position.incarnation == incarnation:
            applied.append(position.next)
        else:
            # The newest incarnation has not reached this partition yet, which begins with its first record.
            applied.append(0)
    return TopicStatus(
        source=topic.source,
        remote=topic.remote,
        incarnation=incarnation,
        applied=tuple(applied),
        held_back=held_back,
        held_since=held_since,
    )


def flow_holds(store: Store, archive_id: str, grace: timedelta) -> list[RetentionHold]:
    """Return the records that flows still have to read; flows without a sign of life within the grace time have
    none."""
    oldest = datetime.now(UTC) - grace
    holds: list[RetentionHold] = []
    for status in read_status(store):
        # A flow that was given up without a word must not keep restore points for ever.
        is_alive = datetime.fromisoformat(status.written_at) >= oldest
        if status.archive_id == archive_id and is_alive:
            positions = {topic.source: (topic.incarnation, topic.applied) for topic in status.topics}
            holds.append(RetentionHold(status.name, status.restore_point, positions))
    return holds


@dataclass(frozen=True)
class MirroredTopic:
    """`applied` are the applied positions of `incarnation` by partition: the next source offset to apply. `held_since`
    is when the topic's records began to wait, if they do."""

    topic: str
    remote: str
    incarnation: int
    applied: tuple[int, ...]
    records_behind: int
    held_back: str
    held_since: str


@dataclass(frozen=True)
class FlowOverview:
    """`restore_point` is applied, `newest_restore_point` is the archive's. `silent_seconds` is the time since the
    flow's last sign of life. Numbers of records count from the start of the current or last process. `records_behind`
    is None if the flow has not seen its topics yet."""

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
    topics: tuple[MirroredTopic, ...]
    incidents: tuple[Incident, ...]
    refusals: tuple[Refusal, ...]
    error: str
    unmapped: tuple[UnmappedRecords, ...] = ()

    @property
    def held_back(self) -> tuple[MirroredTopic, ...]:
        return tuple(topic for topic in self.topics if topic.held_back)


def flows_of(archive: Archive, state: Store, at: datetime | None = None) -> list[FlowOverview]:
    """Return the flows of an archive that have begun, at a time (default: now). `state` is where they keep theirs, as a
    rule the archive's store. A flow of another archive that shares `state` is left out."""
    at = at or datetime.now(UTC)
    flows: list[FlowOverview] = []
    for status in read_status(state):
        if status.archive_id == archive.info.id:
            flows.append(flow_overview(archive.state, status, at))
    return flows


def flow_overview(state: State, status: FlowStatus, at: datetime) -> FlowOverview:
    """Return a flow as it is at a time, by its status and the state of its archive."""
    # By the status document alone: whoever looks at an archive may have no way to the flow's clusters.
    lag = flow_lag(state, status, at)
    silent = (at - datetime.fromisoformat(status.written_at)).total_seconds()
    topics: list[MirroredTopic] = []
    for topic in status.topics:
        mirrored = MirroredTopic(
            topic=topic.source,
            remote=topic.remote,
            incarnation=topic.incarnation,
            applied=topic.applied,
            records_behind=lag.topics[topic.remote],
            held_back=topic.held_back,
            held_since=topic.held_since,
        )
        topics.append(mirrored)
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
        topics=tuple(topics),
        incidents=status.incidents,
        refusals=status.refusals,
        error=status.error,
        unmapped=status.unmapped,
    )
