"""The verification job: every object of an archive, with the files of drills, restores and verifications."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from kbackup.archive import layout
from kbackup.archive.derived import derived_files
from kbackup.archive.identity import ANOTHER_COPY
from kbackup.archive.java import JavaFolder
from kbackup.archive.models import Document, file_sum, load
from kbackup.archive.query.java import JAVA, is_java_archive, java_topics
from kbackup.archive.restores.flow_map import DOCUMENT, MAP_SCHEMA, FlowState
from kbackup.archive.restores.offset_map import MapPartName, decode, previous_of
from kbackup.archive.restores.plan import RestorePlan
from kbackup.archive.segments.table import Segment, in_order, with_checked_key
from kbackup.archive.verify.catalog import (
    Survey,
    can_judge,
    check_derived,
    check_earlier,
    check_present,
    check_stored_checksums,
    check_vectors,
    note_orphans,
    survey,
)
from kbackup.archive.verify.findings import CHANGED, Findings, SegmentResult, ToRead, check_segment
from kbackup.archive.verify.java import survey_folder
from kbackup.errors import NoArchiveError, NotFoundError
from kbackup.jobs.drill.report import DrillReport
from kbackup.jobs.groups.job import GroupsBefore
from kbackup.jobs.keys import check_data_keys
from kbackup.jobs.mirror.flow import FlowStatus
from kbackup.jobs.restore.report import RestoreReport
from kbackup.jobs.settings.write import SettingsBefore
from kbackup.jobs.verify.report import Verification, VerifyReport
from kbackup.metrics.registry import Phases, ProgressListener, counted
from kbackup.spark.tasks import ProgressSender, Spark, pack, run_counted
from kbackup.store.base import Store


def check_drills(store: Store, keys: Collection[str], findings: Findings) -> None:
    """Each report by its own sum and its page by the report's. A page alone is of a drill that was cut off just
    then, and is nothing wrong."""
    for key in keys:
        if not key.startswith(layout.DRILLS):
            continue
        drill_id, _, name = key.removeprefix(layout.DRILLS).partition("/")
        if name == layout.REPORT:
            with findings.catching(key):
                _check_drill(store, key, drill_id, findings)
        elif name != layout.PAGE:
            findings.note(key, "is no file of a drill")


def _check_drill(store: Store, key: str, drill_id: str, findings: Findings) -> None:
    report = load(DrillReport, store.get(key), key)
    if report.drill_id != drill_id:
        findings.add(key, f"is of drill {report.drill_id}, not of the folder it is in", CHANGED)
    page = layout.drill_key(drill_id, layout.PAGE)
    with findings.catching(page):
        if file_sum(store.get(page)) != report.page:
            findings.add(page, "is not what its report says", CHANGED)


# Check the files of restores and mirrors in an archive: plans, offset maps, reports, captures, and states of flows.


_THREADS = 16
_KEY = re.compile(r"restores/([^/]+)/(.+)")
_PART = re.compile(r"map/[0-9]+/[^/]+\.parquet")
_BESIDE = {layout.REPORT: (layout.PLAN, layout.OFFSETS), layout.OFFSETS: (layout.PLAN,)}
_DOCUMENTS: dict[str, type[Document]] = {
    r"plan\.json": RestorePlan,
    r"report\.json": RestoreReport,
    r"groups-before-[0-9]+\.json": GroupsBefore,
    r"settings-before-[0-9]+\.json": SettingsBefore,
}


def check_restores(store: Store, keys: Collection[str], archive_id: str, findings: Findings) -> None:
    """Every file by its own sum, and that it is in the folder of its restore; what must be there beside others."""
    for key in keys:
        folder, _, name = key.rpartition("/")
        for beside in _BESIDE.get(name, ()) if _KEY.fullmatch(key) else ():
            if f"{folder}/{beside}" not in keys:
                findings.add(f"{folder}/{beside}", f"is missing beside {name}", ANOTHER_COPY)
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(lambda key: _check_restore(store, key, keys, archive_id, findings), keys))


def check_mirrors(store: Store, keys: Collection[str], findings: Findings) -> None:
    """Check every file of a flow by its own sum. A running mirror deletes the offset-map parts that it has folded."""

    def check(key: str) -> None:
        name = key.rpartition("/")[2]
        with findings.catching(key), suppress(NotFoundError):
            if name == layout.STATUS:
                load(FlowStatus, store.get(key), key)
            elif name == DOCUMENT:
                load(FlowState, store.get(key), key)
            elif name.endswith(".parquet"):
                decode(store.get(key), key, MAP_SCHEMA)
            else:
                findings.note(key, "is no file of a mirror")

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(check, (key for key in keys if key.startswith(layout.MIRRORS))))


def _check_restore(store: Store, key: str, keys: Collection[str], archive_id: str, findings: Findings) -> None:
    found = _KEY.fullmatch(key)
    if found is None:
        return
    restore_id, name = found.groups()
    kind = next((kind for pattern, kind in _DOCUMENTS.items() if re.fullmatch(pattern, name)), None)
    with findings.catching(key):
        if kind is not None:
            _check_document(load(kind, store.get(key), key), key, restore_id, archive_id, findings)
        elif name == layout.OFFSETS:
            decode(store.get(key), key)
        elif _PART.fullmatch(name):
            _check_part(store, key, keys, findings)
        else:
            findings.note(key, "is no file of a restore")


def _check_part(store: Store, key: str, keys: Collection[str], findings: Findings) -> None:
    """A part, and that those are there which count where it does: the one before it, and where its attempt began."""
    folder, _, file = key.rpartition("/")
    name, previous = (MapPartName.parse(file.removesuffix(".parquet")), previous_of(decode(store.get(key), key)))
    before = previous if name is None or name.number == 0 else MapPartName(name.attempt, name.number - 1)
    if before is not None and f"{folder}/{before}.parquet" not in keys:
        findings.add(f"{folder}/{before}.parquet", f"is missing before {file}", ANOTHER_COPY)


def _check_document(document: Document, key: str, restore_id: str, archive_id: str, findings: Findings) -> None:
    owner = getattr(document, "restore_id", None)
    if owner != restore_id:
        findings.add(key, f"is of restore {owner}, not of the folder it is in", CHANGED)
    if isinstance(document, GroupsBefore | SettingsBefore) and not key.endswith(f"-before-{document.number}.json"):
        findings.add(key, f"is number {document.number} of its kind", CHANGED)
    named = document.archive_id if isinstance(document, RestorePlan | RestoreReport) else ""
    if named and archive_id and named != archive_id:
        findings.add(key, f"is of a restore from archive {named}, this is {archive_id}", CHANGED)


# Check the records of earlier verifications in an archive.


def check_verifications(store: Store, keys: Collection[str], findings: Findings) -> None:
    """Check each record by its own checksum, and that its folder has its id and scope."""
    for key in keys:
        if not key.startswith(layout.VERIFICATIONS):
            continue
        parsed = layout.parse_verification_key(key)
        if parsed is None:
            findings.note(key, "is no file of a verification")
            continue
        with findings.catching(key):
            record = load(Verification, store.get(key), key)
            if (record.verification_id, record.scope) != parsed:
                findings.add(key, f"is of verification {record.verification_id}, not of the folder it is in", CHANGED)


# The verify job: whether an archive still holds what its restore points promise. Every finding is listed.


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


def verify(store: Store, point: str, quick: bool, spark: Spark, listener: ProgressListener) -> VerifyReport:
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
            note_orphans(sizes, referred | (derived.keys() or _derived_names(sizes)), surveyed.whole, findings)
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
    """Return the numbers of the restore points to verify; `UsageError` if there is no such restore point."""
    numbers = tuple(p.number for p in surveyed.points)
    if name == "all" or surveyed.archive is None or not numbers:
        return numbers
    last = surveyed.archive.find_point(name).number
    return tuple(number for number in numbers if number <= last)


def _sum(results: Sequence[SegmentResult]) -> SegmentResult:
    return SegmentResult(
        sum(r.records for r in results), sum(r.bytes for r in results), tuple(f for r in results for f in r.findings)
    )


def count_verification(report: VerifyReport) -> None:
    """Count what a verification did, for Prometheus."""
    counted.add("kbackup_records_total", report.read_records)
    counted.add("kbackup_bytes_total", report.read_bytes)
    counted.add("kbackup_segments_total", report.segments)
    counted.put("kbackup_findings", len(report.findings))
