"""Where segments start, kept up to date by whoever commits: the same as read anew; and what it keeps in memory."""

from __future__ import annotations

from kbackup.archive.commit import open_or_create, refresh_derived
from kbackup.archive.derived import with_segments
from kbackup.archive.fold import EVERY
from kbackup.archive.reader import open_archive
from kbackup.archive.segments import Segment, Starts
from tests.support.memory_store import MemoryStore
from tests.unit.archive.making import committed, state


def plain(starts: Starts) -> dict[tuple[str, int, int], list[int]]:
    return {place: firsts.tolist() for place, firsts in starts.items()}


def described(topic: str, partition: int, first: int) -> Segment:
    return Segment(
        topic, 1, partition, first, first, 1, 9, 9, None, None, 8, "", "", f"{topic}/{partition}/{first}"
    )


def test_starts_that_are_kept_are_those_that_are_read() -> None:
    store = MemoryStore()
    archive = open_or_create(store)
    starts: Starts = {}
    for seq in range(1, 2 * EVERY + 5):
        added = [
            described("a", seq % 3, 100 * seq + 50),
            described("a", seq % 3, 100 * seq),
            described("b", 0, 10 * seq),
        ]
        topics = [
            state((0, 0, 1), (1, 0, 1), (2, 0, 1), seq=seq, name="a"),
            state((0, 0, 1), seq=seq, name="b"),
        ]
        _, manifest = committed(store, seq, seq - 1 or None, added, topics)
        archive.forget()
        starts = with_segments(starts, added)
        refresh_derived(archive, manifest, starts=starts)
        assert plain(starts) == plain(open_archive(store).starts(manifest))
        assert len(archive._manifests) <= EVERY + 1
        assert not archive._segments
