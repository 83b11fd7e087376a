"""Names and sizes that the rules let pass, each with its reason; an exception that nothing needs is a problem."""

from __future__ import annotations

from typing import NamedTuple


class Exemption(NamedTuple):
    path: str  # of a file or a folder
    name: str  # `function`, `parameter`, `Class`, `Class.attribute` or `module.py`
    reason: str


EXEMPTIONS: list[Exemption] = [
    Exemption("kbackup/jobs/groups/apply.py", "GroupResult.left_out", "the report of a restore"),
    Exemption("kbackup/jobs/groups/job.py", "PlannedGroupReport.left_out", "the JSON of groups show"),
    Exemption("kbackup/jobs/groups/undo.py", "UndoResult.kept", "the JSON of groups undo"),
    Exemption("kbackup/jobs/metadata/compare.py", "Difference.part", "the JSON of migrate verify"),
    Exemption("kbackup/jobs/settings/acls.py", "SkippedSetting.what", "the report of a restore"),
    Exemption("kbackup/kafka/metadata_log/schema_table.py", "schema_table.py", "generated: one table"),
    Exemption("kbackup/metadata/parts.py", "parts.py", "the package gives the first word: metadata parts"),
    Exemption("kbackup/metadata/entities.py", "NotCarried.part", "a member of metadata.json"),
    Exemption("kbackup/metadata/entities.py", "NotCarried.what", "a member of metadata.json"),
    Exemption("kbackup/kafka/native/fill.py", "fill", "a kernel: its state stays in registers"),
    Exemption("kbackup/cli/adopt.py", "adopt.py", "the command adopt"),
    Exemption("kbackup/cli/keep.py", "keep.py", "the command keep"),
    Exemption("kbackup/jobs/compare/report.py", "GroupOffsetCheck.found", "the JSON of verify --against"),
    Exemption("kbackup/jobs/compare/result.py", "Difference.what", "the JSON of verify --against"),
    Exemption("kbackup/jobs/adopt", "adopt", "the command adopt"),
    Exemption("kbackup/jobs/adopt/job.py", "adopt", "the job of the command adopt"),
    Exemption("kbackup/jobs/copy/job.py", "CopyReport.found", "the JSON of copy"),
    Exemption("kbackup/jobs/drill/report.py", "DrillReport.left", "drills/<id>/report.json"),
    Exemption("kbackup/jobs/drill/report.py", "DrillReport.kept", "drills/<id>/report.json"),
    Exemption("kbackup/jobs/repair/report.py", "Mended.what", "the JSON of repair"),
    Exemption("kbackup/jobs/retention/report.py", "PointFate.records_gone", "the JSON of expire"),
    Exemption("kbackup/config/jobs.py", "Backup.adopt_topics", "the configuration's backup.adopt_topics"),
    Exemption("kbackup/config/jobs.py", "Backup.adopt_cluster", "the configuration's backup.adopt_cluster"),
    Exemption(
        "kbackup/jobs/migrate/archive.py", "PartReport", "a part of the metadata, as formats/ names it"
    ),
    Exemption("kbackup/jobs/migrate/archive.py", "PartReport.part", "the JSON of migrate archive"),
    Exemption("kbackup/jobs/migrate/archive.py", "ArchiveReport.parts", "the JSON of migrate archive"),
    Exemption("kbackup/jobs/migrate/verify.py", "VerifyReport.looks", "the JSON of migrate verify"),
    Exemption(
        "kbackup/store/options.py", "S3Options.part_size", "the configuration's s3.part_size, as S3 names it"
    ),
    Exemption(
        "kbackup/store/options.py", "S3Options.parts_in_flight", "the configuration's s3.parts_in_flight"
    ),
    Exemption("scripts/bench", "requests.py", "one table of requests: its steps, its count, its text"),
    Exemption("scripts/docs/outputs/working.py", "RotationOutput.left", "the JSON of key rotate"),
    Exemption("scripts/bench/targets.py", "Verdict.what", "the benchmark's JSON"),
    Exemption("scripts/bench/sizing.py", "Cluster.keep", "the formulas' word in infra/docs/sizing.md"),
    Exemption(
        "tests/contract", "test_s3_security.py", "the tests of one MinIO with a key service, started once"
    ),
    Exemption("tests/faults", "test_mirror_apply.py", "the tests of one shop and its archive, made once"),
    Exemption("tests/integration", "test_delta.py", "the tests of one table, exported once"),
    Exemption(
        "tests/integration/test_expire.py",
        "test_retained_points_are_restored_and_backups_go_on",
        "one history of an archive, step by step",
    ),
    Exemption("tests/integration", "test_groups.py", "the tests of one restore, made once"),
    Exemption("tests/integration", "test_least_privilege.py", "the tests of one document's rights"),
    Exemption("tests/integration", "test_point_in_time.py", "the tests of one history, made once"),
    Exemption(
        "tests/integration", "test_producing.py", "the tests of one producer, each in both of its ways"
    ),
    Exemption("tests/integration", "test_secured.py", "the tests of one secured cluster and its user"),
    Exemption("tests/integration", "test_settings.py", "the tests of two clusters, started once"),
    Exemption("tests/integration", "test_spark_source.py", "the tests of one session's data source"),
    Exemption("tests/integration", "test_web_page.py", "the tests of one browser and server, started once"),
    Exemption("tests/integration", "test_whole_metadata.py", "the tests of two clusters, started once"),
    Exemption("tests/project/docs", "test_archive_format.py", "the tests of one archive with every file"),
    Exemption("tests/interop/migration", "test_walk.py", "one walk through a migration of one cluster"),
    Exemption("tests/unit/archive/catalog", "test_state.py", "one state machine: its rules share its state"),
    Exemption("kbackup/archive/query/sums.py", "Sums.gaps", "the member `gaps` of `info --json`"),
    Exemption("kbackup/archive/query/window.py", "Choice.left_out", "`choice.left_out` in plans and reports"),
    Exemption("kbackup/archive/verify/findings.py", "Finding.what", "the member `what` of `verify --json`"),
    Exemption("kbackup/archive/verify/findings.py", "Note.what", "the member `what` of `verify --json`"),
]
