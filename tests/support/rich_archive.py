"""An archive with something to look at: many restore points, values of all kinds, and names that try to be code."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta

import msgspec

from kbackup.archive.models import Loss
from kbackup.archive.reader import Archive
from kbackup.archive.run import open_or_create
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.writer import PartitionWriter, SegmentTarget
from kbackup.mirror.flow import FlowStatus, Incident, Refusal, TopicStatus, write_status
from kbackup.store.base import Store
from tests.support.archives import commit_point, group_at, topic_state
from tests.support.plain_records import Plain, block_of

START = datetime(2026, 10, 1, 2, 30, tzinfo=UTC)
MISSED = (6, 7)
"""Nights without a backup."""
ATTACK = "<img src=x onerror=alert(1)>"
SCRIPT = "</pre></td><script>alert('record')</script>"
TURNED = "gro\u202eup"
LONG = b"long " * 20_000
LONG_TOPIC = ("payments.reconciliation." * 11)[:241] + "-retries"
"""As long as Kafka allows."""
LONG_GROUP = ("consumers of payments " * 12)[:244] + " blue"
GROUPS = ("billing", "shipping", "a/b?c=d&e#f", ATTACK, TURNED, "", '"><script>alert(2)</script>', LONG_GROUP)

Row = tuple[int, Plain]


def make_rich(store: Store, nights: int = 14, services: int = 4, each: int = 60) -> Archive:
    """Topics orders (three partitions of JSON), compacted (gaps), odd (everything strange), clicks (zstd), one with a
    long name, and some of services; `each` records a partition and night."""
    archive = open_or_create(store)
    names = {"orders": 3, "compacted": 1, "odd": 1, "clicks": 2, LONG_TOPIC: 1} | {
        f"service-{n:02}.events": 1 for n in range(services)
    }
    segments_by_partition: dict[tuple[str, int], list[Segment]] = {
        (t, p): [] for t, count in names.items() for p in range(count)
    }
    seq = 0
    for night in range(nights):
        if night in MISSED:
            continue
        seq += 1
        at = START + timedelta(days=night)
        added = [
            _write(store, topic, p, night, each, at, segments_by_partition[topic, p])
            for topic, p in segments_by_partition
        ]
        ends = {place: (segments[-1].last + 1 if segments else 0) for place, segments in segments_by_partition.items()}
        commit_point(
            archive,
            seq,
            topics=[
                topic_state(t, [(0, ends[t, p], segments_by_partition[t, p]) for p in range(count)], captured=seq)
                for t, count in names.items()
            ],
            segments=[segment for some in added for segment in some],
            groups=[
                group_at(name, *(("orders", p, max(0, ends["orders", p] - 17 * n)) for p in range(3)), ("odd", 0, 2))
                for n, name in enumerate(GROUPS)
            ],
            losses=[_loss(seq)] if seq % 5 == 4 else (),
            not_carried={ATTACK + " not carried": SCRIPT} if seq == 1 else {},
            at=at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            warnings=[f"group {ATTACK} could not be described"] if seq % 6 == 2 else (),
        )
    _write_flows(archive, names)
    return archive


def _write_flows(archive: Archive, names: Mapping[str, int]) -> None:
    """A flow that is up to date, and one of another alias with everything that can go wrong."""
    newest = archive.restore_point("latest")
    ends = {topic.name: [p.end for p in topic.partitions] for topic in newest.topics}
    troubled = FlowStatus(
        source="A",
        target=ATTACK,
        archive_id=archive.info.id,
        tool="kbackup test",
        started_at="2026-10-01T00:00:00.000Z",
        written_at="2026-10-02T00:00:00.000Z",
        restore_point=1,
        restore_point_at="2026-10-01T02:30:00.000Z",
        rounds=3,
        records=180,
        bytes=40_000,
        round_at="2026-10-01T02:31:00.000Z",
        round_records=60,
        round_bytes=12_345,
        round_seconds=2.5,
        topics=tuple(
            TopicStatus(
                source=name,
                remote=f"A.{name}"[:249],
                incarnation=1,
                applied=(7,) * count,
                held_back=f"the target refused it {SCRIPT}" if name == LONG_TOPIC else "",
            )
            for name, count in names.items()
        ),
        incidents=(Incident(at="2026-10-01T02:31:00.000Z", topic="orders", message=f"3 records lost {ATTACK}"),),
        refusals=(Refusal(subject="acls", reason=f"no authorizer {SCRIPT}"),),
        error=f"B did not answer {ATTACK}",
    )
    write_status(archive.store, troubled)
    done = tuple(
        TopicStatus(source=name, remote=f"A.{name}"[:249], incarnation=1, applied=tuple(ends[name])) for name in names
    )
    even = msgspec.structs.replace(
        troubled, target="B", restore_point=newest.number, topics=done, incidents=(), refusals=(), error=""
    )
    write_status(archive.store, even)


def _loss(seq: int) -> Loss:
    return Loss(
        kind="retention",
        topic="orders",
        partition=1,
        start=seq,
        end=seq + 3,
        message=f"offsets {seq} to {seq + 2} of orders-1 were deleted at the source before they were archived {ATTACK}",
    )


def _write(
    store: Store, topic: str, partition: int, night: int, each: int, at: datetime, held: list[Segment]
) -> list[Segment]:
    rows = list(_rows(topic, partition, night, each, int(at.timestamp() * 1000)))
    if not rows:
        return []
    to = SegmentTarget(topic, 1, partition, 1 << 20, "zstd" if topic == "clicks" else "none")
    with PartitionWriter(store, to) as writer:
        block = block_of([plain for _, plain in rows], [offset for offset, _ in rows])
        segments = [*writer.append(block), *writer.finish()]
    held += segments
    return segments


def _rows(topic: str, partition: int, night: int, each: int, at: int) -> Iterator[Row]:
    chance = random.Random(f"{topic} {partition} {night}")
    if topic == "odd":
        yield from enumerate(ODD) if night == 0 else ()
        return
    for n in range(each if topic != "compacted" else each * 5):
        offset = night * each * (1 if topic != "compacted" else 5) + n
        if topic == "compacted" and chance.random() < 0.8:
            continue
        customer = f"customer-{chance.randrange(900)}"
        value = {
            "order": 100_000 + offset,
            "customer": customer,
            "total": round(chance.random() * 200, 2),
            "currency": chance.choice(["EUR", "CHF", "SEK"]),
            "lines": [{"sku": f"K-{chance.randrange(9999):04}", "count": chance.randrange(1, 5)}],
            "paid": chance.random() < 0.9,
            "note": None,
        }
        body = json.dumps(value).encode() if chance.random() < 0.95 else None
        headers = ((b"traceparent", f"00-{chance.getrandbits(128):032x}-01".encode()), (b"retry", None))
        stamp = at - 86_400_000 + 86_400_000 * n // each
        yield offset, Plain(customer.encode(), body, 0, stamp, headers)


ODD = [
    Plain(ATTACK.encode(), SCRIPT.encode(), headers=((SCRIPT.encode(), ATTACK.encode()), (b"\xff\xfe", b"\0\x01"))),
    Plain(None, None),
    Plain(b"", b""),
    Plain("grüße 日本 🎉".encode(), b"zwei\nZeilen\tund\rmehr\x1b[31m"),
    Plain(b"\x00\x01\xff", bytes(range(256))),
    Plain(b"long", LONG),
    Plain(b"json", b'{"big": 12345678901234567890123, "price": 1.10, "deep": [[[[{"<b>": "\\u003c"}]]]]}'),
    Plain(b"half json", b'{"a": '),
    Plain(b"no time", b"x", kind=-1),
    Plain(b"append time", b"x", kind=1),
    Plain(b"wild time", b"x", timestamp=2**62),
    Plain("\u202eturned".encode(), "left\u202eright\u2066".encode()),
]
