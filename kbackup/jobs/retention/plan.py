"""Plan an expiration: restore points that go by policy, and records that go by age."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from kbackup.archive.catalog.holds import Hold, held_points
from kbackup.archive.catalog.retention import expire_points, expire_records, old_starts, records_by_point
from kbackup.archive.catalog.state import State
from kbackup.archive.models import Manifest, Metadata, TopicState
from kbackup.archive.reader import Archive
from kbackup.errors import RefusedError
from kbackup.jobs.retention.policy import moment, reasons
from kbackup.jobs.retention.report import Expiry, PointFate
from kbackup.types import Incarnation, IncarnationPartition


@dataclass(frozen=True, eq=False)
class ExpirationPlan:
    """Planned expiration: expired restore points, new log starts, states before and after, and each point's fate."""

    expired_points: frozenset[int]
    starts: Mapping[IncarnationPartition, int]
    before: State
    after: State
    fates: tuple[PointFate, ...]
    cutoff: int | None
    spared: tuple[str, ...]
    mirrors: tuple[str, ...]

    @property
    def expires(self) -> bool:
        return self.after is not self.before


def plan_expiration(archive: Archive, expiry: Expiry, holds: Sequence[Hold]) -> ExpirationPlan:
    newest = archive.restore_point("latest")
    state = archive.state
    points = archive.restore_points
    why = reasons(expiry.policy, [moment(p.number, p.committed_at) for p in points], datetime.now(UTC))
    for number in state.pins:
        why[number] = ["pinned", *why.get(number, [])]
    mirrors = set[str]()
    for number, names in held_points(state, holds).items():
        if number not in why:
            mirrors |= {*names}
            why[number] = [f"mirror {name}" for name in names]
    expired_points = frozenset(p.number for p in points if p.number not in why)
    after = expire_points(state, expired_points)
    cutoff, spared, starts = None, frozenset[Incarnation](), dict[IncarnationPartition, int]()
    if expiry.older_than is not None:
        cutoff = _cutoff(newest, expiry.older_than)
        spared = frozenset(_spared(archive, after))
        starts = old_starts(after, cutoff, spared, holds)
        mirrors |= _needed(holds, after, cutoff, spared)
        after = expire_records(after, starts)
    before_records, after_records = records_by_point(state), records_by_point(after)
    if before_records[newest.number] and not after_records[newest.number]:
        raise RefusedError(
            f"this would expire every record of the newest restore point, {newest.number}",
            "choose an older --older-than",
        )
    fates = tuple(
        PointFate(
            p.number,
            p.committed_at,
            tuple(why.get(p.number, ())),
            after_records.get(p.number),
            before_records[p.number] - after_records[p.number] if p.number in after_records else None,
        )
        for p in points
    )
    return ExpirationPlan(
        expired_points, starts, state, after, fates, cutoff, _names(spared, after), tuple(sorted(mirrors))
    )


def _needed(holds: Sequence[Hold], after: State, cutoff: int, spared: frozenset[Incarnation]) -> set[str]:
    """Return the names of the holds without which more records would expire."""
    if not holds:
        return set()
    without = old_starts(after, cutoff, spared)
    return {hold.name for hold in holds if old_starts(after, cutoff, spared, [hold]) != without}


def _cutoff(newest: Manifest, older_than: timedelta) -> int:
    """Return ms since the epoch, counted back from the start of the newest capture of a topic: an archive whose backups
    have stopped keeps its records. A time in the future counts as now."""
    captured = {topic.captured for topic in newest.topics}
    started = [c.started_at for c in newest.captures if c.number in captured]
    at = min(datetime.fromisoformat(max(started, default=newest.started_at)), datetime.now(UTC))
    return int((at - older_than).timestamp() * 1000)


def _spared(archive: Archive, after: State) -> Iterator[Incarnation]:
    """Incarnations that keep old records: a compacted topic keeps the newest record of each key, however old. Each goes
    by its last settings; an incarnation whose settings are not known is spared."""
    states: dict[Incarnation, TopicState] = {}
    last = after.last_points()
    for number in sorted(set(last.values())):
        topics = {(t.name, t.incarnation): t for t in archive.manifest(number).topics}
        states |= {key: topics[key] for key, end in last.items() if end == number}
    for number in {topic.captured for topic in states.values()}:
        metadata = archive.metadata(number)
        configs = {t.name: t.configs for t in metadata.topics}
        for key, topic in states.items():
            if topic.captured == number and _is_spared(configs.get(topic.name), metadata):
                yield key


def _is_spared(configs: Mapping[str, str] | None, metadata: Metadata) -> bool:
    if configs is None:
        return True
    policy = configs.get("cleanup.policy") or _default_policy(metadata)
    return "compact" in policy and "delete" not in policy


def _default_policy(metadata: Metadata) -> str:
    values = [c.value for c in metadata.broker_configs or () if c.name == "log.cleanup.policy" and c.value]
    return next((value for value in values if "compact" in value), "delete")


def _names(spared: Iterable[Incarnation], after: State) -> tuple[str, ...]:
    highest = after.highest
    return tuple(
        name if highest[name] == number else f"{name} (incarnation {number})"
        for name, number in sorted(spared)
    )
