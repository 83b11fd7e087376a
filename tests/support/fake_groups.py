"""Groups in memory that behave as a broker's: what has live members can neither be set nor deleted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.groups.calls import CommittedOffset
from kbackup.types import TopicPartition

Place = tuple[str, int]
Held = tuple[int, int | None, str]
"""Offset, leader epoch, metadata."""


@dataclass
class FakeGroups:
    """`held` is what each group has committed. `calls` names what was written, in order."""

    held: dict[str, dict[Place, Held]] = field(default_factory=dict)
    live: dict[str, int] = field(default_factory=dict)
    unreadable: set[str] = field(default_factory=set)
    calls: list[tuple[str, str]] = field(default_factory=list)

    def members(self, groups: Iterable[str]) -> tuple[dict[str, int], dict[str, str]]:
        return {group: self.live.get(group, 0) for group in groups}, {}

    def committed(self, groups: Iterable[str]) -> tuple[dict[str, list[CommittedOffset]], dict[str, str]]:
        asked = set(groups)
        readable = asked - self.unreadable
        return {
            group: [
                CommittedOffset(TopicPartition(*place), *held)
                for place, held in sorted(self.held.get(group, {}).items())
            ]
            for group in readable
        }, dict.fromkeys(asked & self.unreadable, "it can't be read")

    def commit_all(self, offsets_by_group: Mapping[str, Sequence[CommittedOffset]]) -> dict[str, str]:
        answers = {}
        for group, offsets in offsets_by_group.items():
            self.calls.append(("commit", group))
            if self.live.get(group):
                answers[group] = "unknown member"
                continue
            own = self.held.setdefault(group, {})
            own |= {(c.tp.topic, c.tp.partition): (c.offset, c.leader_epoch, c.metadata) for c in offsets}
            answers[group] = ""
        return answers

    def remove(self, offsets_by_group: Mapping[str, Sequence[CommittedOffset]]) -> dict[str, str]:
        for group, offsets in offsets_by_group.items():
            self.calls.append(("remove", group))
            for each in offsets:
                del self.held[group][each.tp.topic, each.tp.partition]
        return dict.fromkeys(offsets_by_group, "")

    def delete_each(self, groups: Iterable[str]) -> dict[str, str]:
        answers = {}
        for group in groups:
            self.calls.append(("delete", group))
            answers[group] = "not empty" if self.live.get(group) else ""
            if not answers[group]:
                self.held.pop(group, None)
        return answers


@dataclass
class FakeCluster:
    groups: FakeGroups
    cluster_id: str = "target"

    def connect(self) -> tuple[str, int]:
        return self.cluster_id, 1

    @property
    def cluster(self) -> Cluster:
        return cast(Cluster, self)
