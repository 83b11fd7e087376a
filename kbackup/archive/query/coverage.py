"""Say what an archive can't have of a window that ends in time, for records in order of their timestamps.

Otherwise the end of the archive would be taken for the end of the window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kbackup.archive.models import PartitionState, TopicState
from kbackup.archive.query.content import ArchivedPartition, ArchivedTopic, Content
from kbackup.archive.query.moment import View
from kbackup.archive.query.window import Window
from kbackup.archive.reader import Archive
from kbackup.util.text import shorten
from kbackup.util.times import ms_of

_NAMED = 10
"""So many topics or partitions are named: a follower may hold back thousands."""


def not_reached(
    archive: Archive,
    view: View,
    content: Content,
    window: Window,
    asked: Callable[[str, int], bool] = lambda topic, partition: True,
) -> tuple[str, ...]:
    """Return what of `window` the runs up to `view.upto` can't have, in words: records later than they were, and what
    they saw in partitions that are `asked` for and left for later. `content` is not cut to the window yet."""
    if window.to_time is None:
        return ()
    states = {(t.name, t.incarnation): t for t in view.upto.topics}
    known = [(t, s) for t in content.topics if (s := states.get((t.name, t.incarnation))) is not None]
    notes = [
        f"offsets {state.end} to {state.log_end - 1} of {topic.name}-{partition.partition}, or some of them, are not "
        f"in restore point {view.upto.number}"
        for topic, seen in known
        for partition, state in _unarchived(topic, seen)
        if asked(topic.name, partition.partition) and not _reaches(partition, window.to_time)
    ]
    if len(notes) > _NAMED:
        notes[_NAMED:] = [f"nor are offsets of {len(notes) - _NAMED} more partitions"]
    return (*_ends(archive, view, [state for _, state in known], window.to_time), *notes)


def _ends(archive: Archive, view: View, states: Sequence[TopicState], to_time: int) -> Iterator[str]:
    """Yield a note for each run that began before the window ends and was the last to capture a topic."""
    begun = {
        number: archive.capture(number).started_at
        for number in {s.captured for s in states} | {view.upto.number}
    }
    last = view.upto.number
    if ms_of(begun[last]) < to_time:
        yield f"restore point {last} was begun at {begun[last]}, before the window ends: it has no later records"
    for seq in sorted({s.captured for s in states} - {last}):
        if ms_of(begun[seq]) < to_time:
            names = sorted(s.name for s in states if s.captured == seq)
            yield (
                f"restore point {last} has topics as of restore point {seq}, which was begun at {begun[seq]}, before "
                f"the window ends, without later records: {shorten(names, _NAMED)}"
            )


def _unarchived(topic: ArchivedTopic, seen: TopicState) -> list[tuple[ArchivedPartition, PartitionState]]:
    partitions = {p.partition: p for p in topic.partitions}
    return [
        (partitions[p.partition], p)
        for p in seen.partitions
        if p.end < p.log_end and p.partition in partitions
    ]


def _reaches(partition: ArchivedPartition, to_time: int) -> bool:
    """Return whether the last archived segment has a record from after the window."""
    stamps = [s.max_timestamp for s in partition.segments if s.max_timestamp is not None]
    return bool(stamps) and stamps[-1] > to_time
