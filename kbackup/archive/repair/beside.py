"""Groups and settings for a restore point that is made of files: from the newest captures that can be read, and from
the group files of topics that no capture tells of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from kbackup.archive import layout
from kbackup.archive.models import (
    Group,
    GroupOffset,
    Groups,
    Metadata,
    NotCarried,
    TopicMetadata,
    now,
)
from kbackup.archive.repair.left import Left
from kbackup.errors import CorruptError, NotFoundError
from kbackup.formats.offsets import decode_group_offsets
from kbackup.store.base import Store

_SHOWN = 5

Topic = tuple[str, int]
"""Name and incarnation."""


def captures(left: Left, topics: Mapping[Topic, str]) -> dict[Topic, int]:
    """The newest number whose groups and settings can both be read, by topic (name, incarnation) of the given id."""
    found: dict[Topic, int] = {}
    for seq in sorted(left.groups.keys() & left.metadata.keys()):
        ids = {t.name: t.id for t in left.metadata[seq].topics}
        for (name, incarnation), known in topics.items():
            if name in ids and known in ("", ids[name]):
                found[name, incarnation] = seq
    return found


def groups_of(store: Store, left: Left, topics: Iterable[Topic], captured: Mapping[Topic, int]) -> Groups:
    """Their groups' offsets: of its capture for a topic that has one, else of its group files."""
    kinds: dict[str, tuple[str, str]] = {}
    offsets: dict[str, list[GroupOffset]] = {}
    not_carried: dict[str, str] = {}
    for topic in sorted(topics):
        seq = captured.get(topic)
        if seq is None:
            for name, offset in _of_files(store, left, topic):
                offsets.setdefault(name, []).append(offset)
            continue
        not_carried |= left.groups[seq].not_carried
        for group in left.groups[seq].groups:
            if those := [o for o in group.offsets if o.topic == topic[0]]:
                kinds[group.group] = (group.type, group.state)
                offsets.setdefault(group.group, []).extend(those)
    return Groups(
        captured_at=now(),
        groups=tuple(
            Group(
                group=name,
                type=kinds.get(name, ("", ""))[0],
                state=kinds.get(name, ("", ""))[1],
                offsets=tuple(o),
            )
            for name, o in sorted(offsets.items())
        ),
        not_carried={name: why for name, why in not_carried.items() if name not in offsets},
    )


def _of_files(store: Store, left: Left, topic: Topic) -> list[tuple[str, GroupOffset]]:
    folder = layout.topic_dir(*topic, left.root)
    found = []
    for key in left.sizes:
        partition = layout.parse_group_offsets(key.removeprefix(folder)) if key.startswith(folder) else None
        if partition is None:
            continue
        with suppress(CorruptError, NotFoundError):
            for group, offset in decode_group_offsets(store.get(key), key).items():
                found.append((group, GroupOffset(topic=topic[0], partition=partition, offset=offset)))
    return found


def metadata_of(left: Left, topics: Iterable[Topic], captured: Mapping[Topic, int]) -> Metadata:
    """Their settings as of their captures; those of the cluster as of the newest one that can be read."""
    known: list[TopicMetadata] = []
    for topic in sorted(topics):
        if topic in captured:
            known += [t for t in left.metadata[captured[topic]].topics if t.name == topic[0]]
    newest = left.metadata[max(left.metadata)] if left.metadata else None
    lost = NotCarried(what="cluster", reason="failed", why="the files that told of it are lost")
    return Metadata(
        captured_at=newest.captured_at if newest is not None else now(),
        cluster_id=newest.cluster_id if newest is not None else "",
        brokers=newest.brokers if newest is not None else 0,
        topics=tuple(known),
        acls=newest.acls if newest is not None else None,
        scram_users=newest.scram_users if newest is not None else None,
        broker_configs=newest.broker_configs if newest is not None else None,
        group_configs=newest.group_configs if newest is not None else None,
        not_carried=newest.not_carried if newest is not None else (lost,),
    )


def told(left: Left, topics: Sequence[Topic], captured: Mapping[Topic, int]) -> list[str]:
    """What is not known of groups and settings, in words."""
    without = sorted({name for name, _ in topics if (name, _) not in captured})
    said = []
    if without:
        said.append(
            f"configs and replication factor of {some(without)}; their groups are those of their group files"
        )
    if not left.metadata:
        said.append("ACLs, users and settings of the cluster")
    return said


def some(names: Sequence[str]) -> str:
    """The first of them, and how many more."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
