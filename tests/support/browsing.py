"""Archives whose reads are counted, and parts of them to browse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kbackup.archive import layout
from kbackup.archive.query.browse import PartitionRecords, catalogue
from kbackup.archive.query.content import ArchivedPartition
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.window import Window
from kbackup.store.base import Store, encryption_of
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.kek import generate_key
from kbackup.store.crypt.keyring import Keyring
from tests.support.faulty_store import FaultyStore


class Counting(FaultyStore):
    """Also what is listed and looked at; `read` has each range: key, start, length."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        if (encryption := encryption_of(inner)) is not None:
            self.encryption = encryption
        self.read: list[tuple[str, int, int]] = []

    def open_range(self, key: str, start: int, length: int) -> Iterator[bytes]:
        self.read.append((key, start, length))
        return super().open_range(key, start, length)

    def of_topics(self) -> list[tuple[str, str]]:
        """(operation, what of a segment) for every request that is not for metadata."""
        return [(operation, key.rpartition("_")[2]) for operation, key in self.calls if key.startswith(layout.TOPICS)]


def encrypting(inner: Store, folder: Path) -> CryptStore:
    key = folder / "key"
    if not key.exists():
        key.write_text(generate_key())
    return CryptStore(inner, Keyring(inner, f"file:{key}"), layout.key_class)


def offsets(answers: Iterator[PartitionRecords]) -> list[int]:
    return [int(o) for f in answers for o in f.block.offsets]


def partition_of(store: Store, topic: str, number: int = 0) -> ArchivedPartition:
    return catalogue(store, topic=topic).partition(topic, number)


def one(offset: int) -> Window:
    return Window(ranges=((offset, offset + 1),))


def partition_with(segments: list[Segment]) -> ArchivedPartition:
    return ArchivedPartition(0, segments[0].first, segments[-1].last + 1, tuple(segments))


ORDERS = [*range(10), 15, *range(17, 40)]
