"""Positions of groups in a target: `translation` exact, `sync_store` as MirrorMaker 2 translates, `group_sync` writes
them to the target's groups."""

from kbackup.jobs.mirror.positions.group_sync import GroupSync, sync_group_offsets

__all__ = ["GroupSync", "sync_group_offsets"]
