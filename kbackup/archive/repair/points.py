"""Restore points made of the segments that are there, where no catalog lists them or their manifest is lost.

A listed restore point stays where its manifest, groups or metadata are lost: a manifest follows from the catalog and
from the restore points beside it. Lost groups and metadata are empty, and the manifest says that they are not known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec
import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.catalog.operations import drop_superseded
from kbackup.archive.catalog.points import loss_rows, point_row
from kbackup.archive.catalog.state import ExpiredPoint, IncarnationRow, LossRow, PointRow, State
from kbackup.archive.models import (
    Capture,
    Deletions,
    Document,
    DocumentRef,
    Group,
    GroupOffset,
    Groups,
    Loss,
    Manifest,
    Metadata,
    PartitionState,
    Schemas,
    TopicState,
    Totals,
    load,
)
from kbackup.archive.repair.base import Documents, RepairBase, Sizes
from kbackup.archive.repair.segments import damaged_ranges
from kbackup.archive.run import TOOL, WritingRun, put_capture, totals_of
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.window import without
from kbackup.errors import CorruptError, NotFoundError
from kbackup.formats.index import decode_group_offsets
from kbackup.metadata.entities import NotCarried, TopicMetadata
from kbackup.store.base import Store
from kbackup.types import Incarnation, IncarnationPartition
from kbackup.util.text import join_names
from kbackup.util.times import now

_LOST = "is lost or damaged"
_SHOWN = 5
Captured = Mapping[str, Sequence[tuple[int, TopicMetadata]]]
"""By name: each topic as metadata.json of a restore point has it, with the number of the restore point, in order."""


class _Extent(NamedTuple):
    """The offsets of a segment or of a loss, and what the restore point that added it has there."""

    point: int
    partition: int
    first: int
    last: int
    records: int
    bytes: int


def captured_topics(documents: Documents) -> Captured:
    """Return the topics of all whole metadata documents."""
    topics: dict[str, list[tuple[int, TopicMetadata]]] = defaultdict(list)
    for key, (document, _) in documents.items():
        parsed = layout.parse_point_key(key)
        if parsed is not None and isinstance(document, Metadata):
            for topic in document.topics:
                topics[topic.name].append((parsed[0], topic))
    return {name: sorted(entries, key=lambda entry: entry[0]) for name, entries in topics.items()}


def topic_at(captured: Captured, name: str, topic_id: str, number: int) -> TopicMetadata | None:
    """Return a topic as it was captured at restore point `number` or last before, else first after. A topic of unknown
    id is only returned where all documents mean the same one."""
    entries = captured.get(name, ())
    if not topic_id and len({topic.id for _, topic in entries}) > 1:
        return None
    entries = [entry for entry in entries if not topic_id or entry[1].id in ("", topic_id)]
    earlier = [topic for at, topic in entries if at <= number]
    return earlier[-1] if earlier else next((topic for _, topic in entries), None)


# Lost documents of listed restore points, made anew.


@dataclass
class ManifestRebuilder:
    """Makes documents anew for `writing`, which has not committed yet. `manifests` has the readable ones by number,
    `losses` describes what can't be recovered, and `made` has the keys of replaced documents."""

    writing: WritingRun
    documents: Documents
    manifests: dict[int, Manifest]
    losses: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    _captures: dict[tuple[str, str, int], Capture] = field(default_factory=dict)

    def mend(self, state: State) -> State:
        """`state` with rows of restore points whose documents are all there. The manifests that they had stay known:
        who follows the archive has seen them."""
        extents: dict[Incarnation, list[_Extent]] = defaultdict(list)
        names = ("point", "partition", "first", "last", "count", "bytes")
        for topic, incarnation, *row in state.segments.rows("topic", "incarnation", *names):
            extents[topic, incarnation].append(_Extent(*row))
        for lost in state.lost:
            loss = lost.loss
            if loss.partition is not None and loss.end is not None:
                start = loss.start if loss.start is not None else loss.end
                extent = _Extent(lost.point, loss.partition, start, loss.end - 1, 0, 0)
                extents[lost.incarnation_key].append(extent)
        new: dict[int, PointRow] = {}
        for point in state.restore_points:
            manifest = self.manifests.get(point.number)
            notes: list[str] = []
            if manifest is None:
                manifest = self._manifest(state, point, extents)
                notes.append(
                    "the manifest was lost: it is made of the catalog and of other restore points; records of "
                    "transactions that it left to the next one may be missing"
                )
                self.losses.append(f"restore point {point.number}: its manifest {_LOST}; made of the catalog")
                self.made.append(point.documents[0])
            captures = [self._whole(point.number, capture, notes) for capture in manifest.captures]
            schemas = self._schemas(point.number, manifest.schemas, notes)
            deletions = self._deletions(point.number, manifest.deletions, notes)
            if not notes:
                continue
            made = msgspec.structs.replace(
                manifest,
                run=self.writing.run,
                captures=tuple(captures),
                schemas=schemas,
                deletions=deletions,
                not_known=(*manifest.not_known, *notes),
            )
            ref = self.writing.put_document(point.number, layout.MANIFEST, made)
            self.manifests[point.number] = load(Manifest, self.writing.store.get(ref.key), ref.key)
            new[point.number] = point_row(self.manifests[point.number], ref.key)
        if not new:
            return state
        return replace(
            state,
            points=state.points.replace([new.get(p.number, p) for p in state.restore_points]),
            past=state.past.append(
                [ExpiredPoint(p.number, p.manifest) for p in state.restore_points if p.number in new]
            ),
        )

    def _whole(self, number: int, capture: Capture, notes: list[str]) -> Capture:
        """Return the capture with documents that are there, empty ones where they are lost."""
        key = (capture.groups.key, capture.metadata.key, capture.number)
        refs = (capture.groups, capture.metadata)
        lost = [ref.key for ref in refs if self.documents.get(ref.key, (None, None))[1] != ref]
        if not lost:
            return capture
        unknown = [
            f"{'group offsets' if each.endswith(layout.GROUPS) else 'configs and settings'} captured for restore point "
            f"{capture.number}: the document {_LOST}"
            for each in lost
        ]
        notes += unknown
        if key not in self._captures:
            at, why = capture.started_at, "the document was lost; kbackup repair made it anew"
            unread = NotCarried(part=None, what="cluster", reason="failed", why=why)
            nothing = Metadata(captured_at=at, cluster_id="", brokers=0, topics=(), not_carried=(unread,))
            groups, metadata = (
                ref if ref.key not in lost else self._put(number, f"{capture.number}-{name}", empty)
                for ref, name, empty in (
                    (capture.groups, layout.GROUPS, Groups(captured_at=at, groups=())),
                    (capture.metadata, layout.METADATA, nothing),
                )
            )
            self._captures[key] = Capture(number=capture.number, started_at=at, groups=groups, metadata=metadata)
            self.losses += [f"restore point {capture.number}: {text}" for text in unknown]
            self.made += lost
        return self._captures[key]

    def _schemas(self, number: int, ref: DocumentRef | None, notes: list[str]) -> DocumentRef | None:
        """Return the schemas of a restore point, None where they are lost."""
        if ref is None or self.documents.get(ref.key, (None, None))[1] == ref:
            return ref
        notes.append(f"schemas: the document {_LOST}")
        self.losses.append(f"restore point {number}: schemas: the document {_LOST}")
        return None

    def _deletions(self, number: int, ref: DocumentRef | None, notes: list[str]) -> DocumentRef | None:
        """Return the records that a restore leaves out, None where the document is lost."""
        if ref is None or self.documents.get(ref.key, (None, None))[1] == ref:
            return ref
        unknown = f"deletions: the document {_LOST}; a restore brings back keys that were deleted at the source"
        notes.append(unknown)
        self.losses.append(f"restore point {number}: {unknown}")
        return None

    def _put(self, number: int, name: str, document: Document) -> DocumentRef:
        ref = self.writing.put_document(number, name, document)
        self.documents[ref.key] = (document, ref)
        return ref

    def _manifest(self, state: State, point: PointRow, extents: Mapping[Incarnation, list[_Extent]]) -> Manifest:
        """Return a manifest of a restore point whose own is lost, by its row and by the restore points beside it."""
        number = point.number
        before = self.manifests.get(max((n for n in self.manifests if n < number), default=0))
        after = self.manifests.get(min((n for n in self.manifests if n > number), default=0))
        own = self._own_capture(point)
        topics, unsure = self._lost_topics(state, point, extents, (before, after), own)
        captures = {capture.number: capture for beside in (after, before) if beside for capture in beside.captures}
        captures[number] = own
        needed = sorted({number, *(topic.captured for topic in topics)})
        found = [row.loss for row in state.lost if row.point == number]
        losses = [loss for loss in found if loss.kind != "damaged"]  # what was damaged since shows in the catalog
        totals = {name: getattr(point, name) for name in Totals.__struct_fields__}
        uncommitted = point.isolation_level == "read_uncommitted"
        return Manifest(
            archive_id=state.archive_id,
            number=number,
            run=self.writing.run,
            previous=max((n for n in state.numbers.tolist() if n < number), default=None),
            origin="repair",
            tool=TOOL,
            started_at=point.started_at,
            committed_at=point.committed_at,
            cluster_id=point.cluster_id,
            isolation_level="read_uncommitted" if uncommitted else "read_committed",
            losses=tuple(losses),
            totals=Totals(**totals),
            captures=tuple(captures[n] for n in needed),
            schemas=self._named(point, Schemas),
            deletions=self._named(point, Deletions),
            topics=tuple(topics),
            not_known=(_partitions_not_known(unsure),) if unsure else (),
        )

    def _lost_topics(
        self,
        state: State,
        point: PointRow,
        extents: Mapping[Incarnation, list[_Extent]],
        beside: tuple[Manifest | None, Manifest | None],
        own: Capture,
    ) -> tuple[list[TopicState], list[str]]:
        """Return the topics of a restore point whose manifest is lost, and the names of those whose number of
        partitions is not known for certain."""
        document, _ = self.documents.get(own.metadata.key, (None, None))
        captured = {topic.name for topic in document.topics} if isinstance(document, Metadata) else None
        every = captured_topics(self.documents)
        in_others = {key for manifest in beside if manifest is not None for key in manifest.incarnations()}
        topics: list[TopicState] = []
        unsure: list[str] = []
        for key, life in sorted(state.lives.items()):
            if life.first is None or life.retired or not life.first <= point.number <= (life.last or point.number):
                continue
            known = topic_at(every, key[0], life.topic_id, point.number)
            count = known.partitions if known is not None else 0
            topics.append(_lost_topic(state, point, key, extents.get(key, ()), beside, captured, count))
            if known is None and key not in in_others:
                unsure.append(key[0])
        return topics, unsure

    def _named(self, point: PointRow, kind: type[Document]) -> DocumentRef | None:
        """Return the whole document of a kind that a restore point's row names; None if it has none."""
        found = (self._found(key, kind) for key in point.documents)
        return next(filter(None, found), None)

    def _found(self, key: str, kind: type[Document]) -> DocumentRef | None:
        document, ref = self.documents.get(key, (None, None))
        return ref if isinstance(document, kind) else None

    def _own_capture(self, point: PointRow) -> Capture:
        """Return the capture of a restore point whose manifest is lost, by the documents that its row names."""

        def newest(name: str, kind: type[Document]) -> DocumentRef:
            keys = [key for key in point.documents if key.endswith(name)]
            numbers = {key: parsed[0] for key in keys if (parsed := layout.parse_point_key(key)) is not None}
            key = max(keys, key=lambda key: numbers.get(key, 0), default=layout.point_key(point.number, "0", name))
            return self._found(key, kind) or DocumentRef(key=key, size=0, sha256="")

        groups, metadata = newest(layout.GROUPS, Groups), newest(layout.METADATA, Metadata)
        return Capture(number=point.number, started_at=point.started_at, groups=groups, metadata=metadata)


def _lost_topic(
    state: State,
    point: PointRow,
    key: Incarnation,
    extents: Sequence[_Extent],
    beside: tuple[Manifest | None, Manifest | None],
    captured: set[str] | None,
    count: int,
) -> TopicState:
    """Return a topic of a restore point whose manifest is lost. `count` is its number of partitions by a capture, 0
    where no document has it: a partition that never had a record has no row."""
    before, after = (manifest.incarnations().get(key) if manifest is not None else None for manifest in beside)
    if after is not None and after.captured <= point.number:  # it was captured then, and not since
        is_own = after.captured == point.number
        return msgspec.structs.replace(after, state="present") if is_own else after
    own = [extent for extent in extents if extent.point <= point.number]
    template = before if before is not None or count else after
    numbers = {p.partition for p in template.partitions} if template is not None else set[int]()
    with_records = [extent.partition + 1 for extent in own]
    least = 0 if numbers else 1  # a topic has at least one partition
    numbers |= set(range(max([least, count, *with_records])))
    number = point.number
    if before is not None and captured is not None and key[0] not in captured:
        number = before.captured  # its run did not look at the topic
    partitions: list[PartitionState] = []
    for partition in sorted(numbers):
        added = [extent for extent in own if extent.partition == partition]
        partitions.append(_lost_partition(state, (*key, partition), added, before, after))
    return TopicState(
        name=key[0],
        id=state.lives[key].topic_id,
        incarnation=key[1],
        captured=number,
        state=before.state if before is not None and number == before.captured else "present",
        partitions=tuple(partitions),
    )


def _lost_partition(
    state: State,
    key: IncarnationPartition,
    extents: Sequence[_Extent],
    before: TopicState | None,
    after: TopicState | None,
) -> PartitionState:
    """Return a partition of a restore point whose manifest is lost. It ends where the last of its segments does, or
    where it ended before: what transactions held back then may be missing."""
    old, new = _partition_of(before, key[2]), _partition_of(after, key[2])
    log_start = state.starts.get(key)
    known = old or new
    start = known.start if known is not None else min((extent.first for extent in extents), default=0)
    end = max([start, *(extent.last + 1 for extent in extents)])
    if old is not None:
        end = max(end, old.end)
    if log_start is not None and (new is None or new.end >= log_start.start):
        end = max(end, log_start.start)
    log_end = max(end, old.log_end) if old is not None else end
    records = sum(extent.records for extent in extents)
    size = sum(extent.bytes for extent in extents)
    if log_start is not None and end >= log_start.start:
        # no segment shows the records that expired since; the restore point had them
        records += log_start.records
        size += log_start.bytes
    return PartitionState(
        partition=key[2],
        start=start,
        end=end,
        log_start=known.log_start if known is not None else start,
        log_end=log_end,
        records=records,
        bytes=size,
    )


def _partition_of(topic: TopicState | None, number: int) -> PartitionState | None:
    if topic is None:
        return None
    return next((partition for partition in topic.partitions if partition.partition == number), None)


# A restore point that is made of segments and group files alone: by an adoption, or where manifests are lost.


def topic_states(
    number: int,
    partitions: Iterable[IncarnationPartition],
    segments: Mapping[IncarnationPartition, Sequence[Segment]],
    ids: Mapping[Incarnation, str],
    before: Mapping[IncarnationPartition, PartitionState],
    groups: Groups,
) -> tuple[TopicState, ...]:
    """Return the topics of restore point `number` with all of `partitions`. A partition ends after its last segment, or
    where it ended `before`. Group offsets beyond that show that its log was longer."""
    highest: dict[tuple[str, int], int] = defaultdict(int)
    for group in groups.groups:
        for o in group.offsets:
            highest[o.topic, o.partition] = max(o.offset, highest[o.topic, o.partition])

    def partition_state(topic: str, incarnation: int, partition: int) -> PartitionState:
        place = (topic, incarnation, partition)
        own = segments.get(place, ())
        first = own[0].first if own else 0
        old = before.get(place) or PartitionState(
            partition=partition, start=first, end=first, log_start=first, log_end=0, records=0, bytes=0
        )
        end = max(own[-1].last + 1 if own else 0, old.end)
        return PartitionState(
            partition=partition,
            start=old.start,
            end=end,
            log_start=old.log_start,
            log_end=max(end, old.log_end, highest[topic, partition]),
            records=old.records + sum(s.count for s in own),
            bytes=old.bytes + sum(s.bytes for s in own),
            held=without(old.held, [(s.first, s.last + 1) for s in own]),
        )

    counts = {(topic, incarnation): partition + 1 for topic, incarnation, partition in sorted(partitions)}
    return tuple(
        TopicState(
            name=key[0],
            id=ids.get(key, ""),
            incarnation=key[1],
            captured=number,
            state="present",
            partitions=tuple(partition_state(*key, partition) for partition in range(count)),
        )
        for key, count in counts.items()
    )


def groups_of_files(
    store: Store, keys: Iterable[str], topics: Iterable[Incarnation], root: str = layout.TOPICS
) -> Groups:
    """Return the group offsets of `topics` from the group files among `keys`; damaged files are skipped."""
    folders = {layout.topic_dir(*topic, root): topic[0] for topic in topics}
    offsets: dict[str, list[GroupOffset]] = defaultdict(list)
    for key in sorted(keys):
        folder, _, name = key.rpartition("/")
        partition, topic = layout.parse_group_offsets(name), folders.get(f"{folder}/")
        if partition is None or topic is None:
            continue
        with suppress(CorruptError, NotFoundError):
            for group, offset in decode_group_offsets(store.get(key), key).items():
                offsets[group].append(GroupOffset(topic=topic, partition=partition, offset=offset))
    return Groups(
        captured_at=now(),
        groups=tuple(Group(group=name, type="", state="", offsets=tuple(o)) for name, o in sorted(offsets.items())),
    )


def manifest_behind(
    writing: WritingRun,
    head: Manifest | None,
    segments: Sequence[Segment],
    ids: Mapping[Incarnation, str],
    keys: Iterable[str],
    captured: Captured,
    number: int,
    *,
    last: bool,
) -> Manifest:
    """Return restore point `number` of `segments` behind `head`: their topics, with the partitions and configs that
    they had when they were `captured`. The `last` one has the other topics of `head` as well, as they are there."""
    by_partition: dict[IncarnationPartition, list[Segment]] = defaultdict(list)
    for s in segments:
        by_partition[s.incarnation_partition].append(s)
    old = head.incarnations() if head is not None else {}
    new = {place[:2] for place in by_partition}
    before = {(*key, p.partition): p for key in new & old.keys() for p in old[key].partitions}
    groups = groups_of_files(writing.store, keys, new)
    known = {key: topic_at(captured, key[0], ids.get(key, ""), number) for key in sorted(new)}
    counted = {(*key, p) for key, topic in known.items() if topic is not None for p in range(topic.partitions)}
    made = topic_states(number, {*by_partition, *before, *counted}, by_partition, ids, before, groups)
    names = {topic.name for topic in made}
    carried = [t for t in old.values() if last and t.name not in names]
    names |= {topic.name for topic in carried}
    empty = _empty_topics(captured, head.number if head is not None else 0, names, ids, number) if last else []
    made = (*made, *(topic for topic, _ in empty))
    needed = {t.captured for t in carried}
    captures = [c for c in head.captures if c.number in needed] if head is not None else []
    settings = [topic for topic in known.values() if topic is not None] + [topic for _, topic in empty]
    cluster_id = head.cluster_id if head is not None else ""
    found = manifest_of_files(writing, number, made, segments, groups, cluster_id=cluster_id, settings=settings)
    topics = sorted([*made, *carried], key=lambda t: t.name)
    return msgspec.structs.replace(
        found,
        topics=tuple(topics),
        captures=(*captures, *found.captures),
        isolation_level=head.isolation_level if head is not None else "read_committed",
        deletions=head.deletions if head is not None else None,
    )


def _empty_topics(
    captured: Captured, head: int, names: Collection[str], ids: Mapping[Incarnation, str], number: int
) -> list[tuple[TopicState, TopicMetadata]]:
    """Return the topics of the newest capture behind restore point `head`, apart from `names`: no segment was found."""
    newest = max((at for entries in captured.values() for at, _ in entries), default=0)
    topics: list[tuple[TopicState, TopicMetadata]] = []
    for name, entries in sorted(captured.items()):
        at, topic = entries[-1]
        if at != newest or newest <= head or name in names:
            continue
        given = {incarnation: id_ for (other, incarnation), id_ in ids.items() if other == name}
        same = [incarnation for incarnation, id_ in given.items() if id_ == topic.id]
        key = (name, same[0] if same else max(given, default=0) + 1)
        places = [(*key, p) for p in range(topic.partitions)]
        no_groups = Groups(captured_at="", groups=())
        topics += [(t, topic) for t in topic_states(number, places, {}, {key: topic.id}, {}, no_groups)]
    return topics


def manifest_of_files(
    writing: WritingRun,
    number: int,
    topics: Sequence[TopicState],
    segments: Sequence[Segment],
    groups: Groups,
    losses: Sequence[Loss] = (),
    warnings: Sequence[str] = (),
    cluster_id: str = "",
    settings: Sequence[TopicMetadata] = (),
) -> Manifest:
    """Return restore point `number` of `writing`, with documents of its own; `settings` are the configs that are
    known."""
    at = now()
    unknown = NotCarried(part=None, what="cluster", reason="failed", why="nothing tells of it")
    metadata = Metadata(
        captured_at=at, cluster_id=cluster_id, brokers=0, topics=tuple(settings), not_carried=(unknown,)
    )
    capture = put_capture(writing, number, at, groups, metadata)
    partitions = sum(len(topic.partitions) for topic in topics)
    return Manifest(
        archive_id=writing.archive_id,
        number=number,
        run=writing.run,
        previous=writing.previous,
        origin="repair",
        tool=TOOL,
        started_at=at,
        committed_at=at,
        cluster_id=cluster_id,
        losses=tuple(losses),
        warnings=tuple(warnings),
        not_known=tuple(not_known(topics, {t.name for t in settings})),
        totals=totals_of(segments, topics=len(topics), partitions=partitions, groups=len(groups.groups)),
        captures=(capture,),
        topics=tuple(topics),
    )


def not_known(topics: Sequence[TopicState], known: Collection[str] = ()) -> list[str]:
    """Describe what a restore point made from files alone lacks. Configs of the topics `known` are known."""
    if not topics:
        return []
    names = [t.name for t in topics if t.name not in known]
    nameless = [t.name for t in topics if not t.id]
    configs = f"configs and replication factor of {join_names(names, _SHOWN)}; " if names else ""
    return [
        *([_partitions_not_known(names)] if names else []),
        f"{configs}group positions are those of the group files",
        "ACLs, users and settings of the cluster",
        *([f"Kafka's ids of {join_names(nameless, _SHOWN)}"] if nameless else []),
    ]


def _partitions_not_known(names: Collection[str]) -> str:
    return f"partitions behind the last one with records of {join_names(sorted(names), _SHOWN)}"


# Restore points and incarnations that are found in a store and that no catalog lists.


def listed_manifests(state: State, documents: Documents) -> dict[int, Manifest]:
    """Return, by number, the manifests of restore points of `state` that have the listed checksum."""
    manifests: dict[int, Manifest] = {}
    for point in state.restore_points:
        document, _ = documents.get(point.documents[0], (None, None))
        if isinstance(document, Manifest) and document.checksum == point.manifest:
            manifests[point.number] = document
    return manifests


def unlisted_points(base: RepairBase, documents: Documents) -> dict[int, tuple[Manifest, PointRow]]:
    """Return, by number, whole manifests of restore points that the base lacks. Of two with one number the later one is
    returned. Below the next number of the newest catalog only restore points that its table may have lost are returned.
    Beside a whole base only those of the open run are: its catalog may be lost, and no later run has given the number
    away."""
    state = base.state
    known = set(state.numbers.tolist())
    least = 0 if "points" in base.stale or base.committed.catalog is None else state.next_point
    open_run = state.open_run.run if state.open_run is not None else ""
    points = [
        (document, point_row(document, ref.key))
        for document, ref in documents.values()
        if isinstance(document, Manifest)
        and document.archive_id == state.archive_id
        and document.number >= least
        and (not base.is_whole or document.run == open_run)
        and document.number not in known
        and state.past_manifests.get(document.number) != document.checksum
    ]
    points.sort(key=lambda entry: (entry[0].number, entry[0].committed_at))
    return {manifest.number: (manifest, point) for manifest, point in points}


def lives_of(state: State, manifests: Mapping[int, Manifest], sizes: Sizes) -> list[IncarnationRow]:
    """Return the incarnations of the restore points, from their manifests, the table and the rows of segments. Numbers
    of folders and reservations stay taken.

    A topic stays in all later restore points, until another incarnation takes its place.
    """
    newest = max(manifests, default=0)
    is_newest = state.newest is None or state.newest.number <= newest
    topics = manifests[newest].incarnations() if newest else {}
    seen: dict[Incarnation, set[int]] = defaultdict(set)
    ids = {key: life.topic_id for key, life in state.lives.items()}
    for number, manifest in manifests.items():
        for key, topic in manifest.incarnations().items():
            seen[key].add(number)
            ids[key] = topic.id
    for name, incarnation, point in set(state.segments.rows("topic", "incarnation", "point")):
        seen[name, incarnation].add(point)
    for key, life in state.lives.items():
        seen[key] |= {number for number in (life.first, life.last) if number is not None and not life.retired}
    firsts = {key: min(numbers) for key, numbers in seen.items() if numbers}
    folders = {place[0] for key in sizes if (place := layout.parse_topic_key(key)) is not None}
    lives: list[IncarnationRow] = []
    for key in sorted({*seen, *folders}):
        known = state.lives.get(key)
        if key not in firsts:
            retired = known is None or known.retired
            lives.append(IncarnationRow(*key, ids.get(key, ""), None, None, retired))
            continue
        later = min((n for other, n in firsts.items() if other[0] == key[0] and other > key), default=0)
        is_alive = key in topics if is_newest else known is None or known.last is None
        last = max([*seen[key], *(number for number in state.numbers.tolist() if number < later)])
        ended = None if is_alive and not later else last
        lives.append(IncarnationRow(*key, ids.get(key, ""), firsts[key], ended, False))
    return drop_superseded(lives)


def losses_of(state: State, manifests: Mapping[int, Manifest]) -> list[LossRow]:
    """Return the losses that manifests have and `state` lacks."""
    known = set(state.lost)
    found = [row for _, manifest in sorted(manifests.items()) for row in loss_rows(manifest)]
    return [row for row in found if row not in known]


def without_expired(state: State) -> State:
    """Return `state` without rows of segments before the log start or among the losses, which an older table still
    has."""
    starts, damaged = state.starts, damaged_ranges(state)

    def stays(topic: str, incarnation: int, partition: int, first: int, last: int) -> bool:
        place = (topic, incarnation, partition)
        return (place not in starts or last >= starts[place].start) and (first, last) not in damaged.get(place, ())

    names = ("topic", "incarnation", "partition", "first", "last")
    return replace(state, segments=state.segments.where(stays, *names))


def with_rows(state: State, lives: Sequence[IncarnationRow], segments: pa.Table, losses: Sequence[LossRow]) -> State:
    return replace(
        state,
        incarnations=state.incarnations.replace(lives),
        segments=state.segments.append(segments),
        losses=state.losses_with(losses),
    )


def with_points(state: State, points: Iterable[PointRow], next_point: int) -> State:
    """`state` with restore points that it lacks, and without those that were let go."""
    past = state.past_manifests
    rows = [p for p in state.restore_points if past.get(p.number) != p.manifest]
    every = sorted([*rows, *points])
    return replace(
        state,
        next_point=max([state.next_point, next_point, *(p.number + 1 for p in every)]),
        points=state.points.replace(every),
    )
