"""mirrors/<source>/<target>/status.json: where a flow stands."""

from __future__ import annotations

from typing import Literal

from kbackup.archive import layout
from kbackup.archive.models import Document, Member, dump, load
from kbackup.errors import NotFoundError
from kbackup.metadata.entities import TopicName
from kbackup.store.base import Store


class TopicStatus(Member, frozen=True, kw_only=True):
    """A topic that the flow selects. `applied` has the applied position of each partition of `incarnation`, by
    partition number: the next source offset to apply. `incarnation` is -1 where no record is applied yet.

    `held_back` is the reason why the topic's records wait; empty where they don't."""

    source: TopicName
    remote: TopicName
    incarnation: int
    applied: tuple[int, ...]
    held_back: str = ""


class Refusal(Member, frozen=True, kw_only=True):
    """A refusal of the target when the flow last set a subject: `subject` is 'configs', 'acls' or 'groups'."""

    subject: str
    reason: str


class Incident(Member, frozen=True, kw_only=True):
    """Records that the flow never applies, or a topic or remote topic that was created again, noticed at `at`."""

    at: str
    topic: str
    partition: int | None = None
    start: int | None = None
    end: int | None = None
    message: str


class FlowStatus(Document, frozen=True, kw_only=True):
    """`restore_point` is the newest one that is applied, 0 where none is. `written_at` is the flow's sign of life.

    `rounds`, `records` and `bytes` are those of the process since `started_at`; `round_*` those of its last round with
    new records or a new restore point. `incidents` are the newest ones of the flow. `error` is the message of a round
    that failed, or of what ended the process; empty after a round that went well."""

    format: Literal["kbackup-flow-status"] = "kbackup-flow-status"
    source: str
    target: str
    archive_id: str
    tool: str
    started_at: str
    written_at: str
    restore_point: int = 0
    restore_point_at: str = ""
    rounds: int = 0
    records: int = 0
    bytes: int = 0
    round_at: str = ""
    round_records: int = 0
    round_bytes: int = 0
    round_seconds: float = 0.0
    topics: tuple[TopicStatus, ...] = ()
    incidents: tuple[Incident, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    error: str = ""

    @property
    def name(self) -> str:
        return f"{self.source}->{self.target}"

    @property
    def is_planned(self) -> bool:
        """Return whether `topics` are the topics that the flow selects: they are not known before the first round."""
        return bool(self.topics) or self.restore_point > 0


def write_status(state: Store, status: FlowStatus) -> None:
    """Replace the flow's status document in `state`, the archive or the folder of --state."""
    state.put(layout.mirror_key(status.source, status.target, layout.STATUS), dump(status, indent=-1))


def read_status(store: Store) -> list[FlowStatus]:
    """Return the status of every flow of the archive, by source and target."""
    keys = (
        f"{layout.MIRRORS}{source}/{target}/{layout.STATUS}"
        for source in store.list_dirs(layout.MIRRORS)
        for target in store.list_dirs(f"{layout.MIRRORS}{source}/")
    )
    statuses = [status for key in keys if (status := _read(store, key)) is not None]
    return sorted(statuses, key=lambda status: (status.source, status.target))


def has_flows(store: Store) -> bool:
    """Return whether a flow of the archive has begun, by one listing."""
    return next(iter(store.list_dirs(layout.MIRRORS)), None) is not None


def read_flow_status(store: Store, source: str, target: str) -> FlowStatus | None:
    """Return the status of one flow; None before its first round."""
    return _read(store, layout.mirror_key(source, target, layout.STATUS))


def _read(store: Store, key: str) -> FlowStatus | None:
    try:
        return load(FlowStatus, store.get(key), key)
    except NotFoundError:
        return None
