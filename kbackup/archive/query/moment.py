"""Select the topics and groups of a moment: by which restore point, and why.

`--to-time` of `restore` and of `info` both select here.

Records are chosen by their own timestamps, from every run: one that came late stands in a much later segment. What
has no timestamp of its own, topics and groups, is as of the newest restore point that was captured by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from kbackup.archive.catalog.state import Point
from kbackup.archive.models import Manifest, TopicState
from kbackup.archive.query.content import Content, content_of
from kbackup.archive.query.window import Choice, Window
from kbackup.archive.reader import Archive
from kbackup.types import Incarnation
from kbackup.util.times import ms_of, time_text

NO_POINTS = "a folder of the Java tool has no restore points: topics and groups are as they stand there"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class View:
    """`topics` are those of the moment, `others` those that come only where they are asked for by name: deleted by
    then, or first captured later. Records come from the runs up to `upto`. `groups` are topics as of the captures
    that have their groups' offsets. `as_of` and `groups_as_of` are restore points, None where there is none;
    `excluded` says by topic what has records in the window all the same.
    """

    upto: Manifest
    topics: tuple[TopicState, ...]
    others: Mapping[str, TopicState]
    groups: tuple[TopicState, ...]
    as_of: int | None
    groups_as_of: int | None
    captured_at: str | None
    notes: tuple[str, ...]
    excluded: Mapping[str, str] = field(default_factory=dict)


def view_of(archive: Archive, point_name: str | int, window: Window) -> View:
    """Return the view of restore point `point_name`, where `window` has no end in time. With an end, 'latest' stands
    for the restore points that the moment needs; a number or a label for the topics and segments of that restore
    point."""
    upto = archive.restore_point(point_name)
    if window.to_time is None:
        captured_at = archive.groups(upto).captured_at
        note = f"topics and groups are those of restore point {upto.number}, captured at {captured_at}"
        return _fixed(upto, upto, captured_at, (note,))
    points = [p for p in archive.restore_points if p.number <= upto.number]
    point, at, note = captured_by(archive, points, window.to_time)
    if str(point_name) != "latest":
        notes = (f"topics are those of restore point {upto.number}, which was asked for", note)
        return _fixed(upto, point, at, notes)
    return _at(archive, upto, points, point, at, note, window)


def content_at(archive: Archive, view: View, topics: Sequence[TopicState]) -> Content:
    """Return `topics` of the view, not cut to a window yet."""
    content = content_of(archive, view.upto, sorted(topics, key=lambda t: t.name), view.groups)
    oldest = archive.restore_points[0].number  # the next one, where the moment lies before all of them
    return replace(content, restore_point=oldest if view.as_of is None else view.as_of)


def choice_of(view: View, window: Window, ranges: Iterable[str], excluded: Iterable[str]) -> Choice:
    return Choice(
        from_time=window.from_time,
        to_time=window.to_time,
        ranges=tuple(ranges),
        as_of=view.as_of,
        groups_as_of=view.groups_as_of,
        groups_captured_at=view.captured_at,
        notes=view.notes,
        left_out=tuple(excluded),
    )


def _fixed(upto: Manifest, point: Manifest | None, at: str | None, notes: tuple[str, ...]) -> View:
    """Return a view with the topics of a selected restore point and the groups of `point`."""
    return View(
        upto,
        tuple(t for t in upto.topics if t.state != "deleted"),
        {t.name: t for t in upto.topics if t.state == "deleted"},
        point.topics if point is not None else (),
        upto.number,
        point.number if point is not None else None,
        at,
        notes,
    )


def captured_by(
    archive: Archive, points: Sequence[Point], moment: int
) -> tuple[Manifest | None, str | None, str]:
    """Return the newest of `points` whose groups were captured by `moment`, with the time of that capture, and both in
    words. Groups are captured before ends are looked up, so no offset of them is later than its records."""
    for point in reversed(points):
        if ms_of(point.started_at) <= moment:
            at = archive.groups(point.number).captured_at
            if ms_of(at) <= moment:
                note = (
                    f"groups are as of restore point {point.number}, captured at {at}: "
                    f"the newest at or before {time_text(moment)}"
                )
                return archive.restore_point(point.number), at, note
    note = f"no restore point was captured at or before {time_text(moment)}: there are no groups of that time"
    return None, None, note


def _at(
    archive: Archive,
    upto: Manifest,
    points: Sequence[Point],
    point: Manifest | None,
    at: str | None,
    note: str,
    window: Window,
) -> View:
    then = point.topics if point is not None else ()
    existing = {t.name: t for t in then if t.state != "deleted"}
    after = next((p for p in points if point is None or p.number > point.number), None)
    captured = archive.restore_point(after.number).topics if after is not None else ()
    first = {_key(t): t for t in captured if after is not None and t.captured == after.number}
    had = {_key(t) for t in then}
    later = {key: t for key, t in ({_key(t): t for t in upto.topics} | first).items() if key not in had}
    within = _with_records(archive, upto, later.values(), window)
    new = {t.name: t for key, t in later.items() if key in first and key in within and t.name not in existing}
    notes = [note] if point is None else [f"topics are as of restore point {point.number}", note]
    if new and after is not None:
        notes.append(
            f"first captured by restore point {after.number}, the next one, with records in the window: "
            f"{', '.join(sorted(new))}"
        )
    known = {t.name: t for t in later.values()} | {t.name: t for t in then}
    others = {name: t for name, t in known.items() if name not in existing and name not in new}
    return View(
        upto,
        (*existing.values(), *new.values()),
        others,
        then,
        point.number if point is not None else None,
        point.number if point is not None else None,
        at,
        tuple(notes),
        _excluded([later[key] for key in within], existing | new, others),
    )


def _key(topic: TopicState) -> Incarnation:
    return topic.name, topic.incarnation


def _with_records(
    archive: Archive, upto: Manifest, topics: Iterable[TopicState], window: Window
) -> list[Incarnation]:
    """Return the incarnations with segments that may hold a record of the window. One without timestamps is none: it
    says nothing about when the topic was there."""
    keys = {
        (s.topic, s.incarnation)
        for s in archive.segments(upto, list(topics))
        if s.min_timestamp is not None and window.may_hold(s)
    }
    return sorted(keys)


def _excluded(
    within: Iterable[TopicState], chosen: Mapping[str, TopicState], others: Mapping[str, TopicState]
) -> dict[str, str]:
    """Return a sentence for each topic of later runs that has records in the window and is not selected."""
    reasons: dict[str, str] = {}
    for topic in within:
        name = topic.name
        if others.get(name) == topic:
            reasons[name] = (
                f"topic {name} was first captured later and has records in the window: "
                "it is restored where it is asked for by name"
            )
        elif chosen.get(name) != topic:
            incarnation = (chosen.get(name) or others[name]).incarnation
            reasons[name] = (
                f"topic {name} was begun anew later (incarnation {topic.incarnation}), with records in the window: "
                f"of that time is incarnation {incarnation}; for the other name its restore point with --restore-point"
            )
    return reasons
