"""Select the content of an archive for a restore, and plan the restore."""

from __future__ import annotations

import time
import uuid
from collections.abc import Container, Iterable, Mapping, Sequence

from kbackup.archive.java.content import is_java_archive, java_content, java_topics
from kbackup.archive.query.content import Content, narrowed
from kbackup.archive.query.coverage import not_reached
from kbackup.archive.query.moment import NO_POINTS, choice_of, content_at, view_of
from kbackup.archive.query.selection import Selection, check_selection
from kbackup.archive.query.window import Choice, Window
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.restores.plan import RestorePlan
from kbackup.config import Range, parse_range, parse_time
from kbackup.config.jobs import Restore
from kbackup.errors import NoArchiveError, RefusedError, UsageError, suggest_name
from kbackup.jobs.groups.mapping import check_groups, plan_groups
from kbackup.jobs.restore.plan import check_names, check_rules, make_units, plan_topic, target_name
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from kbackup.util.times import now


def select_content(options: Restore, store: Store, archive: Archive | None = None) -> Content:
    """Return the selected topics, times and offsets of the archive, or of the Java tool's folder.

    `archive` is the archive in `store`, if the caller has it open."""
    ranges = tuple(map(parse_range, options.range))
    if ranges and (options.topics or options.exclude_topics):
        raise UsageError("--range names its topics itself", "leave --topic and --exclude-topic out")
    names = tuple(sorted({r.topic for r in ranges}))
    selection = Selection.of(names or options.topics, options.exclude_topics)
    window = time_window(options, int(time.time() * 1000))
    try:
        archive = archive or open_archive(store)
    except NoArchiveError:
        if not is_java_archive(store):
            raise
        content = java_content(store, _named(selection, java_topics(store), [], f"the folder {store.url}"))
        choice = Choice(
            from_time=window.from_time,
            to_time=window.to_time,
            ranges=tuple(map(str, ranges)),
            notes=(NO_POINTS,),
        )
        return _cut(content, window, ranges, choice, {})
    view = view_of(archive, options.restore_point, window)
    where = f"restore point {view.as_of}" if view.as_of is not None else "the archive at that time"
    selected = set(_named(selection, (t.name for t in view.topics), view.others, where))
    topics = [t for t in (*view.topics, *view.others.values()) if t.name in selected]
    excluded = [
        words
        for name, words in view.excluded.items()
        if selection.matches(name) and name not in selected & set(view.others)
    ]
    content = content_at(archive, view, topics)
    open_ended = {(r.topic, r.partition) for r in ranges if r.end is None}
    beyond = not_reached(archive, view, content, window, lambda *tp: not ranges or tp in open_ended)
    choice = choice_of(view, window, map(str, ranges), (*excluded, *beyond))
    least = {t.name: len(t.partitions) for t in topics}
    return _cut(content, window, ranges, choice, least)


def time_window(options: Restore, now: int) -> Window:
    """The bounds in time, `now` being in ms since the epoch. `UsageError` where they leave nothing."""
    start = parse_time(options.from_time, now, up=True) if options.from_time else None
    end = parse_time(options.to_time, now) if options.to_time else None
    if start is not None and end is not None and start > end:
        raise UsageError(
            f"--from-time {options.from_time} is later than --to-time {options.to_time}",
            "give the earlier time to --from-time; both times are included",
        )
    return Window(from_time=start, to_time=end)


def _named(selection: Selection, offered: Iterable[str], others: Container[str], where: str) -> list[str]:
    """Return the selected topics of `offered`, and those of `others` that are selected by name."""
    names = {*offered, *(n for n in selection.names if n in others)}
    check_selection(selection, "topic", names, f"in {where}", "see 'kbackup info'")
    return selection.topics(names)


def _cut(
    content: Content, window: Window, ranges: Sequence[Range], choice: Choice, least: Mapping[str, int]
) -> Content:
    """Return the content inside the window; all of it without a window."""
    if not ranges and not window.timed:
        return content
    by_partition = check_ranges(content, ranges)

    def window_of(topic: str, partition: int) -> Window:
        selected = by_partition.get(TopicPartition(topic, partition), ()) if ranges else None
        return Window(from_time=window.from_time, to_time=window.to_time, ranges=selected)

    return narrowed(content, window_of, least, choice)


def check_ranges(
    content: Content, ranges: Sequence[Range]
) -> dict[TopicPartition, tuple[tuple[int, int], ...]]:
    """Return disjoint and rising ranges of offsets by partition. `UsageError` for a partition that is not archived, and
    for a bound that lies outside of what is."""
    archived = {TopicPartition(t.name, p.partition): p for t in content.topics for p in t.partitions}
    bounds: dict[TopicPartition, list[tuple[int, int]]] = {}
    for selected in ranges:
        tp = TopicPartition(selected.topic, selected.partition)
        partition = archived.get(tp)
        if partition is None:
            count = sum(t.topic == tp.topic for t in archived)
            raise UsageError(
                f"--range {selected}: topic {tp.topic} has no partition {tp.partition}",
                f"use one of its {count} archived partition(s), numbered from 0",
            )
        start = partition.start if selected.start is None else selected.start
        end = partition.end if selected.end is None else selected.end
        if start < partition.start or end > partition.end or start > end:
            raise UsageError(
                f"--range {selected}: {tp} is archived from {partition.start} to {partition.end} (exclusive)",
                "keep to that, or leave out the side that goes beyond it",
            )
        bounds.setdefault(tp, []).append((start, end))
    return {tp: _merged(each) for tp, each in bounds.items()}


def _merged(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(r for r in ranges if r[0] < r[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)


def plan_restore(options: Restore, content: Content, cluster_id: str) -> RestorePlan:
    """Plan a restore. Raise `UsageError` or `RefusedError` for names that match nothing, are not legal, or collide."""
    names = {t.name: target_name(t.name, options.map, options.map_regex) for t in content.topics}
    if not names:
        times = {"--from-time": options.from_time, "--to-time": options.to_time}
        given = " and ".join(f"{option} {time}" for option, time in times.items() if time)
        raise UsageError(
            f"no selected topic has records with {given}" if given else "no topic of the archive matches",
            "run 'kbackup info' to see topics and the times of their records",
        )
    for unknown in sorted(set(options.map) - set(names)):
        raise UsageError(
            f"--map names topic {unknown}, which is not restored",
            suggest_name(unknown, names, "see 'kbackup info' for what there is"),
        )
    check_rules(options.map_regex, names)
    check_names(names)
    if options.strict and content.damaged:
        raise RefusedError(
            f"the archive lacks {content.damaged[0].message}",
            "restore without --strict, or another restore point; see 'kbackup info'",
        )
    selection = None if options.no_groups else Selection.of(options.groups, options.exclude_groups)
    check_groups(content, names, selection, options.map_group)
    return RestorePlan(
        restore_id=options.restore_id or new_restore_id(),
        archive_id=content.archive_id,
        restore_point=content.restore_point,
        choice=content.choice,
        target_cluster_id=cluster_id,
        created_at=now(),
        transactions=options.transactions,
        transaction_bytes=options.transaction_bytes,
        into_existing=options.into_existing,
        topics=tuple(
            plan_topic(t, names[t.name], options.topic_config, options.replication_factor)
            for t in content.topics
        ),
        units=make_units(content, names),
        groups=plan_groups(content, names, selection, options.map_group),
        settings=options.settings,
        damaged=tuple(f"loss: {loss.message}" for loss in content.damaged),
        not_carried={
            group: why
            for group, why in content.not_carried.items()
            if selection is not None and selection.matches(group)
        },
    )


def new_restore_id() -> str:
    return f"{now()[:10]}-{uuid.uuid4().hex[:8]}"
