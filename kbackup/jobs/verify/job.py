"""The verify job: whether an archive still holds what its restore points promise. Every finding is listed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kbackup.archive import layout
from kbackup.archive.catalog.derived import derived_files
from kbackup.archive.java.content import JAVA, is_java_archive, java_topics
from kbackup.archive.java.folder import JavaFolder
from kbackup.archive.segments.key_check import with_checked_key
from kbackup.archive.segments.table import Segment, in_order
from kbackup.archive.verify.catalog import Survey, check_earlier, survey
from kbackup.archive.verify.derived import can_judge, check_derived
from kbackup.archive.verify.findings import Findings, ToRead
from kbackup.archive.verify.java import survey_folder
from kbackup.archive.verify.objects import check_present, check_stored_checksums, note_orphans
from kbackup.archive.verify.segment import SegmentResult, check_segment
from kbackup.archive.verify.vectors import check_vectors
from kbackup.errors import NoArchiveError
from kbackup.jobs.keys.job import check_data_keys
from kbackup.jobs.verify.drills import check_drills
from kbackup.jobs.verify.report import VerifyReport
from kbackup.jobs.verify.restores import check_mirrors, check_restores
from kbackup.jobs.verify.verifications import check_verifications
from kbackup.metrics.events import Listener, Phases
from kbackup.metrics.registry import counted
from kbackup.spark.progress import ProgressSender
from kbackup.spark.tasks import Spark, pack, run_counted
from kbackup.store.base import Store

_TASK_BYTES = 64 << 20
_TASK_SEGMENTS = 256


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
class _Known:
    """Results before records are read; `remaining` are the segments to read."""

    archive_id: str
    numbers: tuple[int, ...]
    segments: int
    remaining: list[ToRead]


def verify(store: Store, point: str, quick: bool, spark: Spark, listener: Listener) -> VerifyReport:
    """Verify all of an archive, or a restore point with all before it.

    `point` is 'all', or a restore point (a number, a label, or 'latest'). Quick: the size of every object, and its
    checksum where the store keeps one, without Spark. Else every segment is read back as well.
    """
    phases, findings = Phases(listener), Findings()
    with phases.step("list objects"):
        sizes = {entry.key: entry.size for entry in store.list()}
    if layout.ARCHIVE in sizes or any(key.startswith((layout.CATALOG, layout.POINTS)) for key in sizes):
        known = _survey(store, sizes, point, quick, phases, findings)
    elif is_java_archive(store):
        with phases.step("files"):
            store = folder = JavaFolder(store)
            known = _Known(JAVA, (), 0, survey_folder(folder, java_topics(folder), findings))
            known.segments = len(known.remaining)
    else:
        raise NoArchiveError(f"there is no archive at {store.url}", "check the address")
    read = SegmentResult(0, 0, ())
    if not quick:
        with phases.step("read segments"):
            expect = sum(item.segment.count for item in known.remaining)
            tasks = pack(known.remaining, lambda item: item.segment.stored, _TASK_BYTES, _TASK_SEGMENTS)
            tasks.sort(key=lambda task: -sum(item.segment.stored for item in task))
            read = _sum(run_counted(spark, tasks, VerifyWork(store), listener, expect))
    return VerifyReport(
        archive=store.url,
        archive_id=known.archive_id,
        deep=not quick,
        restore_points=known.numbers,
        segments=known.segments,
        read_records=read.records,
        read_bytes=read.bytes,
        findings=tuple(sorted(findings.entries | set(read.findings))),
        notes=tuple(sorted(findings.notes)),
        orphan_bytes=sum(note.bytes for note in findings.notes),
        seconds=phases.seconds,
    )


def _survey(
    store: Store, sizes: Mapping[str, int], name: str, quick: bool, phases: Phases, findings: Findings
) -> _Known:
    with phases.step("restore points"):
        surveyed = survey(store, sizes, findings)
        numbers = _selected_numbers(surveyed, name)
        referred = check_earlier(store, surveyed, findings)
        added: dict[int, list[Segment]] = {}
        if surveyed.archive is not None:
            for number, segment in surveyed.archive.added_by(0, surveyed.archive.state.next_point):
                added.setdefault(number, []).append(segment)
                with findings.catching(segment.key):
                    with_checked_key(segment)
            check_vectors(surveyed.archive.state, surveyed.manifests, added, findings)
        owner = surveyed.archive.info.id if surveyed.archive is not None else surveyed.archive_id
        check_restores(store, sizes, owner, findings)
        check_mirrors(store, sizes, findings)
        check_drills(store, sizes, findings)
        check_verifications(store, sizes, findings)
        check_data_keys(store, findings)
    with phases.step("objects"):
        last = max(numbers, default=0)
        segments = sorted((s for number, new in added.items() if number <= last for s in new), key=in_order)
        remaining = check_present(segments, sizes, findings)
        if quick and check_stored_checksums(store, remaining, findings):
            findings.note("topics/", "was compared by sizes alone: the store keeps no checksums")
    with phases.step("derived files"):
        derived = _derived(surveyed)
        if name == "all" and surveyed.archive is not None:
            note_orphans(
                sizes, referred | (derived.keys() or _derived_names(sizes)), surveyed.whole, findings
            )
        if derived and can_judge(store, surveyed):
            check_derived(store, derived, sizes, not quick, findings)
        elif surveyed.points:
            findings.note("topics/", "has derived files that could not be judged now")
    return _Known(surveyed.archive_id, numbers, len(segments), remaining)


def _derived(surveyed: Survey) -> dict[str, bytes]:
    if surveyed.archive is None or not surveyed.points or not (surveyed.whole and surveyed.documents_whole):
        return {}
    return derived_files(surveyed.archive)


def _derived_names(sizes: Mapping[str, int]) -> set[str]:
    """Return the objects with names of derived files, for archives whose damage hides which ones are due."""
    names = {key: key.rpartition("/")[2] for key in sizes if layout.parse_topic_key(key) is not None}
    parsers = (layout.parse_partition_index, layout.parse_group_offsets)
    return {key for key, name in names.items() if any(parse(name) is not None for parse in parsers)}


def _selected_numbers(surveyed: Survey, name: str) -> tuple[int, ...]:
    """Return the numbers of the restore points to verify; `UsageError` where there is no such restore point."""
    numbers = tuple(p.number for p in surveyed.points)
    if name == "all" or surveyed.archive is None or not numbers:
        return numbers
    last = surveyed.archive.find_point(name).number
    return tuple(number for number in numbers if number <= last)


def _sum(results: Sequence[SegmentResult]) -> SegmentResult:
    return SegmentResult(
        sum(r.records for r in results),
        sum(r.bytes for r in results),
        tuple(f for r in results for f in r.findings),
    )


def count_verification(report: VerifyReport) -> None:
    """Count what a verification did, for Prometheus."""
    counted.add("kbackup_records_total", report.read_records)
    counted.add("kbackup_bytes_total", report.read_bytes)
    counted.add("kbackup_segments_total", report.segments)
    counted.put("kbackup_findings", len(report.findings))
