"""The report of an expiration, the log start it sets, and the settings of each incarnation."""

from __future__ import annotations

import json

import pytest

from kbackup.archive.query.content import content_of
from kbackup.archive.reader import open_archive
from kbackup.errors import (
    UsageError,
)
from kbackup.formats.index import decode_partition_index
from kbackup.jobs.points import pin
from kbackup.jobs.verify.job import verify
from kbackup.metrics.registry import Silent
from kbackup.store.base import Store
from tests.support.expirations import all_seen, build, check_whole, expired, objects_of, seen
from tests.support.histories import History
from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.exhaustive(keep=2)


def test_the_report_says_what_goes(store: Store) -> None:
    history = build(store)
    pin(store, "3")
    before, objects = all_seen(history.archive), objects_of(store)
    dry = expired(store, last=2, days=3, confirm=False)
    assert objects_of(store) == objects
    report = expired(store, last=2, days=3)
    assert dry.restore_points == report.restore_points
    assert dry.expiration == report.expiration
    assert (dry.records, dry.bytes, dry.segments) == (report.records, report.bytes, report.segments)
    fates = {p.number: p.reasons for p in report.restore_points}
    assert fates == {1: (), 2: (), 3: ("pinned",), 4: (), 5: (), 7: (), 8: ("last",), 9: ("last",)}
    assert report.spared == ("c",)
    archive = open_archive(store)
    assert [p.number for p in archive.restore_points] == [3, 8, 9]
    assert seen(archive, 3) == before[3], "pinned"
    with pytest.raises(UsageError, match="restore point 5 was let go") as raised:
        archive.restore_point(5)
    assert "3 and 8" in raised.value.hint
    with pytest.raises(UsageError, match="there is no restore point 77"):
        archive.restore_point(77)
    with pytest.raises(UsageError, match="was let go"):
        verify(store, "5", True, lambda: None, Silent())  # type: ignore[arg-type, return-value]
    check_whole(store, clean=True)


def test_the_log_start_moves_on(store: Store) -> None:
    history = build(store)
    before = all_seen(history.archive)
    report = expired(store, days=3)
    assert report.records > 0
    assert all(p.stays for p in report.restore_points)
    archive = open_archive(store)
    content = content_of(archive, archive.restore_point(9), archive.restore_point(9).topics)
    a, b, c = ((t, t.partitions[0]) for t in content.topics)
    assert (a[1].start, a[1].expired, a[1].segments[0].first) == (19, 15, 20)  # days 1 to 5 and their markers
    assert (b[0].incarnation, b[1].start, b[1].expired) == (2, 5, 4), "of days 4 and 5"
    assert (c[1].start, c[1].expired, c[1].records) == (0, 0, 4), "it is compacted"
    old = (
        content_of(archive, archive.restore_point(2), archive.restore_point(2).topics).topics[0].partitions[0]
    )
    assert (old.start, old.end, old.expired) == (8, 8, 6), "nothing is left there"
    assert before[9].segments != seen(archive, 9).segments
    index = decode_partition_index(store.get("topics/a/index_partition_000"), "index")
    assert index[0].start_offset == 20
    assert json.loads(store.get("topics/a/consumer_offsets_partition_000")) == {"g": 19}, "it stood at 16"
    history.run(10, {"a": 3, "b": 2, "c": "out"})
    check_whole(store)
    assert expired(store, days=2).records > 0
    check_whole(store, clean=True)


def test_each_incarnation_goes_by_its_own_settings() -> None:
    """Compacted was what a topic was before it was made anew, or what it is since."""
    store = MemoryStore()
    compacted = {"cleanup.policy": "compact"}
    configs = {"was": compacted, "is": {}}
    history = History(store, configs)
    for number in range(1, 9):
        if number == 4:
            configs |= {"was": {}, "is": compacted}
        history.run(number, {"was": "anew" if number == 4 else 2, "is": "anew" if number == 4 else 2})
    before = all_seen(history.archive)
    report = expired(store, days=2)
    assert report.spared == ("is", "was (incarnation 1)")
    after = all_seen(open_archive(store))

    def left(name: str, incarnation: int, number: int) -> set[str]:
        return {s.key for s in after[number].segments if (s.topic, s.incarnation) == (name, incarnation)}

    assert left("is", 1, 3) == set(), "they are old news"
    assert left("was", 1, 3) == {s.key for s in before[3].segments if s.topic == "was"}
    assert left("is", 2, 8) == {s.key for s in before[8].segments if s.topic == "is"}
    assert 0 < len(left("was", 2, 8)) < len([s for s in before[8].segments if s.topic == "was"])
    check_whole(store, clean=True)
