"""Rows of archived records: of any archive, of an earlier restore point, and of damaged segments."""

from __future__ import annotations

import pytest

from kbackup.archive.query.browse import Catalogue, catalogue, records
from kbackup.errors import CorruptError, UsageError
from kbackup.formats.record import Row, decode, rows
from kbackup.store.file import FileStore
from tests.golden.java_archive import ROOT as JAVA
from tests.support.archives import make_archive
from tests.support.browsing import offsets, one, partition_of
from tests.support.memory_store import MemoryStore
from tests.support.plain_records import Plain, block_of
from tests.unit.formats.reference import from_batch


def test_rows_are_the_records() -> None:
    """Also header keys that are no text, nulls, and records that nobody knows the time of."""
    given_ = [
        Plain(b"k", None, headers=((b"\xff", b"1"), (b"", None))),
        Plain(None, b"", kind=-1),
        Plain(b"\xc3", b"v", kind=1, timestamp=-5),
        Plain(b"", b"v", kind=-2),
    ]
    assert list(rows(block_of(given_))) == [
        Row(n, r.kind, r.timestamp if r.kind >= 0 else None, r.key, r.value, r.headers)
        for n, r in enumerate(given_)
    ]


def test_a_folder_of_the_java_tool() -> None:
    store = FileStore(JAVA / "archive")
    whole = catalogue(store)
    assert whole.restore_point is None
    for topic in whole.topics:
        for partition in topic.partitions:
            found = [r for f in records(store, topic.name, partition) for r in rows(f.block)]
            assert len(found) == partition.records
    assert sum(p.records for t in whole.topics for p in t.partitions) == 385


def test_of_an_earlier_restore_point(made: MemoryStore) -> None:
    earlier: Catalogue = catalogue(made, "1", "orders")
    assert [t.name for t in earlier.topics] == ["orders"]
    assert offsets(records(made, "orders", earlier.partition("orders", 0))) == list(range(10))


def test_missing_partitions_and_topics(made: MemoryStore) -> None:
    with pytest.raises(
        UsageError, match=r"there is no topic order in restore point 2; did you mean orders\?"
    ):
        catalogue(made, topic="order")
    with pytest.raises(UsageError, match="topic orders has no partition 3 in restore point 2"):
        partition_of(made, "orders", 3)


@pytest.mark.parametrize("end", ["_index", "_records"])
def test_damage_is_named(end: str) -> None:
    store = MemoryStore()
    make_archive(store)
    partition = partition_of(store, "orders")
    key = partition.segments[0].key.replace("_records", end)
    data = store.get(key)
    store.put(key, data[:1] + b"\x7f" * (len(data) - 1))
    with pytest.raises(CorruptError, match=key.rpartition("/")[2]):
        list(records(store, "orders", partition, one(0), 1))
    store.delete([key])
    with pytest.raises(CorruptError, match=f"{key} is missing"):
        list(records(store, "orders", partition, one(0), 1))


def test_rows_agree_with_the_decoder(made: MemoryStore) -> None:
    for found in records(made, "orders", partition_of(made, "orders")):
        decoded = from_batch(decode(found.block))
        assert [(*r[:5], [(key.decode(), value) for key, value in r.headers]) for r in rows(found.block)] == [
            tuple(r) for r in decoded
        ]
