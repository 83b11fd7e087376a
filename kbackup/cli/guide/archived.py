"""What the archive and the source tell the guide: names and offsets to check answers against, how old the newest
restore point is, and what the source has since."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import click

from kbackup.archive.models import Manifest
from kbackup.archive.query.content import view_of
from kbackup.archive.query.java import java_content, java_topics, open_archive_or_folder
from kbackup.archive.reader import Archive
from kbackup.archive.restores.target_topics import TopicRestore, find_restores, is_brought_back
from kbackup.archive.segments.window import Window
from kbackup.cli.common.command_context import CommandContext, FlagValues
from kbackup.cli.common.session import archive_store, state_store
from kbackup.config.times import moment_of
from kbackup.config.windows import parse_address
from kbackup.errors import KbackupError, UsageError, suggest_name
from kbackup.jobs.groups.plan import Moment
from kbackup.jobs.newer import LiveCluster, NewerRecords, newer_in_source
from kbackup.kafka.client import Properties
from kbackup.kafka.control.cluster import Cluster
from kbackup.store.base import Store
from kbackup.util.system import in_threads
from kbackup.util.text import join_names, plural
from kbackup.util.times import ms_of, time_text

Bounds = Mapping[int, tuple[int, int]]
"""The archived offsets of a topic by partition: the first one, and the end (exclusive)."""

_SEARCHED = 100
"""Restore points, from the newest on, that are searched for a group which the newest one lacks."""


@dataclass
class GuidedArchive:
    """The archive of a guide. `archive` is None for a folder of the Java tool, which has no restore points. `state` has
    the documents of restores."""

    store: Store
    archive: Archive | None
    state: Store

    @cached_property
    def newest(self) -> Manifest | None:
        """The newest restore point; None for a folder."""
        return self.archive.restore_point("latest") if self.archive is not None else None

    @property
    def where(self) -> str:
        """Where names are looked up, in words."""
        return f"restore point {self.newest.number}" if self.newest is not None else f"the folder {self.store.url}"

    @cached_property
    def topics(self) -> dict[str, Bounds]:
        """The topics that can be restored by name, with those that were deleted by the newest restore point."""
        topics: dict[str, Bounds] = {}
        if self.newest is not None:
            for state in self.newest.topics:
                topics[state.name] = {each.partition: (each.start, each.end) for each in state.partitions}
            return topics
        for topic in java_content(self.store, java_topics(self.store)).topics:
            topics[topic.name] = {each.partition: (each.start, each.end) for each in topic.partitions}
        return topics

    @cached_property
    def groups(self) -> dict[str, int]:
        """The groups of the newest restore point, each with its number of partitions."""
        if self.archive is None or self.newest is None:
            return {}
        return {group.group: len(group.offsets) for group in self.archive.groups(self.newest).groups}

    def topic(self, answer: str) -> str:
        """Check that a topic is archived. `UsageError` if not."""
        name = answer.strip()
        if name not in self.topics:
            hint = suggest_name(name, self.topics, f"there are {join_names(sorted(self.topics), 10)}")
            raise UsageError(f"there is no topic {name} in {self.where}", hint)
        return name

    def point_before_recreation(self, name: str) -> int | None:
        """Return the last restore point with the topic that was deleted, if the newest restore point of all already has
        another topic of that name; else None."""
        if self.archive is None or self.newest is None:
            return None
        now = next((topic for topic in self.newest.topics if topic.name == name), None)
        if now is None or now.state == "deleted" or now.incarnation == 1:
            return None
        for point in reversed(self.archive.restore_points):
            for topic in self.archive.manifest(point).topics:
                if topic.name == name and topic.incarnation < now.incarnation:
                    return point.number
        return None

    def restore_of(self, name: str) -> TopicRestore | None:
        """Return the restore that the topic of the newest restore point comes from; None if none is known."""
        if self.archive is None or self.newest is None:
            return None
        ids = [topic.id for topic in self.newest.topics if topic.name == name]
        found = find_restores(self.state, self.archive.info.id, self.newest.cluster_id, ids)
        return next(iter(found.by_topic_id.values()), None)

    def is_whole(self, name: str, before: int, restore: TopicRestore | None) -> bool:
        """Return whether `restore` brought back all that the archive had of a topic before its deletion; restore point
        `before` is the last with that topic."""
        if restore is None or not is_brought_back(restore) or restore.source != name:
            return False
        former = next(topic for topic in self._archive.restore_point(before).topics if topic.name == name)
        return restore.restore_point >= former.captured

    def group(self, answer: str) -> str:
        """Check that a group is archived, in the newest restore point or in an earlier one. `UsageError` if not."""
        name = answer.strip()
        if name not in self.groups and self.group_seen_at(name) is None:
            known = sorted({*self.groups, *self.older_groups})
            hint = suggest_name(name, known, f"there are {join_names(known, 10)}")
            raise UsageError(f"there is no group {name} in {self.where}, nor in those before", hint)
        return name

    @property
    def groups_captured_at(self) -> str | None:
        """When the groups of the newest restore point were captured."""
        if self.archive is None or self.newest is None:
            return None
        return self.archive.groups(self.newest).captured_at

    def group_seen_at(self, name: str) -> str | None:
        """Return when a group that the newest restore point lacks was captured for the last time; None if no restore
        point has it that is searched."""
        if self.archive is None:
            return None
        for point in reversed(self.archive.restore_points[-_SEARCHED:]):
            groups = self.archive.groups(point.number)
            if any(group.group == name for group in groups.groups):
                return groups.captured_at
        return None

    @cached_property
    def older_groups(self) -> dict[str, int]:
        """The groups that the newest restore point lacks, each with the last restore point that has it. Only the last
        restore points are searched."""
        older: dict[str, int] = {}
        if not self._earlier:
            return older
        captured = in_threads(self._archive.groups, self._earlier)
        for point, groups in zip(self._earlier, captured, strict=True):
            for group in groups.groups:
                if group.group not in self.groups:
                    older.setdefault(group.group, point)
        return older

    @cached_property
    def older_topics(self) -> dict[str, int]:
        """The topics that the newest restore point lacks or has as deleted, each with the last restore point in which
        it existed."""
        older: dict[str, int] = {}
        if not self._earlier:
            return older
        existing = self.existing_topics
        for manifest in in_threads(self._archive.restore_point, self._earlier):
            for topic in manifest.topics:
                if topic.state != "deleted" and topic.name not in existing:
                    older.setdefault(topic.name, manifest.number)
        return older

    @property
    def last_points_of_topics(self) -> dict[str, int]:
        """Every topic of the archive, with the last restore point in which it existed."""
        newest = dict.fromkeys(self.existing_topics, self.number)
        return {**self.older_topics, **newest}

    @property
    def last_points_of_groups(self) -> dict[str, int]:
        """Every group of the archive, with the last restore point that has its offsets."""
        newest = dict.fromkeys(self.groups, self.number)
        return {**self.older_groups, **newest}

    @property
    def _archive(self) -> Archive:
        assert self.archive is not None  # noqa: S101 (callers look at restore points, which a folder has none of)
        return self.archive

    @property
    def _earlier(self) -> list[int]:
        """The restore points before the newest one, from the newest on, as far as they are searched."""
        if self.archive is None or self.newest is None:
            return []
        searched = self.archive.restore_points[-_SEARCHED:]
        return [point.number for point in reversed(searched) if point.number != self.newest.number]

    @property
    def existing_topics(self) -> set[str]:
        """The topics that the source had at the newest restore point, or had when they were last looked at."""
        if self.newest is None:
            return set(self.topics)
        return {topic.name for topic in self.newest.topics if topic.state != "deleted"}

    @property
    def number(self) -> int:
        """The number of the newest restore point; 0 for a folder, which has none."""
        return self.newest.number if self.newest is not None else 0

    def group_topics(self, group: str, point: int) -> set[str]:
        """Return the topics in which a group has offsets at a restore point."""
        topics: set[str] = set()
        for each in self._archive.groups(point).groups:
            if each.group == group:
                topics.update(offset.topic for offset in each.offsets)
        return topics

    def topics_of(self, group: str, moment: int | None) -> list[str]:
        """Return the topics in which a group has offsets, as of a time or of the newest restore point."""
        if self.archive is None:
            return []
        groups = self.archive.groups(Moment(at=moment).of(self.archive)).groups
        topics: set[str] = set()
        for each in groups:
            if each.group == group:
                topics.update(offset.topic for offset in each.offsets)
        return sorted(topics)

    def record(self, answer: str) -> str:
        """Return the address of one archived record. `UsageError` for other text, and outside of what is archived."""
        try:
            address = parse_address(answer.strip())
        except ValueError:
            address = None
        if address is None or not address.one or address.partition is None or address.start is None:
            raise UsageError(f"{answer} is not the address of a record", "give topic:partition:offset")
        bounds = self.topics[self.topic(address.topic)]
        if address.partition not in bounds:
            raise UsageError(
                f"topic {address.topic} has no partition {address.partition}",
                f"it has {plural(len(bounds), 'partition')}, numbered from 0",
            )
        start, end = bounds[address.partition]
        if not start <= address.start < end:
            raise UsageError(
                f"{address.topic}-{address.partition} is archived from {start} to {end} (exclusive)",
                "give an offset in it; a newer record takes a backup first",
            )
        return f"{address.topic}:{address.partition}:{address.start}"

    def time_with_groups(self, answer: str) -> str:
        """Return a time at or before which groups were captured, in UTC. `UsageError` for other text and times."""
        text = absolute_time(answer)
        if self.archive is not None:
            Moment(at=ms_of(text)).of(self.archive)
        return text

    def point_with_groups(self, moment: str) -> int:
        """Return the restore point whose groups count at a time; 0 for a folder."""
        if self.archive is None:
            return 0
        return Moment(at=ms_of(moment)).of(self.archive).number

    def time_with_records(self, answer: str) -> str:
        """Return a time in UTC at which the archive had records. `UsageError` for other text, and for a time before the
        archive begins."""
        text = absolute_time(answer)
        if self.archive is not None:
            view_of(self.archive, "latest", Window(to_time=ms_of(text)))
        return text

    def acls(self) -> int:
        """Return how many ACLs the newest restore point has."""
        if self.archive is None or self.newest is None:
            return 0
        return len(self.archive.metadata(self.newest).acls or ())


def absolute_time(answer: str) -> str:
    """Return a time in UTC: "2h ago" would be another time in the next command."""
    zone = click.get_current_context().ensure_object(FlagValues).time_zone
    moment = moment_of("the answer", answer.strip(), zone=zone)
    assert moment is not None  # noqa: S101 (there is an answer)
    return time_text(moment)


def open_guided(context: CommandContext) -> GuidedArchive:
    """Open the archive of a guide. `NoArchiveError` for an archive without a restore point, and errors as of every
    command on an archive."""
    store = archive_store(context)
    guided = GuidedArchive(store, open_archive_or_folder(store), state_store(context, store))
    if guided.archive is not None:
        guided.archive.restore_point("latest")
    return guided


# What the source has since the newest restore point.


@dataclass(frozen=True)
class SourceSince:
    """The cluster that was backed up, as it is now. `role` is the section of the configuration that names it, '' if
    none does. `newer` are its records that the newest restore point lacks, `problem` says why they are not known.

    `gone_topics` and `gone_groups` are in the archive and no longer in the source, each with the last restore point
    that has it. `groups_problem` says why the source's groups are not known."""

    role: str = ""
    newer: Sequence[NewerRecords] = field(default_factory=tuple)
    problem: str = ""
    gone_topics: Mapping[str, int] = field(default_factory=dict)
    gone_groups: Mapping[str, int] = field(default_factory=dict)
    groups_problem: str = ""

    @property
    def recreated(self) -> set[str]:
        """The topics that were created again since. A topic that a restore has brought back is not among them: it has
        the archived records."""
        names: set[str] = set()
        for topic in self.newer:
            if topic.recreated and not is_brought_back(topic.restored_by):
                names.add(topic.topic)
        return names


def ask_source(context: CommandContext, guided: GuidedArchive) -> SourceSince:
    """Ask the cluster that was backed up what it has since the newest restore point. The target is asked if no source
    is configured: it may be the same cluster."""
    point = guided.newest
    if point is None or guided.archive is None:
        return SourceSince(problem="a folder of the Java tool does not tell its cluster")
    role, properties = _source_of(context)
    if not role:
        return SourceSince(problem="no cluster is configured as [source] or [target]")
    click.echo(f"asking the {role} cluster at {properties['bootstrap.servers']} what it has since")
    names = {topic.name for topic in point.topics if topic.state != "unselected"}
    try:
        cluster = Cluster(properties, role)
        cluster_id, _ = cluster.connect()
        if cluster_id != point.cluster_id:
            return SourceSince(role, problem=f"cluster {cluster_id} is not the one that was backed up")
        live = LiveCluster(cluster, cluster_id, properties)
        newer = newer_in_source(live, guided.archive, point.number, names, guided.state)
        present_topics = cluster.topic_names()
        present_groups, unlisted = cluster.groups.listed()
    except KbackupError as error:
        return SourceSince(role, problem=error.message)
    gone_topics = _without(guided.last_points_of_topics, present_topics)
    if unlisted:
        # A group of a broker that does not answer may be there all the same.
        return SourceSince(role, newer, gone_topics=gone_topics, groups_problem=next(iter(unlisted.values())))
    gone_groups = _without(guided.last_points_of_groups, [group.group for group in present_groups])
    return SourceSince(role, newer, gone_topics=gone_topics, gone_groups=gone_groups)


def _without(last_points: Mapping[str, int], present: Iterable[str]) -> dict[str, int]:
    """Return the names that are not `present`, in order."""
    gone = last_points.keys() - set(present)
    return {name: last_points[name] for name in sorted(gone)}


def _source_of(context: CommandContext) -> tuple[str, Properties]:
    """Return the section that names the source, and its client properties; '' if neither section names a cluster."""
    for role, properties in (("source", context.config.source), ("target", context.config.target)):
        if properties.get("bootstrap.servers"):
            return role, properties
    return "", {}
