"""The verification job: whether an archive still holds what its restore points promise. Every finding is listed.

It reads every object of an archive, with the files of drills, restores, mirrors and verifications, and keeps a record
of itself in the archive: verifications/<id>/report.json.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import msgspec

from kbackup import __version__, systems
from kbackup.archive import layout
from kbackup.archive.catalog.state import State
from kbackup.archive.derived import derived_files
from kbackup.archive.identity import ANOTHER_COPY
from kbackup.archive.java import JavaFolder
from kbackup.archive.models import Document, dump, file_sum, load
from kbackup.archive.query.java import JAVA, is_java_archive, java_topics
from kbackup.archive.restores.map_parts import MapPartName, previous_of
from kbackup.archive.restores.offset_map import decode
from kbackup.archive.restores.plan import RestorePlan, with_segments
from kbackup.archive.restores.target_topics import TargetTopics
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
from kbackup.errors import NoArchiveError
from kbackup.jobs.common import sizes_outside_topics
from kbackup.jobs.drill.report import DrillReport
from kbackup.jobs.groups.documents import GroupsBefore
from kbackup.jobs.keys import check_data_keys
from kbackup.jobs.restore.report import RestoreReport
from kbackup.jobs.schemas.documents import SchemaMap, SchemasBefore
from kbackup.jobs.settings.documents import SettingsBefore
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
    """The result of a verification.

    `restore_points` are the numbers of the restore points that were verified; a folder of the Java tool has none.
    `read_records` and `read_bytes` are what was read back. `orphan_bytes` is the size of the objects that belong to no
    restore point.
    """

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
    """The function of tasks that read segments back. A task has segments, and the keys of their objects that are
    lacking; it yields one result for all of its segments."""

    store: Store

    def __call__(
        self, task: tuple[Sequence[Segment], Collection[str]], progress: ProgressSender
    ) -> Iterator[SegmentResult]:
        segments, lacking = task
        results: list[SegmentResult] = []
        for segment in segments:
            result = check_segment(self.store, segment, lacking)
            progress.add(result.records, result.bytes)
            results.append(result)
        yield _sum(results)


def verify(store: Store, point: str, quick: bool, spark: Spark, listener: ProgressListener) -> VerifyReport:
    """Verify all of an archive, or a restore point with all before it.

    `point` is 'all', or a restore point (a number, a label, or 'latest'). A `quick` verification compares the size of
    every object, and its checksum if the store keeps one, without Spark. Otherwise every segment is read back as well.
    """
    phases = Phases(listener)
    findings = Findings()
    with phases.step("list objects"):
        sizes = sizes_outside_topics(store)
    segments: Sequence[Segment]
    lacking: Collection[str]
    # An archive that lost archive.json is one all the same: the loss is a finding.
    is_archive = layout.ARCHIVE in sizes or any(key.startswith((layout.CATALOG, layout.POINTS)) for key in sizes)
    if is_archive:
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
            tasks = _make_tasks(segments, lacking)
            records = sum_of(segments, "count")
            results = run_counted(spark, tasks, VerifyWork(store), listener, records)
            read = _sum(results)
    found = findings.entries.union(read.findings)
    orphan_bytes = sum(note.bytes for note in findings.notes)
    return VerifyReport(
        archive=store.url,
        archive_id=archive_id,
        deep=not quick,
        restore_points=numbers,
        segments=count,
        read_records=read.records,
        read_bytes=read.bytes,
        findings=tuple(sorted(found)),
        notes=tuple(sorted(findings.notes)),
        orphan_bytes=orphan_bytes,
        seconds=phases.seconds,
    )


def _make_tasks(
    segments: Sequence[Segment], lacking: Collection[str]
) -> list[tuple[Sequence[Segment], Collection[str]]]:
    """Distribute segments over tasks, each with the keys of its objects that are lacking. Big tasks come first."""
    stored_sizes = (size for (size,) in rows_of(segments, "stored"))
    parts = [segments[part] for part in cut(stored_sizes, _TASK_BYTES, _TASK_SEGMENTS)]
    parts.sort(key=_stored_size, reverse=True)
    return [(part, _lacking_of(part, lacking)) for part in parts]


def _stored_size(segments: Sequence[Segment]) -> int:
    return sum_of(segments, "stored")


def _survey(
    store: Store, sizes: dict[str, int], name: str, quick: bool, phases: Phases, findings: Findings
) -> tuple[str, tuple[int, ...], int, Segments, Collection[str]]:
    """Verify everything but the content of segments.

    Return the archive's id, the numbers of the verified restore points, the number of their segments, the segments to
    read, and the keys of their objects that are lacking. `sizes` gets the objects under topics/ that are not the
    expected objects of a segment.
    """
    # Damage does not end a verification: what can still be read is verified, and each finding is listed once.
    with phases.step("restore points"):
        surveyed = catalog.survey(store, sizes, findings)
        archive = surveyed.archive
        numbers = tuple(p.number for p in surveyed.points)
        if name != "all" and archive is not None and numbers:
            last = archive.find_point(name).number
            numbers = tuple(number for number in numbers if number <= last)
        state = archive.state if archive is not None else State("")
        added = ordered([state.segments.read()], checked=True)
        for key, error in added.segments.wrong_keys():
            findings.entries.add(of_error(key, error))
        catalog.check_vectors(state, surveyed.manifests, added, findings)
        archive_id = archive.info.id if archive is not None else surveyed.archive_id
        check_restores(store, sizes, archive_id, findings)
        systems.check_files(store, sizes, findings)
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
            derived_keys = derived.keys() or _derived_names(sizes)
            catalog.note_orphans(sizes, referred | derived_keys, surveyed.whole, findings)
        if derived and catalog.can_judge(store, surveyed):
            catalog.check_derived(store, derived, sizes, not quick, findings)
        elif surveyed.points:
            findings.note("topics/", "has derived files that could not be judged now")
    return surveyed.archive_id, numbers, len(segments), remaining, lacking


def _lacking_of(segments: Sequence[Segment], lacking: Collection[str]) -> Collection[str]:
    """Return the keys in `lacking` that are of objects of these segments."""
    if not lacking:  # the usual case: no key of an object is built then
        return ()
    keys: set[str] = set()
    for pair in objects_of(segments):
        keys.update(expected.key for expected in pair if expected.key in lacking)
    return keys


def _derived_names(sizes: Mapping[str, int]) -> set[str]:
    """Return the objects that have names of derived files, for archives whose damage hides which files are expected."""
    keys: set[str] = set()
    for key in sizes:
        if layout.parse_topic_key(key) is None:
            continue
        name = key.rpartition("/")[2]
        if layout.parse_partition_index(name) is not None or layout.parse_group_offsets(name) is not None:
            keys.add(key)
    return keys


def _sum(results: Sequence[SegmentResult]) -> SegmentResult:
    """Return one result for all of `results`."""
    records = sum(result.records for result in results)
    size = sum(result.bytes for result in results)
    findings = chain.from_iterable(result.findings for result in results)
    return SegmentResult(records, size, tuple(findings))


def count_verification(report: VerifyReport) -> None:
    """Count what a verification did, for Prometheus."""
    counted.add("kbackup_records_total", report.read_records)
    counted.add("kbackup_bytes_total", report.read_bytes)
    counted.add("kbackup_segments_total", report.segments)
    counted.put("kbackup_findings", len(report.findings))


# Verify files that no restore point needs: those of drills, restores, mirrors and earlier verifications.


_KEY = re.compile(r"restores/([^/]+)/(.+)")
_PART = re.compile(r"map/[0-9]+/[^/]+\.parquet")
_TABLE = re.compile(r"segments-[0-9a-f]{8}\.parquet")  # a plan that is there names it with its sum
_BESIDE = {
    layout.REPORT: (layout.PLAN, layout.OFFSETS),
    layout.OFFSETS: (layout.PLAN,),
    layout.SCHEMAS: (layout.SCHEMAS_BEFORE,),
}
"""Files of a restore, each with the files that must exist beside it."""
_DOCUMENTS: dict[str, type[Document]] = {
    r"plan\.json": RestorePlan,
    r"report\.json": RestoreReport,
    r"groups-before-[0-9]+\.json": GroupsBefore,
    r"settings-before-[0-9]+\.json": SettingsBefore,
    r"schemas-before\.json": SchemasBefore,
    r"schemas\.json": SchemaMap,
    r"topics-[0-9]+\.json": TargetTopics,
}


def check_drills(store: Store, keys: Collection[str], findings: Findings) -> None:
    """Check each report of a drill by its own sum, and its page by the sum in the report. A page without a report is
    of a drill that was killed between writing the two, and no finding."""
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
    """Check every file of a restore by its own sum, that it is in the folder of its restore, and that the files exist
    which it needs beside it."""
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
    kind = _kind_of(name)
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
            # The part before this one must exist. The first part of an attempt names the part of an earlier attempt
            # after which it began.
            folder, _, file = key.rpartition("/")
            before = previous_of(decode(store.get(key), key))
            part = MapPartName.parse(file.removesuffix(".parquet"))
            if part is not None and part.number > 0:
                before = MapPartName(part.attempt, part.number - 1)
            if before is not None and f"{folder}/{before}.parquet" not in keys:
                findings.add(f"{folder}/{before}.parquet", f"is missing before {file}", ANOTHER_COPY)
        elif not _TABLE.fullmatch(name):
            findings.note(key, "is no file of a restore")


def _kind_of(name: str) -> type[Document] | None:
    """Return the model of a document of a restore, by the name of its file; None for other files."""
    for pattern, kind in _DOCUMENTS.items():
        if re.fullmatch(pattern, name):
            return kind
    return None


def _check_document(document: Document, key: str, restore_id: str, archive_id: str, findings: Findings) -> None:
    """Check that a document is of the restore, the number and the archive that its key says."""
    owner = getattr(document, "restore_id", None)
    if owner != restore_id:
        findings.add(key, f"is of restore {owner}, not of the folder it is in", CHANGED)
    numbered = GroupsBefore | SettingsBefore | TargetTopics
    if isinstance(document, numbered) and not key.endswith(f"-{document.number}.json"):
        findings.add(key, f"is number {document.number} of its kind", CHANGED)
    named = document.archive_id if isinstance(document, RestorePlan | RestoreReport | TargetTopics) else ""
    if named and archive_id and named != archive_id:
        findings.add(key, f"is of a restore from archive {named}, this is {archive_id}", CHANGED)


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
    """Store the record of a verification that has just ended. A `partial` verification was of one restore point and
    those before it. A folder of the Java tool, and an archive whose id can't be read, get no record."""
    if report.archive_id in ("", JAVA):
        return
    scope: Scope = "full" if report.deep else "quick"
    if partial:
        scope = "partial"
    time = started_at.replace(":", "-").replace(".", "-")
    suffix = uuid.uuid4().hex[:8]
    findings: list[VerificationFinding] = []
    for finding in report.findings[:STORED_FINDINGS]:
        findings.append(VerificationFinding(file=finding.file, message=finding.what, hint=finding.hint))
    record = Verification(
        verification_id=f"{time}-{scope}-{suffix}",
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
        findings=tuple(findings),
        note_count=len(report.notes),
        orphan_bytes=report.orphan_bytes,
        seconds=report.seconds,
    )
    store.put(layout.verification_key(record.verification_id), dump(record))
