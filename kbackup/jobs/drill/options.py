"""Options of a drill's restore: the drill's selection under scratch names, whatever is archived meanwhile."""

from __future__ import annotations

import msgspec

from kbackup.archive.query.content import Content
from kbackup.archive.query.window import Choice
from kbackup.config.jobs import Restore

CONFIGS = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "1",
}
"""Configs under which no record expires or changes before it is compared."""


def scratch_options(options: Restore, content: Content, prefix: str, restore_id: str) -> Restore:
    """Names under `prefix` for all topics there are, and for the groups of `content`."""
    return msgspec.structs.replace(
        pinned(options, content),
        map={},
        map_regex=(f"^={prefix}",),
        map_group={group: prefix + group for group in content.groups},
        topic_config={**CONFIGS, **options.topic_config},
        into_existing=False,
        settings=(),
        restore_id=restore_id,
    )


def pinned(options: Restore, content: Content) -> Restore:
    """Return options that select `content` once more.

    A selection that ends by time names no restore point: a run that began before this time may still add records.
    """
    choice = content.choice or Choice()
    fixed = msgspec.structs.replace(options, from_time=_text(choice.from_time), to_time=_text(choice.to_time))
    if choice.to_time is not None:  # then a number asks for other topics than the moment does
        return fixed
    return msgspec.structs.replace(fixed, restore_point=content.restore_point or options.restore_point)


def _text(ms: int | None) -> str | None:
    """Return a number with leading zeros, as ten digits would look like seconds."""
    return None if ms is None else f"{ms:013d}"
