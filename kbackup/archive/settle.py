"""What follows from an expiration: the derived files of the partitions that it left less of."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from kbackup.archive import layout
from kbackup.archive.derived import group_files, partition_indexes
from kbackup.archive.expire import Incarnation, what_stays
from kbackup.archive.expired import Place, steps
from kbackup.archive.models import ExpirationStep, Expired, TopicState, dump, now
from kbackup.archive.reader import Archive

_THREADS = 16


def is_settled(archive: Archive) -> bool:
    """Whether the derived files say what the newest expiration left."""
    expired = archive.expired
    if expired is None:
        return True
    folder = layout.expiration_key(expired.number, "")
    names = steps(entry.key for entry in archive.store.list(folder)).get(expired.number, set())
    return layout.REFRESHED in names


def settle(archive: Archive, check: Callable[[], None], touched: Collection[Place] | None = None) -> None:
    """Write the derived files that follow from the newest expiration, all of them or those of the partitions `touched`,
    and the mark that it was done. `check` is called before each write."""
    expired, head = archive.expired, archive.head
    assert expired is not None  # noqa: S101 (the caller knows)
    files: dict[str, bytes] = {}
    if head is not None:
        states = {key: state for key, (_, state) in what_stays(archive).last.items()}
        places = {(*key, p.partition) for key, state in states.items() for p in state.partitions}
        wanted = places if touched is None else places & set(touched)
        files |= partition_indexes(states.values(), archive.starts(head), wanted)
        newest = {(t.name, t.incarnation) for t in head.topics} - {place[:2] for place in wanted}
        # of incarnations that are over, another restore point may be the last one now
        files |= _group_files(archive, {key: state for key, state in states.items() if key not in newest})

    def put(entry: tuple[str, bytes]) -> None:
        check()
        archive.store.put(*entry)

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(put, files.items()))
    put((layout.expiration_key(expired.number, layout.REFRESHED), dump(step_of(expired, "refreshed"))))


def step_of(expired: Expired, step: Literal["refreshed", "swept"]) -> ExpirationStep:
    return ExpirationStep(archive_id=expired.archive_id, number=expired.number, step=step, at=now())


def _group_files(archive: Archive, states: dict[Incarnation, TopicState]) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    captures = archive.captures
    for seq in sorted({state.captured for state in states.values()} & captures.keys()):
        # one at a time: incarnations of a topic share its name
        groups = archive.groups(captures[seq])
        for state in states.values():
            if state.captured == seq:
                files |= group_files([state], groups, archive.expired)
    return files
