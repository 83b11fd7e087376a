"""Plan a restore: names on the target and units of work. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from kbackup.archive.query.content import ArchivedPartition, ArchivedTopic, Content
from kbackup.archive.restores.plan import PlannedTopic, UnitRange
from kbackup.config import parse_rule
from kbackup.errors import RefusedError, UsageError, suggest_name
from kbackup.spark.tasks import pack

UNIT_BYTES = 32 << 20
UNIT_PARTITIONS = 64
_LEGAL = re.compile(r"^[a-zA-Z0-9._-]{1,249}$")


def target_name(topic: str, exact: Mapping[str, str], patterns: Sequence[str]) -> str:
    """The new name of a topic: by `exact`, else by the first 'pattern=replacement' that matches somewhere in
    it."""
    if topic in exact:
        return exact[topic]
    for rule in patterns:
        pattern, replacement = parse_rule(rule)
        if pattern.search(topic):
            try:
                return pattern.replace_first(replacement, topic)
            except ValueError as error:
                raise UsageError(
                    f"--map-regex {rule!r}: {error}", "name a group of the expression, as in 'a(.*)=b\\1'"
                ) from error
    return topic


def check_rules(patterns: Sequence[str], topics: Collection[str]) -> None:
    """Raise `UsageError` where one of 'pattern=replacement' matches none of `topics`: each would keep its own name."""
    for rule in patterns:
        pattern, _ = parse_rule(rule)
        if not any(map(pattern.search, topics)):
            hint = suggest_name(pattern.pattern, topics, "see 'kbackup info' for what there is")
            raise UsageError(f"--map-regex {rule!r} matches no topic that is restored", hint)


def check_names(names: Mapping[str, str]) -> None:
    """Raise `RefusedError` unless every target name is legal and no two topics go to the same one."""
    taken: dict[str, str] = {}
    for source, target in names.items():
        if not _LEGAL.match(target) or target in (".", ".."):
            raise RefusedError(
                f"topic {source} can't be restored as {target!r}",
                "map it to a name of letters, digits, '.', '_' and '-', at most 249",
            )
        if target in taken:
            raise RefusedError(
                f"topics {taken[target]} and {source} would both become {target}", "map one of them elsewhere"
            )
        taken[target] = source


def plan_topic(
    topic: ArchivedTopic, target: str, configs: Mapping[str, str], replication: int | None
) -> PlannedTopic:
    """Plan a topic. `configs` and `replication` replace the archived ones; -1 stands for the broker's default."""
    archived = topic.replication_factor if topic.replication_factor is not None else -1
    return PlannedTopic(
        source=topic.name,
        incarnation=topic.incarnation,
        as_of=topic.as_of,
        target=target,
        partitions=len(topic.partitions),
        records=sum(p.records for p in topic.partitions),
        bytes=sum(p.bytes for p in topic.partitions),
        configs={**(topic.configs or {}), **configs},
        replication_factor=replication if replication is not None else archived,
    )


def make_units(content: Content, names: Mapping[str, str]) -> tuple[tuple[UnitRange, ...], ...]:
    """Partitions with records, big ones alone, small ones sharing a producer; the biggest first."""
    parts = [
        (p.bytes, _unit_range(t.name, p, names[t.name]))
        for t in content.topics
        for p in t.partitions
        if p.segments
    ]
    parts.sort(key=lambda entry: -entry[0])
    units = pack(parts, lambda entry: entry[0], UNIT_BYTES, UNIT_PARTITIONS)
    return tuple(tuple(part for _, part in unit) for unit in units)


def _unit_range(topic: str, partition: ArchivedPartition, target: str) -> UnitRange:
    return UnitRange(
        topic=topic,
        partition=partition.partition,
        target=target,
        segments=partition.segments,
        window=partition.window,
    )
