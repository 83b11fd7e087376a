"""mirrors/<source>/<target>/status.json: where a flow stands."""

from __future__ import annotations

from typing import Literal

import msgspec

from kbackup.archive import layout
from kbackup.archive.models import Document, Loss, Part, TopicName, dump, load
from kbackup.errors import NotFoundError
from kbackup.store.base import Store

STATUS = "status.json"


class TopicStatus(Part, frozen=True, kw_only=True):
    """A topic that the flow selects. `applied` has the applied position of each partition of `incarnation`, by
    partition number: the next source offset to apply.

    `held_back` is the reason why the topic's records wait; '' where nothing holds them."""

    source: TopicName
    remote: TopicName
    incarnation: int
    applied: tuple[int, ...]
    held_back: str = ""


class Duty(Part, frozen=True, kw_only=True):
    """A duty of the flow beside records, such as 'configs', 'acls', 'checkpoints'. `refused` has the target's reasons
    of the last time."""

    name: str
    done_at: str
    refused: tuple[str, ...] = ()


class FlowStatus(Document, frozen=True, kw_only=True):
    """`restore_point` is the newest one that is applied, 0 where none is; `written_at` is the flow's sign of life.

    `records` and `bytes` are those of the process since it started; `round_*` those of its last round. `losses` are
    records that the flow can never apply and topics that were created again; `skipped` maps topics that the flow
    selects and does not replicate to the reason. `error` is the message of a round that failed, '' after one that
    went well."""

    format: Literal["kbackup-flow-status"] = "kbackup-flow-status"
    source: str
    target: str
    archive_id: str
    tool: str
    started_at: str
    written_at: str
    restore_point: int
    restore_point_at: str
    rounds: int = 0
    records: int = 0
    bytes: int = 0
    round_records: int = 0
    round_bytes: int = 0
    round_seconds: float = 0.0
    topics: tuple[TopicStatus, ...] = ()
    skipped: dict[str, str] = msgspec.field(default_factory=dict)
    losses: tuple[Loss, ...] = ()
    duties: tuple[Duty, ...] = ()
    error: str = ""

    @property
    def name(self) -> str:
        return f"{self.source}->{self.target}"


def write_status(state: Store, status: FlowStatus) -> None:
    """Replace the flow's status document in `state`, the archive or the folder of --state."""
    state.put(layout.mirror_key(status.source, status.target, STATUS), dump(status, indent=-1))


def read_status(store: Store) -> list[FlowStatus]:
    """The status of every flow of the archive, by source and target."""
    statuses = []
    for source in store.list_dirs(layout.MIRRORS):
        for target in store.list_dirs(f"{layout.MIRRORS}{source}/"):
            key = f"{layout.MIRRORS}{source}/{target}/{STATUS}"
            try:
                statuses.append(load(FlowStatus, store.get(key), key))
            except NotFoundError:
                continue  # the flow's first round has not ended
    return sorted(statuses, key=lambda status: (status.source, status.target))
