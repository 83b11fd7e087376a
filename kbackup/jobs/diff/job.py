"""Compute the differences between two views of a cluster: restore points, or the cluster as it is. Pure.

Entries are sorted by name. Entries that one side does not know are reported as not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from kbackup.jobs.diff.types import (
    AclDiff,
    Diff,
    GroupDiff,
    Move,
    OffsetDiff,
    TopicDiff,
    TopicView,
    Value,
    View,
)
from kbackup.jobs.diff.views import check_selections, live_view, point_view
from kbackup.metadata.entities import Acl

__all__ = ["Diff", "Value", "View", "acl_order", "check_selections", "diff", "live_view", "point_view"]

K = TypeVar("K")
V = TypeVar("V")


def diff(a: View, b: View) -> Diff:
    one_cluster = a.cluster_id == b.cluster_id
    made_anew = {
        name
        for name, old, new in _pairs(a.topics, b.topics)
        if old is not None and new is not None and _recreated(old, new, one_cluster)
    }
    unknown: dict[str, str] = {**_unknown(a), **_unknown(b)}
    if not one_cluster:
        unknown["topic ids"] = "these are two clusters"
    changes: dict[str, Any] = {
        "topics": tuple(_topics(a, b, made_anew, unknown)),
        "offsets": tuple(_offsets(a, b, made_anew)),
        "groups": tuple(_groups(a, b)),
        "acls": tuple(_acls(a.acls, b.acls)),
        "users": _values(_text(a.users), _text(b.users)),
        "broker_configs": _values(a.broker_configs, b.broker_configs),
        "group_configs": _values(a.group_configs, b.group_configs),
        "quotas": _values(a.quotas, b.quotas),
        "tokens": _values(a.tokens, b.tokens),
        "client_metrics": _values(a.client_metrics, b.client_metrics),
        "features": _values(a.features, b.features),
    }
    return Diff(a=a.name, b=b.name, same=not any(changes.values()), not_compared=unknown, **changes)


def _unknown(view: View) -> dict[str, str]:
    return {what: f"{view.name}: {why}" for what, why in view.unknown.items()}


def _recreated(old: TopicView, new: TopicView, one_cluster: bool) -> bool:
    if one_cluster and old.id and new.id and old.id != new.id:
        return True
    return None not in (old.incarnation, new.incarnation) and old.incarnation != new.incarnation


def _topics(a: View, b: View, made_anew: set[str], unknown: dict[str, str]) -> Iterator[TopicDiff]:
    for name, old, new in _pairs(a.topics, b.topics):
        partitions = _both(old, new, lambda topic: len(topic.partitions))
        replication = _both(old, new, lambda topic: topic.replication_factor)
        configs: tuple[Value, ...] = ()
        if old is not None and new is not None:
            if old.configs is None or new.configs is None:
                unknown[f"configs of topic {name}"] = "one side does not know them"
            else:
                configs = _values(_owned(name, old.configs), _owned(name, new.configs))
        changed = (
            configs or partitions[0] != partitions[1] or (None not in replication and len({*replication}) > 1)
        )
        if old is None or new is None:
            yield TopicDiff(name, "appeared" if old is None else "gone", partitions, replication, ())
        elif name in made_anew:
            yield TopicDiff(name, "recreated", partitions, replication, configs)
        elif changed:
            yield TopicDiff(name, "changed", partitions, replication, configs)


def _offsets(a: View, b: View, made_anew: set[str]) -> Iterator[OffsetDiff]:
    """A topic that came or went, or another one, has no offsets that could have moved."""
    for name, old, new in _pairs(a.topics, b.topics):
        if old is None or new is None or name in made_anew:
            continue
        for number, before, after in _pairs(old.partitions, new.partitions):
            if after is None:
                continue  # a topic can't lose partitions: that shows as another topic
            was = before if before is not None else (after[0], after[0])
            if was != after:
                yield OffsetDiff(name, number, (was[0], after[0]), (was[1], after[1]), after[1] - was[1])


def _groups(a: View, b: View) -> Iterator[GroupDiff]:
    for name, old, new in _pairs(a.groups, b.groups):
        moved = tuple(
            Move(*tp, before, after) for tp, before, after in _pairs(old or {}, new or {}) if before != after
        )
        if old is None or new is None:
            yield GroupDiff(name, "appeared" if old is None else "gone", moved)
        elif moved:
            yield GroupDiff(name, "changed", moved)


def _acls(old: frozenset[Acl] | None, new: frozenset[Acl] | None) -> Iterator[AclDiff]:
    if old is None or new is None:
        return
    for acl in sorted(old ^ new, key=acl_order):
        yield AclDiff("appeared" if acl in new else "gone", acl)


def acl_order(acl: Acl) -> tuple[str, ...]:
    return (
        *(acl.resource, acl.name, acl.pattern, acl.principal),
        *(acl.host, acl.permission, acl.operation),
    )


def _values(
    old: Mapping[tuple[str, str], str | None] | None, new: Mapping[tuple[str, str], str | None] | None
) -> tuple[Value, ...]:
    """Nothing where one side is unknown."""
    if old is None or new is None:
        return ()
    changes = []
    for key in sorted({*old, *new}):
        if key not in old:
            changes.append(Value(*key, "appeared", None, new[key]))
        elif key not in new:
            changes.append(Value(*key, "gone", old[key], None))
        elif old[key] != new[key]:
            changes.append(Value(*key, "changed", old[key], new[key]))
    return tuple(changes)


def _owned(owner: str, configs: Mapping[str, str]) -> dict[tuple[str, str], str | None]:
    return {(owner, name): value for name, value in configs.items()}


def _text(users: Mapping[tuple[str, str], int] | None) -> dict[tuple[str, str], str | None] | None:
    return None if users is None else {key: f"{n} iterations" for key, n in users.items()}


def _both(
    old: TopicView | None, new: TopicView | None, take: Callable[[TopicView], int | None]
) -> tuple[int | None, int | None]:
    return (take(old) if old is not None else None, take(new) if new is not None else None)


def _pairs(old: Mapping[K, V], new: Mapping[K, V]) -> Iterator[tuple[K, V | None, V | None]]:
    """Each key of either, in order."""
    keys: list[Any] = [*{*old, *new}]
    for name in sorted(keys):
        yield name, old.get(name), new.get(name)
