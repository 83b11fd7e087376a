"""The internal topics of a flow: `topics` makes them, `heartbeats`, `offset_syncs` and `checkpoints` write them."""

from kbackup.jobs.mirror.internal.checkpoints import emit_checkpoints
from kbackup.jobs.mirror.internal.heartbeats import HeartbeatClock
from kbackup.jobs.mirror.internal.offset_syncs import emit_offset_syncs
from kbackup.jobs.mirror.internal.topics import InternalTopics

__all__ = ["HeartbeatClock", "InternalTopics", "emit_checkpoints", "emit_offset_syncs"]
