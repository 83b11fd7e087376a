"""Blocks, segments and restore points made by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from kbackup.archive import layout
from kbackup.archive.commit import open_or_create, publish, put_part
from kbackup.archive.models import (
    Group,
    GroupOffset,
    Groups,
    Intent,
    IntentTopic,
    Manifest,
    Metadata,
    PartitionState,
    TopicState,
    Totals,
    dump,
    now,
)
from kbackup.archive.reader import Archive
from kbackup.archive.segments import Segment, encode_segments
from kbackup.archive.writer import PartitionWriter, Target
from kbackup.formats.record import encode
from kbackup.store.base import Store
from kbackup.types import RecordBlock
from tests.unit.formats.reference import Record, to_batch

TOPIC = "orders"
TOPIC_ID = "id-of-orders"


def target(
    partition: int = 0, threshold: int = 400, compression: str = "none", incarnation: int = 1
) -> Target:
    return Target(TOPIC, incarnation, partition, threshold, compression)


def records(offsets: Iterable[int]) -> list[Record]:
    return [Record(o, 0, 1000 + o, b"key-%d" % o, b"v" * (20 + o % 7), []) for o in offsets]


def block(offsets: Iterable[int]) -> RecordBlock:
    return encode(to_batch(records(offsets)))


def write(store: Store, to: Target, offsets: Iterable[int]) -> list[Segment]:
    with PartitionWriter(store, to) as writer:
        return writer.append(block(offsets)) + writer.finish()


def state(*partitions: tuple[int, int, int], seq: int, name: str = TOPIC, incarnation: int = 1) -> TopicState:
    """`partitions` are (number, start, end)."""
    return TopicState(
        name=name,
        id=TOPIC_ID,
        incarnation=incarnation,
        captured=seq,
        state="present",
        partitions=tuple(
            PartitionState(
                partition=p, start=start, end=end, log_start=start, log_end=end, records=0, bytes=0
            )
            for p, start, end in partitions
        ),
    )


def manifest(archive: Archive, seq: int, parent: int | None, topics: Sequence[TopicState] = ()) -> Manifest:
    return Manifest(
        status="committed",
        archive_id=archive.info.id,
        seq=seq,
        parent=parent,
        run_id="run",
        tool="kbackup",
        started_at=now(),
        committed_at=now(),
        topics=tuple(topics),
        totals=Totals(topics=0, partitions=0, segments=0, records=0, bytes=0, stored_bytes=0, groups=0),
    )


def intend(archive: Archive, seq: int, parent: int | None = None, topic_id: str = TOPIC_ID) -> Intent:
    intent = Intent(
        archive_id=archive.info.id,
        seq=seq,
        parent=parent,
        run_id="run",
        host="host",
        started_at=now(),
        isolation_level="read_committed",
        topics=(IntentTopic(name=TOPIC, id=topic_id, incarnation=1),),
    )
    archive.store.put_new(layout.backup_key(seq, layout.INTENT), dump(intent))
    archive.forget()
    return intent


def committed(
    store: Store,
    seq: int,
    parent: int | None,
    segments: Sequence[Segment] = (),
    topics: Sequence[TopicState] = (),
    offsets: dict[str, int] | None = None,
) -> tuple[Archive, Manifest]:
    """A whole restore point; `offsets` are where groups stand in partition 0."""
    archive = open_or_create(store)
    groups = Groups(
        captured_at=now(),
        groups=tuple(
            Group(
                group=g,
                type="consumer",
                state="Empty",
                offsets=(GroupOffset(topic=TOPIC, partition=0, offset=o),),
            )
            for g, o in (offsets or {}).items()
        ),
    )
    metadata = Metadata(captured_at=now(), cluster_id="", brokers=1, topics=())
    files = {
        layout.SEGMENTS: put_part(archive, seq, layout.SEGMENTS, encode_segments(segments)),
        layout.GROUPS: put_part(archive, seq, layout.GROUPS, dump(groups)),
        layout.METADATA: put_part(archive, seq, layout.METADATA, dump(metadata)),
    }
    bare = manifest(archive, seq, parent, topics)
    fields = {name: getattr(bare, name) for name in bare.__struct_fields__}
    sums = replace(bare.totals, segments=len(segments)) if bare.totals is not None else None
    made = Manifest(**fields | {"files": files, "totals": sums})
    publish(archive, made)
    return archive, archive.restore_point(seq)
