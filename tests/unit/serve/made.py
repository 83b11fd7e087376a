"""Archives of one topic for the tests of `serve`, with records at chosen offsets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kbackup.archive.run import open_or_create
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.writer import SegmentTarget
from kbackup.formats.record import encode
from kbackup.types import RecordBlock
from tests.support.archives import commit_point, partition_state, topic_of, write_block
from tests.support.memory_store import MemoryStore
from tests.unit.formats.reference import Record, a_record, to_batch

TOPIC = "orders"


def block_of(records: Sequence[Record]) -> RecordBlock:
    return encode(to_batch(list(records)))


def made_records(offsets: Iterable[int], size: int = 100) -> list[Record]:
    """Records whose times rise by a second with each offset."""
    return [a_record(o, timestamp=1000 * o, key=b"k%d" % o, value=b"%d " % o * (size // 4)) for o in offsets]


def archive_of(
    *partitions: Sequence[Record],
    store: MemoryStore | None = None,
    end: int | None = None,
    start: int = 0,
    segment_bytes: int = 1 << 30,
    compression: str = "none",
    number: int = 1,
) -> MemoryStore:
    """Return a store with an archive of one topic. `end` is the end of every log, by default behind its last record.
    Segments are added to what a `store` has."""
    store = MemoryStore() if store is None else store
    archive = open_or_create(store)
    states = []
    added: list[Segment] = []
    for partition, records in enumerate(partitions):
        target = SegmentTarget(TOPIC, 1, partition, segment_bytes, compression)
        known = [segment for segment in _known(archive, number) if segment.partition == partition]
        last = max((segment.last for segment in known), default=-1)
        new = [record for record in records if record.offset > last]
        segments = write_block(store, target, block_of(new)) if new else []
        added += segments
        log_end = (records[-1].offset + 1 if records else start) if end is None else end
        size = sum(segment.bytes for segment in [*known, *segments])
        states.append(partition_state(partition, start, log_end, records=len(records), size=size))
    topic = topic_of(TOPIC, states, captured=number)
    commit_point(archive, number, topics=[topic], segments=added)
    return store


def _known(archive: object, number: int) -> list[Segment]:
    if number == 1:
        return []
    from kbackup.archive.reader import Archive

    assert isinstance(archive, Archive)
    return archive.segments(archive.restore_point("latest"))
