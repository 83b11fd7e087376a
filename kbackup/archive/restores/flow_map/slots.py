"""Slots of a flow: a remote partition always belongs to the same one, whoever applies it."""

from __future__ import annotations

import zlib
from typing import Literal

from kbackup.archive import layout
from kbackup.archive.models import Document, load
from kbackup.errors import NotFoundError
from kbackup.store.base import Store
from kbackup.types import TopicPartition

SLOTS = 16
"""Of a new flow. More of them are more transactions in a small round, fewer are fewer tasks of a large one."""

DOCUMENT = "flow.json"


class FlowState(Document, frozen=True, kw_only=True):
    """mirrors/<source>/<target>/flow.json: what never changes of a flow, written before its first record is applied.

    `slots` is the number of slots. `target_cluster_id` is the cluster that the records went to."""

    format: Literal["kbackup-flow"] = "kbackup-flow"
    source: str
    target: str
    archive_id: str
    target_cluster_id: str
    slots: int
    created_at: str


def slot_of(remote: TopicPartition, slots: int) -> int:
    """Return the slot of a remote partition."""
    return zlib.crc32(f"{remote.topic}/{remote.partition}".encode()) % slots


def read_flow(store: Store, source: str, target: str) -> FlowState | None:
    """Return the state of a flow, None for one that never began."""
    key = layout.mirror_key(source, target, DOCUMENT)
    try:
        return load(FlowState, store.get(key), key)
    except NotFoundError:
        return None
