"""The status of a flow after a round. Pure, but for the clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from kbackup import __version__
from kbackup.archive.models import Manifest
from kbackup.jobs.mirror.status.document import FlowStatus, Incident, Refusal, TopicStatus
from kbackup.types import TopicPartition
from kbackup.util.times import now

if TYPE_CHECKING:  # `expire` and the web page read a status without loading what applies records
    from kbackup.jobs.mirror.apply import Applied
    from kbackup.jobs.mirror.flow import AppliedPosition, Flow, RemoteTopic

_INCIDENTS = 100  # newest ones that a status keeps


def first_status(flow: Flow, archive_id: str, before: FlowStatus | None) -> FlowStatus:
    """Return the status of a process that starts. It takes over from the flow's last one, `before`, what is applied,
    and the incidents."""
    at = now()
    same = before is not None and before.archive_id == archive_id
    return FlowStatus(
        source=flow.source,
        target=flow.target,
        archive_id=archive_id,
        tool=f"kbackup {__version__}",
        started_at=at,
        written_at=at,
        restore_point=before.restore_point if before is not None and same else 0,
        restore_point_at=before.restore_point_at if before is not None and same else "",
        topics=before.topics if before is not None and same else (),
        incidents=before.incidents if before is not None else (),
    )


def planned(before: FlowStatus, topics: Sequence[RemoteTopic]) -> FlowStatus:
    """Return the status of a round that begins. `topics` are those that the flow selects: of a new one nothing is
    applied yet, so that its records count as behind, and `expire` keeps them."""
    known = {topic.remote: topic for topic in before.topics}
    return _replace(before, topics=tuple(known.get(t.remote) or _topic(t, {}, "") for t in topics))


def after_round(
    before: FlowStatus,
    point: Manifest,
    topics: Sequence[RemoteTopic],
    applied: Applied,
    refused: Mapping[str, Mapping[str, str] | Iterable[str]],
) -> FlowStatus:
    """Return the status after a round that applied `point`. `topics` are those that the flow selects.

    `refused` has the target's reasons by subject ('topics', 'configs', 'acls', 'groups'): texts, or reasons by name.
    Refusals of a subject that is not in it stay: the round did not set it.
    """
    at = now()
    held_back = {r.remote: r.message for r in applied.held_back}
    topics_refused = refused.get("topics", {})
    if isinstance(topics_refused, Mapping):
        held_back |= topics_refused
    refusals = [r for r in before.refusals if r.subject not in refused]
    if applied.records or applied.point > before.restore_point:
        before = _replace(
            before,
            round_at=at,
            round_records=applied.records,
            round_bytes=applied.bytes,
            round_seconds=round(applied.seconds, 3),
        )
    return _replace(
        before,
        written_at=at,
        restore_point=applied.point,
        restore_point_at=point.committed_at,
        rounds=before.rounds + 1,
        records=before.records + applied.records,
        bytes=before.bytes + applied.bytes,
        topics=tuple(_topic(topic, applied.positions, held_back.get(topic.remote, "")) for topic in topics),
        incidents=(*before.incidents, *_incidents(applied, at))[-_INCIDENTS:],
        refusals=(*refusals, *_refusals(refused)),
        error="",
    )


def after_error(before: FlowStatus, message: str) -> FlowStatus:
    """Return the status after a round that failed, or after what ended the process."""
    return _replace(before, written_at=now(), error=message)


def with_unreported(before: FlowStatus, applied: Applied) -> Applied:
    """Add to a round's `recreated` the topics that it holds back and that the status does not report yet."""
    reported = {topic.held_back for topic in before.topics} | {
        incident.message for incident in before.incidents
    }
    new = tuple(each for each in applied.held_back if each.message not in reported)
    return replace(applied, recreated=(*new, *applied.recreated))


def still_alive(before: FlowStatus) -> FlowStatus:
    """Return the status of a flow that waits for the next restore point."""
    return _replace(before, written_at=now())


def _replace(status: FlowStatus, **fields: object) -> FlowStatus:
    return msgspec.structs.replace(status, **fields)


def _topic(
    topic: RemoteTopic, positions: Mapping[TopicPartition, AppliedPosition], held_back: str
) -> TopicStatus:
    known = [positions.get(TopicPartition(topic.remote, p)) for p in range(topic.partitions)]
    incarnation = max((position.incarnation for position in known if position is not None), default=-1)
    return TopicStatus(
        source=topic.source,
        remote=topic.remote,
        incarnation=incarnation,
        applied=tuple(p.next if p is not None and p.incarnation == incarnation else 0 for p in known),
        held_back=held_back,
    )


def _incidents(applied: Applied, at: str) -> Iterable[Incident]:
    for deleted in applied.deleted:
        yield Incident(at=at, topic=deleted.topic, message=deleted.message)
    for recreated in applied.recreated:
        yield Incident(at=at, topic=recreated.topic, message=recreated.message)
    for lost in applied.too_late:
        yield Incident(
            at=at,
            topic=lost.topic,
            partition=lost.partition,
            start=lost.start,
            end=lost.end,
            message=lost.message,
        )


def _refusals(refused: Mapping[str, Mapping[str, str] | Iterable[str]]) -> Iterable[Refusal]:
    for subject, reasons in refused.items():
        if subject == "topics":
            continue  # `held_back` of each topic says it
        texts = reasons.values() if isinstance(reasons, Mapping) else reasons
        yield from (Refusal(subject=subject, reason=reason) for reason in dict.fromkeys(texts))
