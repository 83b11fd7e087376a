"""Asking the source cluster what a restore point needs to know of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from kbackup.archive import layout
from kbackup.archive.models import Group, Groups, Manifest
from kbackup.archive.query.selection import Selection, check_selection, is_internal
from kbackup.jobs.capture.live import Live, LiveTopic
from kbackup.jobs.capture.settings import NEVER, capture_settings
from kbackup.jobs.groups.before import as_stored
from kbackup.kafka.admin.cluster import Cluster, Topic
from kbackup.kafka.groups.admin import OTHER
from kbackup.metadata.entities import TopicMetadata
from kbackup.metadata.reading import Reading
from kbackup.types import TopicPartition
from kbackup.util.times import now

_SYNTAX = "check the name; regular expressions go between slashes"
_WITH_OFFSETS = "streams"  # the one kind beside classic and consumer groups that commits offsets
_NO_OFFSETS = (
    "it is of another kind than consumer groups and has no committed offsets; "
    "share groups keep their positions where the client library can't read them"
)


def discover(
    cluster: Cluster, selection: Selection, parent: Manifest | None, later: bool = False
) -> tuple[dict[str, Topic], list[str]]:
    """The selected topics by name, and the names of all there are.

    `UsageError` for a selection that matches neither a topic of the cluster nor one of the archive: a typing error
    would otherwise be a backup that holds nothing. `later`: topics that regular expressions match may come later.
    """
    existing = cluster.topic_names()
    known = {*existing, *(t.name for t in parent.topics)} if parent is not None else set(existing)
    asked = selection.only_names if later else selection
    check_selection(asked, "topic", known, "in the source cluster", _SYNTAX)
    return cluster.topics(selection.topics(existing)), existing


def groups(
    cluster: Cluster,
    selection: Selection,
    topics: set[str],
    before: Groups | None = None,
    later: bool = False,
) -> Groups:
    """Capture the selected groups' committed offsets of `topics`, and the reasons of groups that can't be read.

    `UsageError` for a selection that matches no group. A group may have been deleted since the capture `before`, and
    with `later` it may be created later: its name (or the regular expression) is then among the groups not carried.
    """

    def selected(group: str) -> bool:
        return selection.matches(group) and not layout.is_own_group(group)

    listed, failed = cluster.groups.listed()
    absent = _absent(selection, {*(g.group for g in listed), *failed}, before, later)
    chosen = {g.group: g for g in listed if selected(g.group)}
    committed, refused = cluster.groups.committed(sorted(chosen))
    not_carried = (
        {name: why for name, why in failed.items() if name.startswith("(") or selected(name)}
        | absent
        | refused
    )
    captured: list[Group] = []
    for name, offsets in sorted(committed.items()):
        kind = chosen[name].type
        if kind == OTHER and not offsets:
            not_carried[name] = _NO_OFFSETS
        if ours := as_stored(c for c in offsets if c.tp.topic in topics):
            kind = _WITH_OFFSETS if kind == OTHER else kind
            captured.append(Group(group=name, type=kind, state=chosen[name].state, offsets=ours))
    return Groups(captured_at=now(), groups=tuple(captured), not_carried=not_carried)


def _absent(selection: Selection, names: set[str], before: Groups | None, later: bool) -> dict[str, str]:
    """The entries of `selection` that match none of `names`, each with the reason."""
    absent = selection.unmatched("group", names)
    if absent and not later:
        known = {*names, *(g.group for g in before.groups)} if before is not None else names
        carried = set(before.not_carried) if before is not None else set()  # also entries of a selection
        new = Selection(tuple(e for e in selection.include if e not in carried), selection.exclude)
        check_selection(new, "group", known, "in the source cluster", _SYNTAX)
    return dict.fromkeys(absent, "the source cluster has no such group")


def live_topics(cluster: Cluster, topics: Mapping[str, Topic], isolation: str) -> list[LiveTopic]:
    """Return the start and end of each partition.

    The log starts are read last: records that retention deletes meanwhile then are a loss.
    """
    every = [TopicPartition(t.name, p) for t in topics.values() for p in t.partitions]
    ends = cluster.log_ends(every, isolation)
    highs = cluster.log_ends(every, "read_uncommitted") if isolation == "read_committed" else ends
    starts = cluster.log_starts(every)
    return [
        LiveTopic(
            t.name,
            t.id,
            {
                p: Live(starts[tp], ends[tp], highs[tp])
                for p in t.partitions
                for tp in [TopicPartition(t.name, p)]
            },
        )
        for _, t in sorted(topics.items())
    ]


def read_brokers(
    cluster: Cluster, topics: Mapping[str, Topic], cluster_id: str, groups: Iterable[str] = ()
) -> Reading:
    """Return the brokers' metadata of `topics` and of the cluster, and the configs of `groups`, with their secrets."""
    configs = cluster.topic_configs(topics)
    reading = capture_settings(cluster, groups, cluster_id)
    return replace(
        reading,
        topics=tuple(
            TopicMetadata(
                name=t.name,
                id=t.id,
                partitions=len(t.partitions),
                replication_factor=t.replication_factor,
                internal=t.internal or is_internal(t.name),
                configs=configs[t.name],
                replicas=t.replicas or None,
            )
            for _, t in sorted(topics.items())
        ),
        not_carried=(*reading.not_carried, *NEVER),
    )
