"""Judge restore points: by what an archive gives to read of each, held against its newest one, which has everything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kbackup.archive.reader import Archive
from kbackup.library.reading import ArchiveReader
from kbackup.types import TopicPartition
from scripts.soak.transactions.load import APPS, INPUT

Integers = NDArray[np.int64]
_HIGH = 40  # bits below the partition, of an offset or a number
_BACK = 2  # restore points: what was below an end so long ago is read of the sample alone


class Log:
    """The records of a topic in the newest restore point, in order of partition and offset: `places` has both in one
    number, `fields` what the value consists of."""

    def __init__(self, newest: ArchiveReader, topic: str) -> None:
        self.topic = topic
        batches = list(newest.records(topic, columns=("partition", "offset", "value")))
        values = b"".join(value.as_py() or b"" for batch in batches for value in batch["value"])
        self.places = _places(batches)
        self.fields = np.frombuffer(values, ">i4").reshape(-1, 4).T.astype(np.int64)
        assert (np.diff(self.places) > 0).all(), f"{topic} has an offset twice"

    def held(self, reader: ArchiveReader, low: int) -> NDArray[np.bool_]:
        """Return which of them a restore point has that has all below offset `low`."""
        found = _places(reader.records(self.topic, from_offset=low, columns=("partition", "offset")))
        at = np.searchsorted(self.places, found)
        assert np.array_equal(self.places.take(at, mode="clip"), found), f"{reader} has records that are gone later"
        assert (np.diff(found) > 0).all(), f"{self.topic} has an offset twice in {reader}"
        held = (self.places & ((1 << _HIGH) - 1)) < low
        held[at] = True
        return held

    def where(self, chosen: NDArray[np.bool_]) -> str:
        return " ".join(f"{place >> _HIGH}@{place % (1 << _HIGH)}" for place in self.places[chosen])


def _places(batches: Iterable[pa.RecordBatch]) -> Integers:
    parts = [(b["partition"].to_numpy().astype(np.int64) << _HIGH) + b["offset"].to_numpy() for b in batches]
    return np.concatenate([np.empty(0, np.int64), *parts])


@dataclass
class Verdict:
    """Whether restore point `number` says it is whole, the ranges it holds, and what is wrong: torn transactions;
    those that were known to be committed before it began and are not in it; and records that applications would copy
    again, or not at all, if they went on from it."""

    number: int
    whole: bool
    held: int
    torn: int = 0
    late: int = 0
    repeated: int = 0
    missing: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> bool:
        return self.whole and any((self.torn, self.late, self.repeated, self.missing))


class Judge:
    """`archive` has as its newest restore point one that was taken when all had come to an end; `journals` are those of
    the producers. Raises AssertionError if records are lost, doubled or not in order there."""

    def __init__(self, archive: Archive, name: str, journals: Sequence[Path]) -> None:
        self._archive, self._name = archive, name
        self.points = [point.number for point in archive.restore_points]
        reader = self._at(self.points[-1])
        self._ledger, source = Log(reader, f"{name}-ledger"), Log(reader, f"{name}-input")
        self._copies = {app: Log(reader, f"{name}-{app}") for app in APPS}
        producer, number, size, index = self._ledger.fields
        self.ids, first, self._of = np.unique((producer << _HIGH) + number, return_index=True, return_inverse=True)
        self._sizes, self._known = size[first], np.full(len(self.ids), np.inf)
        assert len(np.unique((self._of << 8) + index)) == len(index), "a record of a transaction is there twice"
        order = np.lexsort((self._ledger.places, producer, self._ledger.places >> _HIGH))
        same = np.diff((self._ledger.places >> _HIGH << _HIGH)[order] + producer[order]) == 0
        assert (np.diff(((number << 8) + index)[order])[same] > 0).all(), "records of a producer change places"
        for each, journal in enumerate(journals):
            self._check_journal(each, np.fromfile(journal, [("number", "<i8"), ("committed", "<i8"), ("at", "<f8")]))
        numbers = (source.fields[0] << _HIGH) + source.fields[1]
        assert np.array_equal(numbers, source.places), "the input's numbers are not its offsets: begin anew"
        for app, log in self._copies.items():
            copied = np.sort((log.fields[0] << _HIGH) + log.fields[1])
            assert np.array_equal(copied, numbers), f"{app}: {len(copied)} copies of {len(numbers)} records at the end"

    def _at(self, number: int) -> ArchiveReader:
        return ArchiveReader(self._archive.store, number, opened=self._archive)

    def _check_journal(self, producer: int, entries: NDArray[np.void]) -> None:
        """Check that committed transactions are there, aborted ones are not, and remember when it was known."""
        ids, committed = (np.int64(producer) << _HIGH) + entries["number"], entries["committed"] == 1
        lost = np.setdiff1d(ids[committed], self.ids)
        assert not len(lost), f"{len(lost)} committed transactions of producer {producer} are not there at the end"
        assert not np.isin(ids[~committed], self.ids).any(), f"aborted ones of producer {producer} are in the archive"
        self._known[np.searchsorted(self.ids, ids[committed])] = entries["at"][committed]

    def judge(self, number: int, sampled: bool) -> Verdict:
        """Judge a restore point; one that is `sampled` is also read from its beginning, and compared."""
        reader, log, manifest = self._at(number), self._ledger, self._archive.manifest(number)
        held = sum(len(p.held) for t in manifest.topics for p in t.partitions)
        verdict = Verdict(number, manifest.transactions is not None and manifest.transactions.whole, held)
        inside = log.held(reader, self._low(number, log.topic))
        assert not sampled or np.array_equal(inside, log.held(reader, 0)), f"restore point {number} lacks old records"
        counts = np.bincount(self._of[inside], minlength=len(self.ids))
        torn = np.flatnonzero((counts > 0) & (counts < self._sizes))
        began = datetime.fromisoformat(manifest.started_at).timestamp()
        verdict.torn = len(torn)
        verdict.late = int(np.count_nonzero((self._known < began) & (counts < self._sizes)))
        for each in torn[:3]:
            has, lacks = (log.where((self._of == each) & part) for part in (inside, ~inside))
            who = f"producer {self.ids[each] >> _HIGH}, transaction {self.ids[each] % (1 << _HIGH)}"
            verdict.examples.append(f"point {number}: {who} has {has}, lacks {lacks}")
        for app, copies in self._copies.items():
            partition, copied = copies.fields[:2, copies.held(reader, self._low(number, copies.topic))]
            group = f"{self._name}-{app}"
            if group in self._archive.groups(number).not_carried:  # a warning says so
                verdict.whole = False
                continue
            stand = reader.groups(group) if group in reader.group_names else {}
            at = np.array([stand.get(TopicPartition(f"{self._name}-input", p), 0) for p in range(INPUT)])
            before = int(np.count_nonzero(copied < at[partition]))
            repeated, missing = len(copied) - before, int(at.sum()) - before
            if repeated or missing:
                verdict.examples.append(f"point {number}: {app} at {at}: {repeated} repeated, {missing} missing")
            verdict.repeated, verdict.missing = verdict.repeated + repeated, verdict.missing + missing
        return verdict

    def _low(self, number: int, topic: str) -> int:
        """Return an offset before which the restore point has all of a topic."""
        earlier = [n for n in self.points if n <= number - _BACK]
        topics = self._archive.manifest(earlier[-1]).topics if earlier else ()
        return min((p.end for t in topics if t.name == topic for p in t.partitions), default=0)
