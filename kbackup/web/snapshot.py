"""The content of an archive as of a restore point, read when a page first asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kbackup.archive.models import Loss, Manifest, Metadata
from kbackup.archive.query.browse import Catalogue, catalogue, catalogue_of
from kbackup.archive.query.content import ArchivedPartition, ArchivedTopic
from kbackup.archive.query.group_overview import (
    GroupOverview,
    GroupsOverview,
    groups_overview,
    java_groups_overview,
)
from kbackup.archive.query.lost_ranges import lost_ranges
from kbackup.archive.query.sums import Sums, sums_of
from kbackup.archive.reader import Archive
from kbackup.errors import UsageError
from kbackup.metadata.entities import TopicMetadata
from kbackup.store.base import Store
from kbackup.types import IncarnationPartition


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic's row in a table."""

    topic: ArchivedTopic
    sums: Sums
    losses: int

    @property
    def name(self) -> str:
        return self.topic.name


class Snapshot:
    """An archive as of a restore point (`point` is None for a folder of the Java tool)."""

    def __init__(self, store: Store, archive: Archive | None, point: Manifest | None, newest: bool) -> None:
        self.store, self.archive, self.point, self.newest = store, archive, point, newest
        self._read: dict[int, Metadata] = {}

    @property
    def number(self) -> int | None:
        return self.point.number if self.point is not None else None

    @cached_property
    def catalogue(self) -> Catalogue:
        if self.archive is None or self.point is None:
            return catalogue(self.store)
        return catalogue_of(self.archive, self.point)

    @cached_property
    def topics(self) -> dict[str, ArchivedTopic]:
        return {topic.name: topic for topic in self.catalogue.topics}

    def topic(self, name: str) -> ArchivedTopic:
        if name not in self.topics:
            raise UsageError(
                f"there is no topic {name} in {self.catalogue.location}", "select another restore point"
            )
        return self.topics[name]

    def partition(self, name: str, number: int) -> ArchivedPartition:
        self.topic(name)
        return self.catalogue.partition(name, number)

    @cached_property
    def rows(self) -> list[TopicRow]:
        lost: dict[str, int] = {}
        for _, loss in self.losses:
            lost[loss.topic] = lost.get(loss.topic, 0) + 1
        return [TopicRow(t, sums_of(t.partitions), lost.get(t.name, 0)) for t in self.catalogue.topics]

    @cached_property
    def sums(self) -> Sums:
        return sums_of(p for topic in self.catalogue.topics for p in topic.partitions)

    @cached_property
    def losses(self) -> list[tuple[int, Loss]]:
        """Losses up to this restore point as (restore point, loss), the newest first."""
        if self.archive is None or self.point is None:
            return []
        return self.archive.losses_by_point(self.point)[::-1]

    @cached_property
    def lost_ranges(self) -> dict[IncarnationPartition, list[tuple[int, int]]]:
        return lost_ranges(self.archive, self.point) if self.archive and self.point else {}

    @cached_property
    def groups(self) -> GroupsOverview:
        if self.archive is None or self.point is None:
            return java_groups_overview(self.store)
        return groups_overview(self.archive, self.point)

    @cached_property
    def by_group(self) -> dict[str, GroupOverview]:
        return {group.group: group for group in self.groups.groups}

    def metadata(self, number: int | None = None) -> Metadata | None:
        """Return the metadata of a restore point, by default this one; None for a folder of the Java tool."""
        if self.archive is None or self.point is None:
            return None
        captured = self.point.number if number is None else number
        if captured not in self._read:
            self._read[captured] = self.archive.metadata(captured)
        return self._read[captured]

    def settings(self, topic: ArchivedTopic) -> TopicMetadata | None:
        metadata = self.metadata(topic.as_of)
        if metadata is None:
            return None
        return next((t for t in metadata.topics if t.name == topic.name), None)
