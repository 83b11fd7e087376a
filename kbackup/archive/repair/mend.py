"""Documents of listed restore points made anew: a restore point stays where its manifest, groups or metadata are lost.

A lost manifest follows from the catalog and from the restore points beside it. Lost groups and metadata are empty, and
the manifest says that they are not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from kbackup import __version__
from kbackup.archive import layout
from kbackup.archive.catalog.operations import loss_of
from kbackup.archive.catalog.state import Point, State
from kbackup.archive.models import Capture, Document, DocumentRef, Groups, Manifest, Metadata, TopicState, Totals, load
from kbackup.archive.new_point import point_of
from kbackup.archive.repair.base import Documents
from kbackup.archive.repair.points import (
    Row,
    captured_topics,
    lost_topic,
    partitions_not_known,
    rows_by_incarnation,
    topic_at,
)
from kbackup.archive.run import WritingRun
from kbackup.metadata.entities import NotCarried
from kbackup.types import Incarnation

_LOST = "is lost or damaged"


@dataclass
class Mender:
    """Makes documents anew for `writing`, which has not committed yet. `manifests` has the readable ones by number,
    `losses` describes what can't be recovered, and `made` has the keys of replaced documents."""

    writing: WritingRun
    documents: Documents
    manifests: dict[int, Manifest]
    losses: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    _captures: dict[tuple[str, str, int], Capture] = field(default_factory=dict)

    def mend(self, state: State) -> State:
        """`state` with rows of restore points whose documents are all there."""
        rows = rows_by_incarnation(state)
        new: dict[int, Point] = {}
        for point in state.restore_points:
            manifest = self.manifests.get(point.number)
            notes: list[str] = []
            if manifest is None:
                manifest = self._manifest(state, point, rows)
                notes.append("the manifest was lost: it is made of the catalog and of other restore points")
                self.losses.append(f"restore point {point.number}: its manifest {_LOST}; made of the catalog")
                self.made.append(point.documents[0])
            captures = [self._whole(point.number, capture, notes) for capture in manifest.captures]
            if not notes:
                continue
            made = msgspec.structs.replace(
                manifest, run=self.writing.run, captures=tuple(captures), not_known=(*manifest.not_known, *notes)
            )
            ref = self.writing.put_document(point.number, layout.MANIFEST, made)
            self.manifests[point.number] = load(Manifest, self.writing.store.get(ref.key), ref.key)
            new[point.number] = point_of(self.manifests[point.number], ref)
        return _with_points(state, new)

    def _whole(self, number: int, capture: Capture, notes: list[str]) -> Capture:
        """Return the capture with documents that are there, empty ones where they are lost."""
        key = (capture.groups.key, capture.metadata.key, capture.number)
        lost = [ref for ref in (capture.groups, capture.metadata) if not self._has(ref)]
        if not lost:
            return capture
        if key not in self._captures:
            self._captures[key] = self._replace(number, capture, [ref.key for ref in lost])
        notes += [_not_known(ref.key, capture.number) for ref in lost]
        return self._captures[key]

    def _has(self, ref: DocumentRef) -> bool:
        return ref.key in self.documents and self.documents[ref.key][1] == ref

    def _replace(self, number: int, capture: Capture, lost: Sequence[str]) -> Capture:
        groups, metadata = capture.groups, capture.metadata
        if groups.key in lost:
            groups = self._put(number, capture, Groups(captured_at=capture.started_at, groups=()), layout.GROUPS)
        if metadata.key in lost:
            metadata = self._put(number, capture, empty_metadata(capture.started_at), layout.METADATA)
        self.losses += [f"restore point {capture.number}: {_not_known(key, capture.number)}" for key in lost]
        self.made += lost
        return Capture(number=capture.number, started_at=capture.started_at, groups=groups, metadata=metadata)

    def _put(self, number: int, capture: Capture, document: Document, name: str) -> DocumentRef:
        ref = self.writing.put_document(number, f"{capture.number}-{name}", document)
        self.documents[ref.key] = (document, ref)
        return ref

    def _manifest(self, state: State, point: Point, rows: Mapping[Incarnation, list[Row]]) -> Manifest:
        before = self.manifests.get(max((n for n in self.manifests if n < point.number), default=0))
        after = self.manifests.get(min((n for n in self.manifests if n > point.number), default=0))
        own = self._own_capture(point)
        captured, every = self._captured_topics(own), captured_topics(self.documents)
        beside = {(t.name, t.incarnation) for m in (before, after) if m is not None for t in m.topics}
        topics: list[TopicState] = []
        unsure: list[str] = []
        for key, life in sorted(state.lives.items()):
            if life.first is None or life.retired:
                continue
            if not life.first <= point.number <= (life.last or point.number):
                continue
            known = topic_at(every, key[0], life.topic_id, point.number)
            count = known.partitions if known is not None else 0
            topics.append(lost_topic(state, point, key, rows.get(key, ()), (before, after), captured, count))
            if known is None and key not in beside:
                unsure.append(key[0])
        captures = {c.number: c for m in (after, before) if m is not None for c in m.captures}
        captures[point.number] = own
        return Manifest(
            archive_id=state.archive_id,
            number=point.number,
            run=self.writing.run,
            previous=max((n for n in state.numbers.tolist() if n < point.number), default=None),
            origin="repair",
            tool=f"kbackup {__version__}",
            started_at=point.started_at,
            committed_at=point.committed_at,
            cluster_id=point.cluster_id,
            isolation_level="read_uncommitted" if point.isolation_level == "read_uncommitted" else "read_committed",
            losses=tuple(
                loss_of(row)
                for row in state.losses.dicts()
                if row["point"] == point.number and row["kind"] != "damaged"
            ),
            totals=Totals(**{name: getattr(point, name) for name in Totals.__struct_fields__}),
            captures=tuple(captures[n] for n in sorted({point.number, *(t.captured for t in topics)})),
            topics=tuple(topics),
            not_known=(partitions_not_known(unsure),) if unsure else (),
        )

    def _own_capture(self, point: Point) -> Capture:
        """Return the capture of a restore point whose manifest is lost, by the documents that its row names."""

        def newest(name: str, kind: type[Document]) -> DocumentRef:
            keys = [key for key in point.documents if key.endswith(name)]
            key = max(keys, key=_number_of, default=f"points/{point.number:010d}-0/{name}")
            document, ref = self.documents.get(key, (None, None))
            if ref is not None and isinstance(document, kind):
                return ref
            return DocumentRef(key=key, size=0, sha256="")

        return Capture(
            number=point.number,
            started_at=point.started_at,
            groups=newest(layout.GROUPS, Groups),
            metadata=newest(layout.METADATA, Metadata),
        )

    def _captured_topics(self, capture: Capture) -> set[str] | None:
        """Return the topics of a capture; None if they are unknown."""
        document, _ = self.documents.get(capture.metadata.key, (None, None))
        return {t.name for t in document.topics} if isinstance(document, Metadata) else None


def empty_metadata(at: str, cluster_id: str = "") -> Metadata:
    why = "the document was lost; kbackup repair made it anew"
    unknown = NotCarried(part=None, what="cluster", reason="failed", why=why)
    return Metadata(captured_at=at, cluster_id=cluster_id, brokers=0, topics=(), not_carried=(unknown,))


def _not_known(key: str, number: int) -> str:
    if key.endswith(layout.GROUPS):
        return f"group offsets captured for restore point {number}: the document {_LOST}"
    return f"configs and settings captured for restore point {number}: the document {_LOST}"


def _number_of(key: str) -> int:
    parsed = layout.parse_point_key(key)
    return parsed[0] if parsed is not None else 0


def _with_points(state: State, new: Mapping[int, Point]) -> State:
    """`state` with rows of restore points replaced. The manifests that they had stay known: who follows the archive
    has seen them."""
    if not new:
        return state
    old = [{"number": p.number, "manifest": p.manifest} for p in state.restore_points if p.number in new]
    points = [new.get(p.number, p) for p in state.restore_points]
    return replace(
        state,
        points=state.points.replace([p._asdict() | {"documents": list(p.documents)} for p in points]),
        past=state.past.append(old),
    )
