"""Fill logs so that each record gets the offset that it had at the source: a task of a restore with the same offsets.

A log is filled from its end on. What stands before the first record are fillers, which are deleted again. Records go
out by a producer without transactions whose sequences follow from the plan alone: the broker takes each batch at one
place of the log and at no other, whoever sends it and however often. So the end of the log says what is done, and
another try goes on there. A gap is filled by the markers of transactions without records, or as the plan says.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kbackup.archive.restores.journal import RestoreJournal
from kbackup.archive.restores.map_parts import NOTHING, Cut, MapPartName
from kbackup.archive.restores.offset_map import runs_table
from kbackup.archive.restores.plan import LogBounds, SameOffsets, UnitRange
from kbackup.errors import ClusterError, KbackupError
from kbackup.jobs.replay import ahead
from kbackup.jobs.restore.demands import BATCH_OVERHEAD
from kbackup.jobs.restore.same_offsets.pieces import Gap, RunCollector, SelectedBlocks, pieces
from kbackup.jobs.restore.task import FailedTopic, Unit, UnitResult
from kbackup.jobs.schemas.rewrite import SchemaRewrite
from kbackup.jobs.transform import Transform
from kbackup.kafka.batches import SEQUENCES, BatchBody, ProducedBatch, Producer, bodies, repeated
from kbackup.kafka.client import Properties
from kbackup.kafka.control.append import RefusedBatch, append, appended_records, delete_before
from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.control.errors import REQUEST_SECONDS, pauses
from kbackup.kafka.control.logs import log_windows
from kbackup.kafka.control.markers import EmptyTransactions
from kbackup.kafka.control.unavailable import UnavailableError
from kbackup.kafka.produce import FENCED_RESTORE, RefusedTopicError
from kbackup.native.kernel import selected_kernel
from kbackup.spark.tasks import ProgressSender
from kbackup.store.base import Store
from kbackup.store.wrappers import limit_beside
from kbackup.types import TopicPartition

_BATCH_BYTES = 1 << 20
"""Of records in a batch, before compression."""

_LIMIT = 1_048_588
"""Bytes that a batch may have where the topic's own limit is not known: Kafka's default."""

_READ_AHEAD = 2  # batches that are made while one is on its way

_SMALL = 4 << 20
"""Bytes of a partition that is not worth a thread which reads ahead."""

_FILLERS = 1_000_000
"""Fillers in a batch, at most. A broker looks at each of them, at some millions a second."""

_LEAST_FILLERS = 1000

_FILLED_BYTES = 256 << 20
"""Bytes of fillers after which they are deleted. Brokers take them off the disk when they next look for segments to
delete (log.retention.check.interval.ms)."""

_LOOKED_AT = 100_000
"""Offsets of a gap that are looked at in one go."""

_MOST_LOOKED_AT = 1 << 30
"""Bytes of batches that may stand there."""

MARKER_IDS = 8
"""Transactions of a unit that are under way at once. A coordinator writes the markers of each on its own."""

_NO_KEY = b"\xff\xff\xff\xff"
_EMPTY_KEY = bytes(4)
_RECORD_HEAD = bytes(8) + b"\xff\xff\xff\xff"  # offset 0, no timestamp
FILLER = _RECORD_HEAD + _EMPTY_KEY + _NO_KEY + bytes(4)
"""An archived record with an empty key and without a value: a compacted topic refuses one without a key."""
_TOMBSTONE_KEY = b"kbackup-filler"
TOMBSTONE = _RECORD_HEAD + len(_TOMBSTONE_KEY).to_bytes(4, "big") + _TOMBSTONE_KEY + _NO_KEY + bytes(4)

_AGAIN = "delete the topic on the target, and restore it with another --restore-id"


class AppendRequest(NamedTuple):
    """A batch that must get the offset `at`. `filler`: it holds no records of the archive."""

    batch: ProducedBatch
    at: int
    filler: bool = False


class DeleteRequest(NamedTuple):
    """The log is to begin at `start`."""

    start: int


class ProofRequest(NamedTuple):
    """So many records of this restore must be in the log already: fillers before the first record, and records."""

    records: int


class GapProofRequest(NamedTuple):
    """From `first` to `end` (exclusive), the log must hold nothing but what fills gaps."""

    first: int
    end: int


class GapRequest(NamedTuple):
    """`size` offsets from `at` on are to be filled. The answer is how many of them are filled."""

    at: int
    size: int


Request = AppendRequest | DeleteRequest | GapRequest | ProofRequest | GapProofRequest


@dataclass(frozen=True)
class SameOffsetsWork:
    """The settings of every unit, as `RestoreWork` has them for a restore with new offsets. `same` says how gaps are
    filled, and by which producer."""

    target: Properties = field(repr=False)
    store: Store
    journal: RestoreJournal
    same: SameOffsets
    schemas: SchemaRewrite | None = None
    left_out: frozenset[str] = frozenset()
    limits: Mapping[str, int] = field(default_factory=dict)
    transform: Transform | None = None

    def __call__(self, task: Sequence[Unit], progress: ProgressSender) -> Iterator[UnitResult]:
        for number, ranges in task:
            yield self._run(number, ranges, progress)

    def _run(self, number: int, ranges: Sequence[UnitRange], progress: ProgressSender) -> UnitResult:
        """Fill the logs of a unit, whose partitions are all of one topic."""
        wanted = [range_ for range_ in ranges if range_.target not in self.left_out]
        cluster = Cluster(self.target, "target")
        filling = _UnitFilling(self, cluster, number, wanted, progress)
        try:
            filling.run()
        except RefusedTopicError as error:
            failed = FailedTopic(error.topic, error.message, error.hint)
            return UnitResult(number, (), NOTHING, 0, selected_kernel(), (failed,))
        finally:
            cluster.router.close()
        table = runs_table({tp: log.collector.runs for tp, log in filling.logs.items()})
        name = MapPartName(uuid.uuid4().hex, 0)
        self.journal.write_map_part(number, name, table, None, NOTHING)
        return UnitResult(number, (name,), filling.cut, 0, selected_kernel())


class _UnitFilling:
    """Fills the logs of a unit side by side: what several of them want to append goes out together, and one transaction
    puts its marker into all that wait for one."""

    def __init__(
        self,
        work: SameOffsetsWork,
        cluster: Cluster,
        number: int,
        ranges: Sequence[UnitRange],
        progress: ProgressSender,
    ) -> None:
        self._work = work
        self._cluster = cluster
        self._progress = progress
        self.logs = {range_.tp: _LogFilling(work, range_) for range_ in ranges}
        ids = [f"kbackup-{work.journal.restore_id}-{number}-markers-{each}" for each in range(MARKER_IDS)]
        self._markers = EmptyTransactions(cluster.router, ids, FENCED_RESTORE)
        self._requests: dict[TopicPartition, Request] = {}
        self._aborted: dict[TopicPartition, int] = {}
        self._limit = limit_beside(work.store)

    @property
    def cut(self) -> Cut:
        cut = NOTHING
        for log in self.logs.values():
            cut = cut.plus(log.cut)
        return cut

    def run(self) -> None:
        # A transaction that an earlier try left open would put its marker anywhere later: it ends before the ends of
        # the logs are read. Tombstones need no transaction.
        uses_markers = self._work.same.fill != "tombstones"
        if uses_markers and any(log.has_gaps for log in self.logs.values()):
            self._markers.begin()
            self._wait_until_stable()
        self._begin(list(self.logs))
        while self._requests:
            self._prove()
            self._prove_gaps()
            self._delete()
            kinds = {type(request) for request in self._requests.values()}
            if AppendRequest in kinds:
                self._append()
            elif GapRequest in kinds:
                self._fill_gaps()
        self._check()

    def _wait_until_stable(self) -> None:
        """Wait until no transaction is open in the logs."""
        waiting = list(self.logs)
        until = time.monotonic() + REQUEST_SECONDS
        pause = pauses()
        while waiting:
            stable = self._cluster.log_ends(waiting, "read_committed")
            ends = self._cluster.log_ends(waiting, "read_uncommitted")
            waiting = [tp for tp in waiting if stable[tp] < ends[tp]]
            if waiting and time.monotonic() >= until:
                raise RefusedTopicError(
                    waiting[0].topic, f"a transaction of another producer is open in {waiting[0]}", _AGAIN
                )
            if waiting:
                time.sleep(next(pause))

    def _begin(self, partitions: Sequence[TopicPartition]) -> None:
        """Go on with these logs from where they end."""
        ends = self._cluster.log_ends(partitions, "read_uncommitted")
        starts = self._cluster.log_starts(partitions)
        for tp in partitions:
            log = self.logs[tp]
            if ends[tp] > log.bounds.end:
                raise RefusedTopicError(
                    tp.topic,
                    f"{tp} ends at offset {ends[tp]}, behind the end of what is to be restored ({log.bounds.end}): "
                    "another program has written to it",
                    _AGAIN,
                )
            log.begin(starts[tp], ends[tp])
            self._next(tp, None)

    def _next(self, tp: TopicPartition, answer: int | None) -> None:
        """Let a log go on to its next request."""
        try:
            self._requests[tp] = self.logs[tp].requests.send(answer)
        except StopIteration:
            self._requests.pop(tp, None)

    def _prove(self) -> None:
        """Ask the brokers how many records of ours each log has, where it is not empty: what stands there may be of
        another program."""
        wanted: dict[TopicPartition, int] = {}
        for tp, request in self._requests.items():
            if isinstance(request, ProofRequest):
                wanted[tp] = request.records
        if not wanted:
            return
        producer = Producer(self._work.same.producer_id, self._work.same.producer_epoch)
        appended = appended_records(self._cluster.router, wanted, producer)
        again: list[TopicPartition] = []
        for tp, records in wanted.items():
            if appended[tp] == records % SEQUENCES:
                self._next(tp, None)
                continue
            foreign = RefusedTopicError(
                tp.topic,
                f"{tp} holds records that this restore did not write: another program has written to it, or its broker "
                "has forgotten that we did (producer.id.expiration.ms)",
                _AGAIN,
            )
            if appended[tp] is None:
                raise foreign
            # A batch of an earlier try may have come since the end of the log was read.
            self.logs[tp].note_refused(foreign)
            again.append(tp)
        if again:
            self._begin(again)

    def _prove_gaps(self) -> None:
        """Look at what stands in the gaps that an earlier try has begun to fill: the number of our records tells
        nothing of it."""
        wanted: dict[TopicPartition, tuple[int, int]] = {}
        for tp, request in self._requests.items():
            if isinstance(request, GapProofRequest):
                wanted[tp] = (request.first, request.end)
        for tp, (first, end) in wanted.items():
            foreign = self._record_between(tp, first, end)
            if foreign is not None:
                raise RefusedTopicError(
                    tp.topic,
                    f"{tp} holds a record at offset {foreign}, where the archive has none: another program has written "
                    "to it",
                    _AGAIN,
                )
            self._next(tp, None)

    def _record_between(self, tp: TopicPartition, first: int, end: int) -> int | None:
        """Return the offset of the first batch from `first` to `end` that does not fill a gap; None if all do."""
        for at in range(first, end, _LOOKED_AT):
            until = min(at + _LOOKED_AT, end)
            try:
                windows = log_windows(self._cluster.router, {tp: (at, until, until)}, _MOST_LOOKED_AT, ())
            except UnavailableError as error:
                raise ClusterError(
                    f"what fills the gaps of {tp} can't be read: {error.unavailable.why}",
                    "give our user Read on the topics, and run the restore again",
                ) from error
            for batch in windows[tp].batches:
                is_ours = batch.control or (batch.transactional and self._work.same.fill == "aborted")
                if not is_ours:
                    return batch.first
        return None

    # Records and fillers.

    def _append(self) -> None:
        wanted: dict[TopicPartition, AppendRequest] = {}
        for tp, request in self._requests.items():
            if isinstance(request, AppendRequest):
                wanted[tp] = request
                if self._limit is not None and not request.filler:
                    self._limit.take(len(request.batch.data))
        offsets, refused = append(self._cluster.router, {tp: request.batch for tp, request in wanted.items()})
        again: list[TopicPartition] = []
        for tp, refusal in refused.items():
            may_shrink = refusal.kind == "too large" and wanted[tp].filler
            if may_shrink and self.logs[tp].smaller_fillers():
                again.append(tp)
            elif refusal.kind in ("moved", "late"):
                self.logs[tp].note_refused(_error_of(tp, refusal))
                again.append(tp)
            else:
                raise _error_of(tp, refusal)
        for tp, offset in offsets.items():
            at = wanted[tp].at
            if offset != at:
                raise RefusedTopicError(
                    tp.topic,
                    f"{tp} took a batch at offset {offset}, not at {at}: another program has written to it",
                    _AGAIN,
                )
            self.logs[tp].tried = 0
            if not wanted[tp].filler:
                self._progress.add(wanted[tp].batch.records, len(wanted[tp].batch.data))
            self._next(tp, None)
        if again:
            self._begin(again)

    def _delete(self) -> None:
        starts: dict[TopicPartition, int] = {}
        for tp, request in self._requests.items():
            if isinstance(request, DeleteRequest):
                starts[tp] = request.start
        if starts:
            delete_before(self._cluster.router, starts)
            for tp in starts:
                self._next(tp, None)

    # Gaps.

    def _fill_gaps(self) -> None:
        gaps: dict[TopicPartition, GapRequest] = {}
        for tp, request in self._requests.items():
            if isinstance(request, GapRequest):
                gaps[tp] = request
        large = {tp: gap for tp, gap in gaps.items() if gap.size > 1}
        if self._work.same.fill == "aborted" and large:
            self._fill_aborted(large)
            return
        # As many markers as the smallest of the gaps has room for: none may get one too many.
        count = min(MARKER_IDS, min(gap.size for gap in gaps.values()))
        self._markers.mark(gaps.keys(), count)
        self._go_on_behind(gaps, {tp: gap.at + count for tp, gap in gaps.items()})

    def _fill_aborted(self, gaps: Mapping[TopicPartition, GapRequest]) -> None:
        """Fill gaps by records of a transaction that is aborted, and by its marker."""
        marker_id = self._markers.ids[0]
        producer = self._markers.producers[marker_id]
        self._markers.add(gaps.keys(), [marker_id])
        ends: dict[TopicPartition, int] = {}
        for tp, gap in gaps.items():
            body = self.logs[tp].filler(gap.size - 1)
            sequence = self._aborted.get(tp, 0)
            batch = body.batch(producer, sequence, transactional=True)
            offsets, refused = append(self._cluster.router, {tp: batch}, marker_id)
            if tp in refused:
                raise _error_of(tp, refused[tp])
            if offsets[tp] != gap.at:
                raise RefusedTopicError(tp.topic, f"{tp} took a filler at {offsets[tp]}, not at {gap.at}", _AGAIN)
            self._aborted[tp] = sequence + body.records
            ends[tp] = gap.at + body.records + 1
        self._markers.end([marker_id], commit=False)
        self._go_on_behind(gaps, ends)

    def _go_on_behind(self, gaps: Mapping[TopicPartition, GapRequest], ends: Mapping[TopicPartition, int]) -> None:
        """Let logs go on when what was sent to fill their gaps has come: they then end at `ends`."""
        found = self._wait_for(ends, {tp: gap.at + gap.size for tp, gap in gaps.items()})
        for tp, gap in gaps.items():
            self._next(tp, found[tp] - gap.at)

    def _wait_for(
        self, ends: Mapping[TopicPartition, int], most: Mapping[TopicPartition, int] | None = None
    ) -> dict[TopicPartition, int]:
        """Wait until the logs end there: a record that is sent before its marker has come would take its offset.
        Return where they end. That may be later, up to `most`: a broker writes a marker twice where the leader changes
        before the coordinator knows that it is there."""
        reached: dict[TopicPartition, int] = {}
        waiting = dict(ends)
        until = time.monotonic() + REQUEST_SECONDS
        pause = pauses()
        while True:
            found = self._cluster.log_ends(waiting, "read_uncommitted")
            for tp, end in found.items():
                if end > ends[tp]:
                    self._check_surplus(tp, ends[tp], end, most[tp] if most is not None else ends[tp])
                if end >= ends[tp]:
                    reached[tp] = end
            waiting = {tp: end for tp, end in waiting.items() if found[tp] < end}
            if not waiting:
                return reached
            if time.monotonic() >= until:
                tp = next(iter(waiting))
                raise ClusterError(
                    f"the markers of {tp} did not come in {REQUEST_SECONDS:.0f} s",
                    "check that all brokers are running, and run the restore again",
                )
            time.sleep(min(next(pause), _LONGEST_PAUSE))

    def _check_surplus(self, tp: TopicPartition, expected: int, end: int, most: int) -> None:
        """Check that a log that ends behind the expected end has nothing but markers more, and room for them."""
        if self._record_between(tp, expected, end) is not None:
            raise RefusedTopicError(
                tp.topic, f"{tp} ends at {end}, not at {expected}: another program has written to it", _AGAIN
            )
        if end > most:
            raise RefusedTopicError(
                tp.topic,
                f"{tp} ends at {end}, not at {most}: its brokers have written a marker twice, which happens where the "
                "leader changes meanwhile",
                _AGAIN,
            )

    def _check(self) -> None:
        """Check that every log is as it is to be."""
        self._wait_for({tp: log.bounds.end for tp, log in self.logs.items()})


def _error_of(tp: TopicPartition, refusal: RefusedBatch) -> KbackupError:
    if refusal.kind == "moved":
        return RefusedTopicError(
            tp.topic, f"{tp} takes nothing more from this restore: another program has written to it", _AGAIN
        )
    if refusal.kind in ("topic", "too large"):
        return RefusedTopicError(tp.topic, refusal.error.message, refusal.error.hint)
    return refusal.error


_LONGEST_PAUSE = 0.02
_TRIES = 100
_TRY_PAUSE = 0.1


class _LogFilling:
    """Fills one log. `collector` and `cut` are complete when `requests` has ended."""

    def __init__(self, work: SameOffsetsWork, range_: UnitRange) -> None:
        assert isinstance(range_.log, LogBounds)  # noqa: S101 (a plan with the same offsets has them for each range)
        self.bounds: LogBounds = range_.log
        self.tried = 0
        self._work = work
        self._range = range_
        self._most_bytes = work.limits.get(range_.target, _LIMIT)
        self._fillers = _FILLERS
        self._bodies: dict[tuple[bytes, int], BatchBody] = {}
        self._producer = Producer(work.same.producer_id, work.same.producer_epoch)
        self._blocks = self._selected()
        self.collector = RunCollector()
        self.requests = self._fill(0, 0)

    def _selected(self) -> SelectedBlocks:
        work = self._work
        return SelectedBlocks(work.store, self._range, work.schemas, work.transform)

    @property
    def cut(self) -> Cut:
        return self._blocks.cut

    @property
    def has_gaps(self) -> bool:
        """Return whether the log may have gaps: descriptors of segments tell most that have none."""
        at = self.bounds.start
        for segment in self._range.segments:
            if segment.first != at or segment.count != segment.last + 1 - segment.first:
                return True
            at = segment.last + 1
        selects_all = self._range.window is None and self._work.transform is None
        return not selects_all or at != self.bounds.end

    def begin(self, start: int, end: int) -> None:
        """Go on from `end`, where the log ends; it begins at `start`."""
        self.requests.close()
        self._blocks = self._selected()
        self.collector = RunCollector()
        self.requests = self._fill(start, end)

    def note_refused(self, error: KbackupError) -> None:
        """Note that a batch was refused where the log seemed to end. One of an earlier try may have come meanwhile, or
        replicas may lag behind: the end is read again, some times."""
        self.tried += 1
        if self.tried > _TRIES:
            raise error
        time.sleep(_TRY_PAUSE)

    def smaller_fillers(self) -> bool:
        """Take fewer fillers for a batch: the broker stores them in another form, and finds the batch too large."""
        self._fillers //= 4
        return self._fillers >= _LEAST_FILLERS

    def filler(self, most: int, record: bytes = FILLER) -> BatchBody:
        """Return a body of up to `most` fillers, no larger than the topic takes."""
        count = min(most, self._fillers)
        while True:
            body = self._bodies.get((record, count))
            if body is None:
                body = repeated(record, count)
            if len(body.data) + BATCH_OVERHEAD <= self._most_bytes or count == 1:
                break
            self._fillers = count = max(1, count // 2)
        # Full batches come again and again, the last one of a head once.
        if count == self._fillers:
            self._bodies = {(record, count): body}
        return body

    def _fill(self, start: int, end: int) -> Generator[Request, int | None, None]:
        yield from self._head(start, end)
        # What stands in the log is proven to be ours once: here, or with the fillers.
        yield from self._records(max(end, self.bounds.start), prove=end > 0 and end >= self.bounds.start)

    def _head(self, start: int, end: int) -> Generator[Request, int | None, None]:
        """Fill the log up to its first offset, and delete what it was filled with."""
        size = 0
        at = end
        if 0 < end < self.bounds.start:
            yield ProofRequest(end)
        while at < self.bounds.start:
            body = self.filler(self.bounds.start - at)
            yield AppendRequest(body.batch(self._producer, at), at, filler=True)
            at += body.records
            size += len(body.data)
            if size >= _FILLED_BYTES:
                yield DeleteRequest(at)
                size = 0
        if start < self.bounds.start:
            yield DeleteRequest(self.bounds.start)

    def _records(self, end: int, *, prove: bool) -> Generator[Request, int | None, None]:
        """Append what comes from offset `end` on. `prove`: what lies before is to be proven to be ours."""
        # The producer's sequences count its own records: the fillers of the head, and then the archive's.
        sequence = self.bounds.start
        for piece in self._made(end):
            if isinstance(piece, _Skipped):
                sequence += piece.records
                continue
            if prove and (isinstance(piece, _Made) or piece.end > end):
                # In the middle of a gap of tombstones, some of them are there.
                tombstones = self._tombstones(piece.first, end) if isinstance(piece, Gap) else 0
                yield from _proof(sequence + tombstones)
                prove = False
            if isinstance(piece, Gap):
                # The gap in which the last try ended. Whatever came into an earlier one would have moved the records.
                if piece.first < end <= piece.end and self._work.same.fill != "tombstones":
                    yield GapProofRequest(piece.first, end)
                sequence = yield from self._gap(piece, end, sequence)
            else:
                yield AppendRequest(piece.body.batch(self._producer, sequence), piece.at)
                sequence += piece.body.records
        if prove:
            yield from _proof(sequence)

    def _tombstones(self, first: int, end: int) -> int:
        """Return how many tombstones there are from `first` to `end`, in a gap."""
        return max(0, end - first) if self._work.same.fill == "tombstones" else 0

    def _gap(self, gap: Gap, end: int, sequence: int) -> Generator[Request, int | None, int]:
        """Fill a gap from `end` on. Return the sequence of what follows."""
        at = max(gap.first, end)
        if self._work.same.fill == "tombstones":
            while at < gap.end:
                body = self.filler(gap.end - at, TOMBSTONE)
                yield AppendRequest(body.batch(self._producer, sequence + at - gap.first), at, filler=True)
                at += body.records
            return sequence + gap.end - gap.first
        while at < gap.end:
            filled = yield GapRequest(at, gap.end - at)
            at += filled or 0
        return sequence

    def _made(self, end: int) -> Iterator[Gap | _Skipped | _Made]:
        """Yield gaps, and records made ready to be sent from offset `end` on."""
        made = self._make(end)
        size = sum(segment.bytes for segment in self._range.segments)
        if size <= _SMALL:
            yield from made
        else:
            yield from ahead(made, _READ_AHEAD)

    def _make(self, end: int) -> Iterator[Gap | _Skipped | _Made]:
        most_bytes = min(_BATCH_BYTES, self._most_bytes - self._most_bytes // 64)
        for piece in pieces(self._blocks, self.bounds):
            if isinstance(piece, Gap):
                yield piece
                continue
            self.collector.add(piece.first, piece.end)
            block = piece.block
            done = min(max(0, end - piece.first), len(block))
            if done:
                yield _Skipped(done)
            at = piece.first + done
            for body in bodies(block, most_bytes, done):
                yield _Made(body, at)
                at += body.records


def _proof(records: int) -> Iterator[ProofRequest]:
    # A log in which nothing but markers may stand has no record of ours.
    if records:
        yield ProofRequest(records)


class _Skipped(NamedTuple):
    """So many records that are in the log already."""

    records: int


class _Made(NamedTuple):
    """Records that are to come at an offset."""

    body: BatchBody
    at: int
