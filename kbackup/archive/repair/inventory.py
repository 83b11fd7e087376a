"""Restore points and incarnations that are found in a store and that no catalog lists."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from kbackup.archive import layout
from kbackup.archive.catalog.operations import drop_superseded, loss_row
from kbackup.archive.catalog.state import Life, Point, State, mask
from kbackup.archive.models import Manifest
from kbackup.archive.new_point import point_of
from kbackup.archive.repair.attribution import damaged_ranges
from kbackup.archive.repair.base import Base, Documents, Sizes
from kbackup.types import Incarnation


def listed_manifests(state: State, documents: Documents) -> dict[int, Manifest]:
    """Return, by number, the manifests of restore points of `state` that have the listed checksum."""
    manifests: dict[int, Manifest] = {}
    for point in state.restore_points:
        document, _ = documents.get(point.documents[0], (None, None))
        if isinstance(document, Manifest) and document.checksum == point.manifest:
            manifests[point.number] = document
    return manifests


def unlisted_points(base: Base, documents: Documents) -> dict[int, tuple[Manifest, Point]]:
    """Return, by number, whole manifests of restore points that the base lacks. Of two with one number the later one is
    returned. Below the next number of the newest catalog only restore points that its table may have lost are returned.
    Beside a whole base only those of the open run are: its catalog may be lost, and no later run has given the number
    away."""
    state = base.state
    known = set(state.numbers.tolist())
    least = 0 if "points" in base.stale or base.committed.catalog is None else state.next_point
    open_run = state.open_run.run if state.open_run is not None else ""
    points = [
        (document, point_of(document, ref))
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


def numbers_given(sizes: Sizes) -> int:
    """The highest number of a restore point that any object under points/ has."""
    return max((p[0] for key in sizes if (p := layout.parse_point_key(key)) is not None), default=0)


def lives_of(state: State, manifests: Mapping[int, Manifest], sizes: Sizes) -> list[Life]:
    """The incarnations that restore points have, by their manifests, by the table, and by the segments' rows. Numbers
    that folders or reservations tell of stay given.

    A topic stays in all later restore points, until another incarnation takes its place.
    """
    newest = max(manifests, default=0)
    is_newest = state.newest is None or state.newest.number <= newest
    topics = {(t.name, t.incarnation) for t in manifests[newest].topics} if newest else set()
    seen: dict[Incarnation, set[int]] = defaultdict(set)
    ids = {key: life.topic_id for key, life in state.lives.items()}
    for number, manifest in manifests.items():
        for topic in manifest.topics:
            seen[topic.name, topic.incarnation].add(number)
            ids[topic.name, topic.incarnation] = topic.id
    names = ("topic", "incarnation", "point")
    for name, incarnation, point in set(zip(*state.segments.columns(*names), strict=True)):
        seen[name, incarnation].add(point)
    for key, life in state.lives.items():
        seen[key] |= {number for number in (life.first, life.last) if number is not None and not life.retired}
    firsts = {key: min(numbers) for key, numbers in seen.items() if numbers}
    folders = {place[0] for key in sizes if (place := layout.parse_topic_key(key)) is not None}
    lives: list[Life] = []
    for key in sorted({*seen, *folders}):
        known = state.lives.get(key)
        if key not in firsts:
            retired = known is None or known.retired
            lives.append(Life(*key, ids.get(key, ""), None, None, retired))
            continue
        later = min((n for other, n in firsts.items() if other[0] == key[0] and other > key), default=0)
        is_alive = key in topics if is_newest else known is None or known.last is None
        last = max([*seen[key], *(number for number in state.numbers.tolist() if number < later)])
        lives.append(
            Life(*key, ids.get(key, ""), firsts[key], None if is_alive and not later else last, False)
        )
    return drop_superseded(lives)


def losses_of(state: State, manifests: Mapping[int, Manifest]) -> list[dict[str, Any]]:
    """Return the rows of `tables.LOSSES` that manifests have and `state` lacks."""
    known = {tuple(row.values()) for row in state.losses.dicts()}
    rows: list[dict[str, Any]] = []
    for number, manifest in sorted(manifests.items()):
        incarnations = {t.name: t.incarnation for t in manifest.topics}
        for loss in manifest.losses:
            row = loss_row(number, incarnations.get(loss.topic, 1), loss)
            if tuple(row.values()) not in known:
                rows.append(row)
    return rows


def without_let_go(state: State) -> State:
    """Return `state` without rows of segments before the log start or among the losses, which an older table still
    has."""
    damaged = damaged_ranges(state)
    columns = state.segments.columns("topic", "incarnation", "partition", "first", "last")
    return replace(
        state,
        segments=state.segments.where(
            mask(
                (place not in state.starts or last >= state.starts[place].start)
                and (first, last) not in damaged.get(place, ())
                for *place_, first, last in zip(*columns, strict=True)
                for place in [(place_[0], place_[1], place_[2])]
            )
        ),
    )


def with_rows(
    state: State, lives: Sequence[Life], segments: pa.Table, losses: Sequence[dict[str, Any]]
) -> State:
    return replace(
        state,
        incarnations=state.incarnations.replace([life._asdict() for life in lives]),
        segments=state.segments.append(segments),
        losses=state.losses.append(list(losses)),
    )


def with_points(state: State, points: Iterable[Point], next_point: int) -> State:
    """`state` with restore points that it lacks, and without those that were let go."""
    past = state.past_manifests
    rows = [p for p in state.restore_points if past.get(p.number) != p.manifest]
    every = sorted([*rows, *points])
    return replace(
        state,
        next_point=max([state.next_point, next_point, *(p.number + 1 for p in every)]),
        points=state.points.replace([p._asdict() | {"documents": list(p.documents)} for p in every]),
    )
