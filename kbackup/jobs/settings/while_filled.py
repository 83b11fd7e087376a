"""Configs that topics have while their logs are filled up to their first offsets, and how they are put right."""

from __future__ import annotations

from collections.abc import Container

import msgspec

from kbackup.archive.restores.plan import LogBounds, PlannedTopic, RestorePlan
from kbackup.jobs.settings.plan import ConfigChange
from kbackup.kafka.control.cluster import Cluster

_WHILE_FILLED = {"cleanup.policy": "compact,delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""Configs of a compacted topic as long as its logs are filled up to their first offsets. Brokers delete the beginning
of no log that is compacted alone, and would delete old records where retention holds."""


def topics_to_settle(plan: RestorePlan) -> set[str]:
    """Return the topics, by their names on the target, whose configs are others while their logs are filled."""
    with_head: set[str] = set()
    for range_ in plan.ranges:
        if isinstance(range_.log, LogBounds) and range_.log.start > 0:
            with_head.add(range_.target)
    settle: set[str] = set()
    for topic in plan.topics:
        policy = topic.configs.get("cleanup.policy", "")
        if topic.created and topic.target in with_head and policy.strip() == "compact":
            settle.add(topic.target)
    return settle


def as_filled(plan: RestorePlan) -> RestorePlan:
    """Return the plan with the configs that topics have while their logs are filled."""
    settle = topics_to_settle(plan)
    topics: list[PlannedTopic] = []
    for topic in plan.topics:
        if topic.target in settle:
            topics.append(msgspec.structs.replace(topic, configs={**topic.configs, **_WHILE_FILLED}))
        else:
            topics.append(topic)
    return msgspec.structs.replace(plan, topics=tuple(topics))


def settle_configs_after(cluster: Cluster, plan: RestorePlan, left_out: Container[str]) -> None:
    """Give the filled topics that are not `left_out` the configs of the plan. Raise kbackup's own error if the target
    refuses one."""
    settle = topics_to_settle(plan)
    changes: dict[str, dict[str, str | None]] = {}
    for topic in plan.topics:
        if topic.target in settle and topic.target not in left_out:
            changes[topic.target] = {name: topic.configs.get(name) for name in _WHILE_FILLED}
    if not changes:
        return
    for error in cluster.topic_admin.alter_configs(changes).values():
        raise error


def settling_changes(cluster: Cluster, plan: RestorePlan) -> list[ConfigChange]:
    """Return the changes that give topics of an unfinished restore the configs of its plan: those of the topics that
    still have all configs which the restore set to fill their logs."""
    settle = topics_to_settle(plan)
    present = cluster.topic_configs(cluster.topics(settle))
    changes: list[ConfigChange] = []
    for topic in plan.topics:
        now = present.get(topic.target, {})
        if topic.target not in settle or any(now.get(name) != value for name, value in _WHILE_FILLED.items()):
            continue
        for name, value in _WHILE_FILLED.items():
            planned = topic.configs.get(name)
            if planned != value:
                changes.append(ConfigChange(kind="topic", owner=topic.target, name=name, before=value, after=planned))
    return changes
