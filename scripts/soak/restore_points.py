"""Archives of many restore points, by kbackup's own tables, manifests and checkpoints. Segments are described and not
written, unless they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from kbackup.archive import layout
from kbackup.archive.commit import open_or_create, put_part
from kbackup.archive.fold import EVERY, fold
from kbackup.archive.models import (
    Groups,
    Intent,
    IntentTopic,
    Loss,
    Manifest,
    Metadata,
    PartitionState,
    Refreshed,
    TopicMetadata,
    TopicState,
    Totals,
    dump,
)
from kbackup.archive.reader import Archive
from kbackup.archive.segments import Segment, encode_segments
from kbackup.store.base import Store
from kbackup.types import OffsetRange
from scripts.bench.synthetic import segments as described

TOPIC = "events"
RECORDS = 100
"""Of each segment."""
_AT = "2026-01-01T00:00:00.000Z"
_LOSS_EVERY = 500
_THREADS = 16


Write = Callable[[int, OffsetRange], Segment]
"""Makes the segment that a restore point adds."""


def describe(seq: int, wanted: OffsetRange) -> Segment:
    (segment,) = described([wanted], 1000)
    return segment


def build(
    store: Store,
    points: int,
    segments: int,
    partitions: int = 10,
    every: int = EVERY,
    write: Write = describe,
    topic_id: str = "id",
) -> Archive:
    """`points` restore points, each with `segments` segments more over the `partitions` of `TOPIC`; a checkpoint
    every `every`."""
    archive = open_or_create(store)
    ends = [0] * partitions
    sums = [(0, 0)] * partitions
    for seq in range(1, points + 1):
        added: list[Segment] = []
        for n in range(segments):
            p = (seq * segments + n) % partitions
            added.append(write(seq, OffsetRange(TOPIC, p, ends[p], ends[p] + RECORDS)))
            ends[p] += RECORDS
            sums[p] = (sums[p][0] + RECORDS, sums[p][1] + added[-1].bytes)
        manifest = _commit(archive, seq, _state(seq, topic_id, ends, sums), added)
        if not seq % every:
            archive.forget()
            fold(archive, manifest, _go_on, every)
        done = Refreshed(seq=seq, at=_AT)
        store.put(layout.backup_key(seq, layout.REFRESHED), dump(done))
    archive.forget()
    return archive


def manifests_and_newest(points: int) -> Callable[[str], bool]:
    """For `copy`: of restore points long past the manifest stands for all of their files, which nothing asks for."""

    def wanted(key: str) -> bool:
        parsed = layout.parse_backup_key(key)
        return parsed is None or parsed[1] == layout.MANIFEST or parsed[0] > points - 50

    return wanted


def copy(source: Store, target: Store, wanted: Callable[[str], bool] = lambda key: True) -> int:
    """Objects whose key is wanted; returns how many."""
    keys = [entry.key for entry in source.list() if wanted(entry.key)]
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(lambda key: target.put(key, source.get(key)), keys))
    return len(keys)


def _go_on() -> None:
    """Nobody else writes here."""


def _state(seq: int, topic_id: str, ends: Sequence[int], sums: Sequence[tuple[int, int]]) -> TopicState:
    return TopicState(
        name=TOPIC,
        id=topic_id,
        incarnation=1,
        captured=seq,
        state="present",
        partitions=tuple(
            PartitionState(
                partition=p, start=0, end=end, log_start=0, log_end=end, records=records, bytes=size
            )
            for p, (end, (records, size)) in enumerate(zip(ends, sums, strict=True))
        ),
    )


def _commit(archive: Archive, seq: int, topic: TopicState, added: Sequence[Segment]) -> Manifest:
    intent = Intent(
        archive_id=archive.info.id,
        seq=seq,
        parent=seq - 1 or None,
        run_id=f"run {seq}",
        host="here",
        started_at=_AT,
        isolation_level="read_committed",
        topics=(IntentTopic(name=TOPIC, id=topic.id, incarnation=1),),
    )
    archive.store.put_new(layout.backup_key(seq, layout.INTENT), dump(intent))
    known = TopicMetadata(
        name=TOPIC,
        id=topic.id,
        partitions=len(topic.partitions),
        replication_factor=1,
        internal=False,
        configs={},
    )
    metadata = Metadata(captured_at=_AT, cluster_id="source", brokers=1, topics=(known,))
    parts = {
        layout.SEGMENTS: encode_segments(added),
        layout.GROUPS: dump(Groups(captured_at=_AT, groups=())),
        layout.METADATA: dump(metadata),
    }
    manifest = Manifest(
        status="committed",
        archive_id=archive.info.id,
        seq=seq,
        parent=seq - 1 or None,
        run_id=f"run {seq}",
        tool="kbackup soak",
        started_at=_AT,
        committed_at=_AT,
        cluster_id="source",
        topics=(topic,),
        losses=_losses(seq),
        totals=Totals(
            topics=1,
            partitions=len(topic.partitions),
            segments=len(added),
            records=sum(s.count for s in added),
            bytes=sum(s.bytes for s in added),
            stored_bytes=sum(s.stored for s in added),
            groups=0,
        ),
        files={name: put_part(archive, seq, name, data) for name, data in parts.items()},
    )
    archive.store.put_new(layout.backup_key(seq, layout.MANIFEST), dump(manifest))
    return manifest


def _losses(seq: int) -> tuple[Loss, ...]:
    if seq % _LOSS_EVERY:
        return ()
    return (Loss(kind="retention", topic=TOPIC, partition=0, start=0, end=1, message=f"lost in {seq}"),)
