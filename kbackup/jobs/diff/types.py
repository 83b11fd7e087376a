"""Views of a cluster that can be compared, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kbackup.metadata.entities import Acl

Set = Literal["appeared", "gone", "changed"]


@dataclass(frozen=True, slots=True)
class TopicView:
    """`id` is '' where the broker has none; `incarnation` is None for a live topic. `partitions` are log start and end
    (for a restore point: as far as it was archived). `configs` and `replication_factor` are None where they are
    unknown."""

    id: str
    incarnation: int | None
    partitions: Mapping[int, tuple[int, int]]
    replication_factor: int | None
    configs: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class View:
    """`groups` is group -> (topic, partition) -> committed offset. Configs are by (owner, name), users by
    (user, mechanism) with their iterations, quotas by (entity, name), tokens by (owner, id); None for what is unknown,
    with the reason in `unknown`. `all_topics` and `all_groups` are the names that there are, whatever is selected of
    them."""

    name: str
    cluster_id: str
    topics: Mapping[str, TopicView]
    groups: Mapping[str, Mapping[tuple[str, int], int]]
    acls: frozenset[Acl] | None = None
    users: Mapping[tuple[str, str], int] | None = None
    broker_configs: Mapping[tuple[str, str], str | None] | None = None
    group_configs: Mapping[tuple[str, str], str | None] | None = None
    quotas: Mapping[tuple[str, str], str | None] | None = None
    tokens: Mapping[tuple[str, str], str | None] | None = None
    client_metrics: Mapping[tuple[str, str], str | None] | None = None
    features: Mapping[tuple[str, str], str | None] | None = None
    unknown: Mapping[str, str] = field(default_factory=dict)
    all_topics: frozenset[str] = frozenset()
    all_groups: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Value:
    """`before` and `after` are None where it is not set, or where it is sensitive (`change` tells which)."""

    owner: str
    name: str
    change: Set
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class TopicDiff:
    """`recreated`: another topic under the same name; its offsets are not compared. Numbers of partitions and
    replicas are None where the topic isn't there, or they are unknown."""

    topic: str
    change: Literal["appeared", "gone", "recreated", "changed"]
    partitions: tuple[int | None, int | None]
    replication: tuple[int | None, int | None]
    configs: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class OffsetDiff:
    """A partition whose log moved: start and end, before and after. `added` offsets are new; negative: the log was
    cut. A partition that appeared was empty before."""

    topic: str
    partition: int
    start: tuple[int, int]
    end: tuple[int, int]
    added: int


@dataclass(frozen=True, slots=True)
class Move:
    topic: str
    partition: int
    before: int | None
    after: int | None


@dataclass(frozen=True, slots=True)
class GroupDiff:
    """`moved` are the partitions whose committed offset is another one now."""

    group: str
    change: Set
    moved: tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class AclDiff:
    change: Literal["appeared", "gone"]
    acl: Acl


@dataclass(frozen=True, slots=True)
class Diff:
    """From `a` to `b`. `same` where nothing that was compared is different; `not_compared` is what, and why."""

    a: str
    b: str
    same: bool
    topics: tuple[TopicDiff, ...]
    offsets: tuple[OffsetDiff, ...]
    groups: tuple[GroupDiff, ...]
    acls: tuple[AclDiff, ...]
    users: tuple[Value, ...]
    broker_configs: tuple[Value, ...]
    group_configs: tuple[Value, ...]
    quotas: tuple[Value, ...]
    tokens: tuple[Value, ...]
    client_metrics: tuple[Value, ...]
    features: tuple[Value, ...]
    not_compared: dict[str, str]
