"""Names and sizes that the rules let pass, each with its reason; an exception that nothing needs is a problem."""

from __future__ import annotations

from typing import NamedTuple


class Exemption(NamedTuple):
    path: str  # of a file or a folder
    name: str  # `function`, `parameter`, `Class`, `Class.attribute` or `module.py`
    reason: str


EXEMPTIONS: list[Exemption] = [
    Exemption("kbackup/kafka/metadata_log/schema_table.py", "schema_table.py", "generated: one table"),
    Exemption("kbackup/metadata/parts.py", "parts.py", "the package gives the first word: metadata parts"),
    Exemption("kbackup/metadata/entities.py", "NotCarried.part", "a member of metadata.json"),
    Exemption("kbackup/metadata/entities.py", "NotCarried.what", "a member of metadata.json"),
    Exemption("kbackup/kafka/native/fill.py", "fill", "a kernel: its state stays in registers"),
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
    Exemption(
        "tests/contract", "test_s3_security.py", "the tests of one MinIO with a key service, started once"
    ),
    Exemption("tests/faults", "test_mirror_apply.py", "the tests of one shop and its archive, made once"),
    Exemption("tests/interop/migration", "test_walk.py", "one walk through a migration of one cluster"),
]
