"""The verify job: whether an archive still holds what its restore points promise. Every finding is listed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kbackup.archive import layout
from kbackup.archive.expired import gone_with
from kbackup.archive.java import JAVA, is_java_archive, java_topics
from kbackup.archive.java_folder import JavaFolder
from kbackup.archive.segments import Segment, in_order
from kbackup.archive.verify.checkpoints import check_checkpoints
from kbackup.archive.verify.derived import check_derived, expected, settled
from kbackup.archive.verify.findings import Finding, Findings, Note, ToRead
from kbackup.archive.verify.java import survey_folder
from kbackup.archive.verify.objects import check_kept_checksums, check_present, note_orphans
from kbackup.archive.verify.points import Points, numbers, read_points
from kbackup.archive.verify.segment import SegmentResult, check_segment
from kbackup.archive.verify.vectors import check_vectors
from kbackup.errors import NoArchiveError, UsageError
from kbackup.jobs.listen import Listener, Phases
from kbackup.jobs.progress import ProgressSender
from kbackup.jobs.tasks import run_tasks
from kbackup.jobs.verify_drills import check_drills
from kbackup.jobs.verify_restores import check_restores
from kbackup.store.base import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TASK_BYTES = 64 << 20
_TASK_SEGMENTS = 256


@dataclass(frozen=True)
class VerifyReport:
    """`restore_points` are the numbers that were looked at; none for a folder of the Java tool. `read_records`
    and `read_bytes` are what was read back. `orphan_bytes` is the size of what nothing promises."""

    archive: str
    archive_id: str
    deep: bool
    restore_points: tuple[int, ...]
    segments: int
    read_records: int
    read_bytes: int
    findings: tuple[Finding, ...]
    notes: tuple[Note, ...]
    orphan_bytes: int
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VerifyWork:
    """Reads a task's segments; one result for all of them."""

    store: Store

    def __call__(self, task: Sequence[ToRead], progress: ProgressSender) -> Iterator[SegmentResult]:
        results = []
        for item in task:
            result = check_segment(self.store, item)
            progress.add(result.records, result.bytes)
            results.append(result)
        yield _sum(results)


@dataclass
class _Survey:
    """What is known before records are read."""

    archive_id: str
    numbers: tuple[int, ...]
    segments: int
    left: list[ToRead]


def verify(
    store: Store, wanted: str, quick: bool, spark: Callable[[], SparkSession], listener: Listener
) -> VerifyReport:
    """`wanted` is 'all', 'latest' or the number of a restore point, which stands on those before it.

    Quick: every object by its size, and by its checksum where the store keeps one; Spark is not asked for.
    Else every segment is read back as well.
    """
    phases, findings = Phases(listener), Findings()
    with phases.step("list objects"):
        sizes = {entry.key: entry.size for entry in store.list()}
    runs = numbers(sizes)
    if layout.ARCHIVE in sizes or any(layout.MANIFEST in files for files in runs.values()):
        survey = _survey(store, sizes, wanted, quick, phases, findings)
    elif is_java_archive(store):
        with phases.step("files"):
            store = folder = JavaFolder(store)
            survey = _Survey(JAVA, (), 0, survey_folder(folder, java_topics(folder), findings))
            survey.segments = len(survey.left)
    else:
        raise NoArchiveError(f"there is no archive at {store.url}", "check the address")
    read = SegmentResult(0, 0, ())
    if not quick:
        with phases.step("read segments"):
            expect = sum(item.segment.count for item in survey.left)
            read = _sum(
                run_tasks(
                    spark(),
                    _tasks(survey.left),
                    VerifyWork(store),
                    lambda records, size: listener.progress(records, size, expect),
                )
                if survey.left
                else []
            )
    return VerifyReport(
        archive=store.url,
        archive_id=survey.archive_id,
        deep=not quick,
        restore_points=survey.numbers,
        segments=survey.segments,
        read_records=read.records,
        read_bytes=read.bytes,
        findings=tuple(sorted(findings.found | set(read.findings))),
        notes=tuple(sorted(findings.notes)),
        orphan_bytes=sum(note.bytes for note in findings.notes),
        seconds=phases.seconds,
    )


def _survey(
    store: Store, sizes: Mapping[str, int], wanted: str, quick: bool, phases: Phases, findings: Findings
) -> _Survey:
    with phases.step("restore points"):
        points = read_points(store, sizes, findings)
        seqs = _chosen(points, wanted, sizes)
        check_vectors(points, findings)
        check_checkpoints(store, points, sizes, findings)
        check_restores(store, sizes, points.archive_id, findings)
        check_drills(store, sizes, findings)
    with phases.step("objects"):
        segments = _promised(points, seqs)
        left = check_present(segments, sizes, findings)
        if quick and check_kept_checksums(store, left, findings):
            findings.note("topics/", "was compared by sizes alone: the store keeps no checksums")
    with phases.step("derived files"):
        derived = expected(points)
        if wanted == "all":
            every = {s.key for table in points.added.values() for s in table}
            promised = every | {layout.index_key_of(key) for key in every} | derived.keys()
            note_orphans(sizes, promised, points.whole, findings)
        if points.whole and settled(store, points, sizes):
            check_derived(store, derived, sizes, not quick, findings)
        elif points.committed:
            findings.note("topics/", "has derived files that could not be judged now")
    return _Survey(points.archive_id, seqs, len(segments), left)


def _chosen(points: Points, wanted: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The numbers of the restore points that are looked at; `UsageError` where there is no such number."""
    seqs = [m.seq for m in points.committed]
    if wanted == "all" or not seqs:
        return tuple(seqs)
    last = seqs[-1] if wanted == "latest" else int(wanted)
    link = gone_with(points.gone, last)
    if link is not None:
        raise UsageError(
            f"restore point {last} is not there any more: it was expired on {link.expired_at}",
            "see 'kbackup list'",
        )
    if last not in seqs and last not in numbers(sizes):
        raise UsageError(
            f"there is no restore point {wanted}", f"the newest is {seqs[-1]}; see 'kbackup list'"
        )
    return tuple(seq for seq in seqs if seq <= last)


def _promised(points: Points, seqs: tuple[int, ...]) -> list[Segment]:
    last = max(seqs, default=0)  # what gone ones added counts for those that came after
    found = [s for seq, table in points.added.items() if seq <= last for s in table]
    return sorted(found, key=in_order)


def _tasks(items: Sequence[ToRead]) -> list[tuple[ToRead, ...]]:
    """Neighbours share a task up to `_TASK_BYTES`; the biggest first."""
    tasks: list[list[ToRead]] = []
    room = 0
    for item in items:
        size = item.segment.stored
        if not tasks or size > room or len(tasks[-1]) == _TASK_SEGMENTS:
            tasks.append([])
            room = _TASK_BYTES
        tasks[-1].append(item)
        room -= size
    return sorted(map(tuple, tasks), key=lambda task: -sum(i.segment.stored for i in task))


def _sum(results: Sequence[SegmentResult]) -> SegmentResult:
    return SegmentResult(
        sum(r.records for r in results),
        sum(r.bytes for r in results),
        tuple(f for r in results for f in r.findings),
    )
