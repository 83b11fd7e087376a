"""The verification job: whether an archive still holds what its restore points promise. Every finding is listed.

It reads every object of an archive, with the files of drills, restores, mirrors and verifications, and keeps a record
of itself in the archive: verifications/<id>/report.json.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, takewhile

import msgspec

from kbackup import __version__
from kbackup.archive import layout
from kbackup.archive.catalog.state import State
from kbackup.archive.derived import derived_files
from kbackup.archive.identity import ANOTHER_COPY
from kbackup.archive.java import JavaFolder
from kbackup.archive.lease import read_lease
from kbackup.archive.models import Document, dump, file_sum, load
from kbackup.archive.query.java import JAVA, is_java_archive, java_topics
from kbackup.archive.restores.offset_map import DOCUMENT, MAP_SCHEMA, FlowState, MapPartName, decode, previous_of
from kbackup.archive.restores.plan import RestorePlan, with_segments
from kbackup.archive.segments.table import (
    Segment,
    Segments,
    expected_in_order,
    objects_of,
    ordered,
    rows_of,
    sum_of,
    unpaired,
)
from kbackup.archive.verify import catalog
from kbackup.archive.verify.findings import (
    CHANGED,
    Finding,
    Findings,
    Note,
    Scope,
    SegmentResult,
    Verification,
    VerificationFinding,
    check_segment,
    of_error,
)
from kbackup.archive.verify.java import survey_folder
from kbackup.errors import NoArchiveError, NotFoundError
from kbackup.jobs.drill.report import DrillReport
from kbackup.jobs.groups.job import GroupsBefore
from kbackup.jobs.keys import check_data_keys
from kbackup.jobs.mirror.flow import FlowStatus
from kbackup.jobs.restore.report import RestoreReport
from kbackup.jobs.schemas.documents import SchemaMap, SchemasBefore
from kbackup.jobs.settings.write import SettingsBefore
from kbackup.metrics.registry import Phases, ProgressListener, counted
from kbackup.spark.tasks import ProgressSender, Spark, run_counted
from kbackup.store.base import Store
from kbackup.util.system import cut, in_threads
from kbackup.util.times import now

STORED_FINDINGS = 100
"""Findings that a record names; all are counted."""
_TASK_BYTES = 64 << 20
_TASK_SEGMENTS = 256


@dataclass(frozen=True)
class VerifyReport:
    """`restore_points` are the numbers that were looked at; none for a folder of the Java tool. `read_records`
    and `read_bytes` are what was read back. `orphan_bytes` is the size of objects of no restore point."""

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
    """Reads a task's segments, of which some objects are lacking; one result for all of them."""

    store: Store

    def __call__(
        self, task: tuple[Sequence[Segment], Collection[str]], progress: ProgressSender
    ) -> Iterator[SegmentResult]:
        results = []
        for segment in task[0]:
            result = check_segment(self.store, segment, task[1])
            progress.add(result.records, result.bytes)
            results.append(result)
        yield _sum(results)


def verify(store: Store, point: str, quick: bool, spark: Spark, listener: ProgressListener) -> VerifyReport:
    """Verify all of an archive, or a restore point with all before it.

    `point` is 'all', or a restore point (a number, a label, or 'latest'). Quick: the size of every object, and its
    checksum where the store keeps one, without Spark. Else every segment is read back as well.
    """
    phases, findings = Phases(listener), Findings()
    with phases.step("list objects"):
        before = takewhile(lambda entry: entry.key < layout.TOPICS, store.list())
        sizes = {entry.key: entry.size for entry in chain(before, store.list(start_after=f"{layout.TOPICS}~"))}
    segments: Sequence[Segment]
    lacking: Collection[str]
    if layout.ARCHIVE in sizes or any(key.startswith((layout.CATALOG, layout.POINTS)) for key in sizes):
        archive_id, numbers, count, segments, lacking = _survey(store, sizes, point, quick, phases, findings)
    elif is_java_archive(store):
        with phases.step("files"):
            store = folder = JavaFolder(store)
            segments, lacking = survey_folder(folder, java_topics(folder), findings)
            archive_id, numbers, count = JAVA, (), len(segments)
    else:
        raise NoArchiveError(f"there is no archive at {store.url}", "check the address")
    read = SegmentResult(0, 0, ())
    if not quick:
        with phases.step("read segments"):
            stored = (size for (size,) in rows_of(segments, "stored"))
            parts = [segments[part] for part in cut(stored, _TASK_BYTES, _TASK_SEGMENTS)]
            parts.sort(key=lambda part: -sum_of(part, "stored"))
            tasks = [(part, _lacking_of(part, lacking)) for part in parts]
            read = _sum(run_counted(spark, tasks, VerifyWork(store), listener, sum_of(segments, "count")))
    return VerifyReport(
        archive=store.url,
        archive_id=archive_id,
        deep=not quick,
        restore_points=numbers,
        segments=count,
        read_records=read.records,
        read_bytes=read.bytes,
        findings=tuple(sorted(findings.entries | set(read.findings))),
        notes=tuple(sorted(findings.notes)),
        orphan_bytes=sum(note.bytes for note in findings.notes),
        seconds=phases.seconds,
    )


def _survey(
    store: Store, sizes: dict[str, int], name: str, quick: bool, phases: Phases, findings: Findings
) -> tuple[str, tuple[int, ...], int, Segments, Collection[str]]:
    """Return the archive's id, the restore points and the number of segments that are verified, which of them to read,
    and their objects that are lacking. `sizes` gets the objects under topics/ that are no whole ones of segments."""
    with phases.step("restore points"):
        surveyed = catalog.survey(store, sizes, findings)
        archive = surveyed.archive
        numbers = tuple(p.number for p in surveyed.points)
        if name != "all" and archive is not None and numbers:
            last = archive.find_point(name).number
            numbers = tuple(number for number in numbers if number <= last)
        state = archive.state if archive is not None else State("")
        added = ordered([state.segments.read()], checked=True)
        findings.entries |= {of_error(key, error) for key, error in added.segments.wrong_keys()}
        catalog.check_vectors(state, surveyed.manifests, added, findings)
        check_restores(store, sizes, archive.info.id if archive is not None else surveyed.archive_id, findings)
        check_mirrors(store, sizes, findings)
        check_drills(store, sizes, findings)
        check_verifications(store, sizes, findings)
        check_data_keys(store, findings)
    with phases.step("objects"):
        others, lacking = unpaired(store.list(layout.TOPICS), expected_in_order(added.parts))
        sizes |= others
        segments = added.segments.where(added.points <= max(numbers, default=0))
        remaining = catalog.check_present(segments, lacking, sizes, findings)
        if quick and catalog.check_stored_checksums(store, remaining, lacking, findings):
            findings.note("topics/", "was compared by sizes alone: the store keeps no checksums")
        referred = catalog.check_earlier(store, surveyed, sizes, findings) | lacking.keys()
    with phases.step("derived files"):
        derived: dict[str, bytes] = {}
        if archive is not None and surveyed.points and surveyed.whole and surveyed.documents_whole:
            derived = derived_files(archive)
        if name == "all" and archive is not None:
            catalog.note_orphans(sizes, referred | (derived.keys() or _derived_names(sizes)), surveyed.whole, findings)
        if derived and catalog.can_judge(store, surveyed):
            catalog.check_derived(store, derived, sizes, not quick, findings)
        elif surveyed.points:
            findings.note("topics/", "has derived files that could not be judged now")
    return surveyed.archive_id, numbers, len(segments), remaining, lacking


def _lacking_of(segments: Sequence[Segment], lacking: Collection[str]) -> Collection[str]:
    return lacking and {each.key for pair in objects_of(segments) for each in pair if each.key in lacking}


def _derived_names(sizes: Mapping[str, int]) -> set[str]:
    """Return the objects with names of derived files, for archives whose damage hides which ones are due."""
    names = {key: key.rpartition("/")[2] for key in sizes if layout.parse_topic_key(key) is not None}
    parsers = (layout.parse_partition_index, layout.parse_group_offsets)
    return {key for key, name in names.items() if any(parse(name) is not None for parse in parsers)}


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


# Files that no restore point needs: of drills, restores, mirrors, and earlier verifications.


_KEY = re.compile(r"restores/([^/]+)/(.+)")
_PART = re.compile(r"map/[0-9]+/[^/]+\.parquet")
_TABLE = re.compile(r"segments-[0-9a-f]{8}\.parquet")  # a plan that is there names it with its sum
_BESIDE = {
    layout.REPORT: (layout.PLAN, layout.OFFSETS),
    layout.OFFSETS: (layout.PLAN,),
    layout.SCHEMAS: (layout.SCHEMAS_BEFORE,),
}
_DOCUMENTS: dict[str, type[Document]] = {
    r"plan\.json": RestorePlan,
    r"report\.json": RestoreReport,
    r"groups-before-[0-9]+\.json": GroupsBefore,
    r"settings-before-[0-9]+\.json": SettingsBefore,
    r"schemas-before\.json": SchemasBefore,
    r"schemas\.json": SchemaMap,
}


def check_drills(store: Store, keys: Collection[str], findings: Findings) -> None:
    """Each report by its own sum and its page by the report's. A page alone is of a drill that was cut off just
    then, and is nothing wrong."""
    for key in keys:
        if not key.startswith(layout.DRILLS):
            continue
        drill_id, _, name = key.removeprefix(layout.DRILLS).partition("/")
        if name not in (layout.REPORT, layout.PAGE):
            findings.note(key, "is no file of a drill")
        if name != layout.REPORT:
            continue
        with findings.catching(key):
            report = load(DrillReport, store.get(key), key)
            if report.drill_id != drill_id:
                findings.add(key, f"is of drill {report.drill_id}, not of the folder it is in", CHANGED)
            page = layout.drill_key(drill_id, layout.PAGE)
            with findings.catching(page):
                if file_sum(store.get(page)) != report.page:
                    findings.add(page, "is not what its report says", CHANGED)


def check_restores(store: Store, keys: Collection[str], archive_id: str, findings: Findings) -> None:
    """Every file by its own sum, and that it is in the folder of its restore; what must be there beside others."""
    own = [key for key in keys if _KEY.fullmatch(key)]
    for key in own:
        folder, _, name = key.rpartition("/")
        for beside in _BESIDE.get(name, ()):
            if f"{folder}/{beside}" not in keys:
                findings.add(f"{folder}/{beside}", f"is missing beside {name}", ANOTHER_COPY)
    in_threads(lambda key: _check_restore(store, key, keys, archive_id, findings), own)


def _check_restore(store: Store, key: str, keys: Collection[str], archive_id: str, findings: Findings) -> None:
    found = _KEY.fullmatch(key)
    if found is None:
        return
    restore_id, name = found.groups()
    kind = next((kind for pattern, kind in _DOCUMENTS.items() if re.fullmatch(pattern, name)), None)
    with findings.catching(key):
        if kind is not None:
            document = load(kind, store.get(key), key)
            _check_document(document, key, restore_id, archive_id, findings)
            if isinstance(document, RestorePlan) and document.segments is not msgspec.UNSET:
                with findings.catching(document.segments.key):
                    with_segments(store, document)
        elif name == layout.OFFSETS:
            decode(store.get(key), key)
        elif _PART.fullmatch(name):
            # the part before it must be there, and the one where its attempt began
            folder, _, file = key.rpartition("/")
            part, before = MapPartName.parse(file.removesuffix(".parquet")), previous_of(decode(store.get(key), key))
            if part is not None and part.number > 0:
                before = MapPartName(part.attempt, part.number - 1)
            if before is not None and f"{folder}/{before}.parquet" not in keys:
                findings.add(f"{folder}/{before}.parquet", f"is missing before {file}", ANOTHER_COPY)
        elif not _TABLE.fullmatch(name):
            findings.note(key, "is no file of a restore")


def _check_document(document: Document, key: str, restore_id: str, archive_id: str, findings: Findings) -> None:
    owner = getattr(document, "restore_id", None)
    if owner != restore_id:
        findings.add(key, f"is of restore {owner}, not of the folder it is in", CHANGED)
    if isinstance(document, GroupsBefore | SettingsBefore) and not key.endswith(f"-before-{document.number}.json"):
        findings.add(key, f"is number {document.number} of its kind", CHANGED)
    named = document.archive_id if isinstance(document, RestorePlan | RestoreReport) else ""
    if named and archive_id and named != archive_id:
        findings.add(key, f"is of a restore from archive {named}, this is {archive_id}", CHANGED)


def check_mirrors(store: Store, keys: Collection[str], findings: Findings) -> None:
    """Check every file of a flow by its own sum. A running mirror deletes the offset-map parts that it has folded."""

    def check(key: str) -> None:
        name = key.rpartition("/")[2]
        with findings.catching(key), suppress(NotFoundError):
            if name == layout.STATUS:
                load(FlowStatus, store.get(key), key)
            elif name == DOCUMENT:
                load(FlowState, store.get(key), key)
            elif name == layout.LOCK:
                read_lease(store, key)
            elif name.endswith(".parquet"):
                decode(store.get(key), key, MAP_SCHEMA)
            else:
                findings.note(key, "is no file of a mirror")

    in_threads(check, (key for key in keys if key.startswith(layout.MIRRORS)))


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


# The record of a verification in the archive.


def record_verification(store: Store, report: VerifyReport, started_at: str, *, partial: bool) -> None:
    """Store the record of a verification that has just ended; `partial`: it was of one restore point and those before.
    A folder of the Java tool, and an archive whose id can't be read, take none."""
    if report.archive_id in ("", JAVA):
        return
    scope: Scope = "partial" if partial else "full" if report.deep else "quick"
    time = started_at.replace(":", "-").replace(".", "-")
    record = Verification(
        verification_id=f"{time}-{scope}-{uuid.uuid4().hex[:8]}",
        archive_id=report.archive_id,
        tool=f"kbackup {__version__}",
        scope=scope,
        started_at=started_at,
        ended_at=now(),
        restore_points=len(report.restore_points),
        newest=max(report.restore_points, default=None),
        segments=report.segments,
        read_records=report.read_records,
        read_bytes=report.read_bytes,
        finding_count=len(report.findings),
        findings=tuple(
            VerificationFinding(file=f.file, message=f.what, hint=f.hint) for f in report.findings[:STORED_FINDINGS]
        ),
        note_count=len(report.notes),
        orphan_bytes=report.orphan_bytes,
        seconds=report.seconds,
    )
    store.put(layout.verification_key(record.verification_id), dump(record))
