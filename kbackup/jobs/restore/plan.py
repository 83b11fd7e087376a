"""What a restore sets out to do: names, units of work, groups. Pure; written once as
restores/<id>/plan.json."""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from kbackup.archive.models import Document, GroupOffset, Part
from kbackup.archive.query.content import ArchivedPartition, ArchivedTopic, Content
from kbackup.archive.query.selection import Selection, check_selection
from kbackup.archive.query.window import Choice, Window
from kbackup.archive.segments.table import Segment
from kbackup.config import parse_rule
from kbackup.errors import RefusedError, UsageError, suggest_name
from kbackup.spark.tasks import pack
from kbackup.types import TopicPartition

UNIT_BYTES = 32 << 20
UNIT_PARTITIONS = 64
_LEGAL = re.compile(r"^[a-zA-Z0-9._-]{1,249}$")


class PlannedTopic(Part, frozen=True, kw_only=True):
    """`source` of `incarnation`, as of restore point `as_of`, goes to `target`. `bytes` are those of the
    documented records files; where a window was asked for, both they and `records` are at most so many."""

    source: str
    incarnation: int
    as_of: int
    target: str
    partitions: int
    records: int
    bytes: int
    configs: dict[str, str]
    replication_factor: int


class UnitPart(Part, frozen=True, kw_only=True):
    """One source partition and where its records go; `segments` are in order of offset. Only records in `window`
    are wanted; None: all of them. `restore_read.read_part` reads them."""

    topic: str
    partition: int
    target: str
    segments: tuple[Segment, ...]
    window: Window | None = None

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.target, self.partition)

    @property
    def source(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class PlannedGroup(Part, frozen=True, kw_only=True):
    """`offsets` are the committed ones of the source, of partitions that are restored."""

    source: str
    target: str
    offsets: tuple[GroupOffset, ...]


class RestorePlan(Document, frozen=True, kw_only=True):
    """restores/<id>/plan.json. A unit is one task, one producer and one transactional id. `choice` is there where a
    window was asked for. `not_carried` says of groups that were asked for why the restore point is without them.
    `options` are the keys of `[restore]` that decide what is restored, as they were given; null where an older version
    wrote the plan."""

    format: Literal["kbackup-restore-plan"] = "kbackup-restore-plan"
    restore_id: str
    archive_id: str
    restore_point: int
    target_cluster_id: str
    created_at: str
    transactions: bool
    transaction_bytes: int
    into_existing: bool
    topics: tuple[PlannedTopic, ...]
    units: tuple[tuple[UnitPart, ...], ...]
    groups: tuple[PlannedGroup, ...]
    settings: tuple[Literal["acls", "configs", "quotas", "users"], ...] = ()
    choice: Choice | None = None
    not_carried: dict[str, str] = msgspec.field(default_factory=dict)
    options: dict[str, Any] | None = None
    damaged: tuple[str, ...] = ()
    """What the archive has lost of the records that are asked for, in words."""

    @property
    def records(self) -> int:
        return sum(t.records for t in self.topics)

    @property
    def bytes(self) -> int:
        return sum(t.bytes for t in self.topics)

    @property
    def group_warnings(self) -> list[str]:
        return [f"group {group}: {why}" for group, why in sorted(self.not_carried.items())]


def target_name(topic: str, exact: Mapping[str, str], patterns: Sequence[str]) -> str:
    """The new name of a topic: by `exact`, else by the first 'pattern=replacement' that matches somewhere in
    it."""
    if topic in exact:
        return exact[topic]
    for rule in patterns:
        pattern, replacement = parse_rule(rule)
        try:
            name, hits = re.subn(pattern, replacement, topic, count=1)
        except (re.error, IndexError) as error:
            raise UsageError(f"--map-regex {rule!r}: {error}", "use Python's regular expressions") from error
        if hits:
            return name
    return topic


def check_rules(patterns: Sequence[str], topics: Collection[str]) -> None:
    """`UsageError` where one of 'pattern=replacement' matches none of `topics`: each would keep its own name."""
    for rule in patterns:
        pattern, _ = parse_rule(rule)
        if not any(map(pattern.search, topics)):
            hint = suggest_name(pattern.pattern, topics, "see 'kbackup info' for what there is")
            raise UsageError(f"--map-regex {rule!r} matches no topic that is restored", hint)


def check_names(names: Mapping[str, str]) -> None:
    """`RefusedError` unless every target name is legal and no two topics go to the same one."""
    taken: dict[str, str] = {}
    for source, target in names.items():
        if not _LEGAL.match(target) or target in (".", ".."):
            raise RefusedError(
                f"topic {source} can't be restored as {target!r}",
                "letters, digits, '.', '_' and '-' only, at most 249",
            )
        if target in taken:
            raise RefusedError(
                f"topics {taken[target]} and {source} would both become {target}", "map one of them elsewhere"
            )
        taken[target] = source


def plan_topic(
    topic: ArchivedTopic, target: str, configs: Mapping[str, str], replication: int | None
) -> PlannedTopic:
    """`configs` and `replication` take the place of the archived ones; -1 stands for the broker's default."""
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


def make_units(content: Content, names: Mapping[str, str]) -> tuple[tuple[UnitPart, ...], ...]:
    """Partitions with records, big ones alone, small ones sharing a producer; the biggest first."""
    parts = [
        (p.bytes, _unit_part(t.name, p, names[t.name]))
        for t in content.topics
        for p in t.partitions
        if p.segments
    ]
    parts.sort(key=lambda entry: -entry[0])
    units = pack(parts, lambda entry: entry[0], UNIT_BYTES, UNIT_PARTITIONS)
    return tuple(tuple(part for _, part in unit) for unit in units)


def _unit_part(topic: str, partition: ArchivedPartition, target: str) -> UnitPart:
    return UnitPart(
        topic=topic,
        partition=partition.partition,
        target=target,
        segments=partition.segments,
        window=partition.window,
    )


def plan_groups(
    content: Content, names: Mapping[str, str], selection: Selection | None, renamed: Mapping[str, str]
) -> tuple[PlannedGroup, ...]:
    """`selection` None: no groups. `RefusedError` where two would become one."""
    if selection is None:
        return ()
    planned: dict[str, PlannedGroup] = {}
    for group, ours in _asked_offsets(content, names).items():
        target = renamed.get(group, group)
        if not selection.matches(group):
            continue
        if target in planned:
            raise RefusedError(
                f"groups {planned[target].source} and {group} would both become {target}",
                "map one of them elsewhere",
            )
        planned[target] = PlannedGroup(source=group, target=target, offsets=ours)
    return tuple(planned.values())


def check_groups(
    content: Content, names: Container[str], selection: Selection | None, renamed: Iterable[str]
) -> None:
    """`UsageError` for a group that is asked for or renamed by its name and has no offsets: its records would come
    back without it, or it would be set under its old name. Not where a window ends before all captures: its notes say
    that no group comes back."""
    if selection is None or (content.choice is not None and content.choice.groups_as_of is None):
        return
    where = "with offsets of what is restored"
    hint = "see 'kbackup groups show', or leave groups alone with --no-groups"
    asked, why = _asked_offsets(content, names), content.not_carried
    check_selection(selection, "group", {*asked, *_uncaptured(selection, why)}, where, hint, why)
    check_selection(Selection(tuple(renamed)), "group", content.groups, where, hint, why)


def _uncaptured(selection: Selection, not_carried: Iterable[str]) -> set[str]:
    """The groups that a regular expression selects and no capture carries: a warning names them."""
    return {group for group in not_carried if group not in selection.names and selection.matches(group)}


def _asked_offsets(content: Content, names: Container[str]) -> dict[str, tuple[GroupOffset, ...]]:
    """By group that has any, its offsets of partitions that are restored."""
    unasked = {
        (t.name, p.partition) for t in content.topics for p in t.partitions if p.window and p.window.nothing
    }
    asked = {
        group: tuple(o for o in offsets if o.topic in names and (o.topic, o.partition) not in unasked)
        for group, offsets in content.groups.items()
    }
    return {group: offsets for group, offsets in asked.items() if offsets}
