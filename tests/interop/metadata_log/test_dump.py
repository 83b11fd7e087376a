"""Metadata logs of both releases, as we read them and as Kafka's own DumpLogSegments prints them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy

from kbackup.migrate.metadata_log.codec import CONTROL_RECORDS, RECORDS, MetadataRecord
from kbackup.migrate.metadata_log.image import read_metadata_log
from scripts.dev import metadata_schemas
from tests.interop.metadata_log.cluster import KAFKA_3, KAFKA_4, Release, dump, files_of
from tests.interop.metadata_log.conftest import Changed
from tests.support.metadata_records import (
    BY_KIND,
    check_as_printed,
    check_encoding,
    check_snapshots,
    read,
    write_segment,
)

_NEVER = {"UnfenceBrokerRecord", "FenceBrokerRecord", "AbortTransactionRecord"}
"""Record types that only `test_old_records` causes."""
_UNPRINTED = ("LeaderChangeMessage", 1)
"""Kafka defines it and never writes it. Its tool takes it for version 0."""
_OF_ONE = {"3.9": {"ZkMigrationStateRecord"}, "4.4": {"ClearElrRecord", "UnregisterControllerRecord"}}


def test_table_is_that_of_kafkas_definitions() -> None:
    assert metadata_schemas.read(KAFKA_4.jars()) == (RECORDS, CONTROL_RECORDS)
    for older, newest in zip(metadata_schemas.read(KAFKA_3.jars()), (RECORDS, CONTROL_RECORDS), strict=True):
        metadata_schemas.check_older(newest, older)


@pytest.mark.parametrize("release", [KAFKA_3, KAFKA_4], ids=lambda release: release.version)
def test_kafka_reads_every_record_that_is_encoded(release: Release, tmp_path: Path) -> None:
    tables = metadata_schemas.read(release.jars())
    kinds = {(s.name, v) for table in tables for s in table.values() for v in range(s.newest + 1)} - {_UNPRINTED}
    records: list[MetadataRecord] = []
    for kind in sorted(kinds):
        _collect(BY_KIND[kind], records)
    assert {(r.name, r.version) for r in records} == kinds
    path = write_segment(tmp_path, 0, *([record] for record in records))
    check_as_printed([path], dump(release, [path]))


def _collect(strategy: SearchStrategy[MetadataRecord], records: list[MetadataRecord]) -> None:
    @settings(max_examples=10, derandomize=True, database=None)
    @given(strategy)
    def collect(record: MetadataRecord) -> None:
        records.append(record)

    collect()


def test_every_record_is_as_kafka_prints_it(changed: Changed) -> None:
    names = check_as_printed(changed.files, dump(changed.release, changed.files))
    known = {schema.name for table in (RECORDS, CONTROL_RECORDS) for schema in table.values()}
    of_others = [names for version, names in _OF_ONE.items() if version != changed.release.version]
    assert names == known - _NEVER - set().union(*of_others)


def test_a_leader_change_has_version_0_with_any_kraft_version(changed: Changed) -> None:
    """Version 1 has the voters' directories, which kraft.version 1 made known. No release writes it yet."""
    features = {f.name: f.level for f in read_metadata_log(changed.folder).features or ()}
    assert features["kraft.version"] == 1
    records = [each.record for path in files_of(changed.log) for each in read(path)]
    versions = {r.version for r in records if r.name == "LeaderChangeMessage"}
    assert versions == {0}


def test_every_batch_is_encoded_as_kafka_does(changed: Changed) -> None:
    check_encoding(changed.files)


def test_replay_comes_to_what_kafkas_own_snapshots_hold(changed: Changed, tmp_path: Path) -> None:
    assert check_snapshots(changed.log, tmp_path) > 2


def test_changed_settings_are_read(changed: Changed) -> None:
    reading = read_metadata_log(changed.folder)
    assert len(reading.cluster_id) == 22
    topics = {t.name: t for t in reading.topics or () if not t.internal}
    assert topics.keys() == {"grown", "moved"}
    assert (topics["grown"].partitions, topics["grown"].replication_factor) == (5, 2)
    assert topics["grown"].configs == {"cleanup.policy": "compact,delete"}
    assert topics["moved"].replicas == ((2, 1), (2,))
    configs = {(c.broker, c.name): c.value for c in reading.broker_configs or ()}
    if changed.release is KAFKA_4:
        assert configs.pop((None, "min.insync.replicas")) == "1"  # the controller itself set it
    assert configs == {
        (None, "log.cleaner.threads"): "2",
        (None, "message.max.bytes"): "2000000",
        (1, "log.cleaner.threads"): "1",
    }
    groups = [("group é", "consumer.session.timeout.ms", "50000")] if changed.release is KAFKA_4 else []
    assert [(g.group, g.name, g.value) for g in reading.group_configs or ()] == groups
    assert [(m.name, m.configs) for m in reading.client_metrics or ()] == [
        ("latency", {"interval.ms": "5000", "metrics": "*"})
    ]
    assert {tuple(q.entity.items()): q.quotas for q in reading.client_quotas or ()} == {
        (("client-id", "app 1"), ("user", "b o%b")): {"producer_byte_rate": 1e9, "request_percentage": 12.5},
        (("client-id", "app 1"), ("user", None)): {"producer_byte_rate": 1e9, "request_percentage": 12.5},
        (("ip", "10.0.0.1"),): {"connection_creation_rate": 12.0},
        (("ip", None),): {"connection_creation_rate": 12.0},
        (("user", "b o%b"),): {"request_percentage": 12.5},
        (("user", None),): {"producer_byte_rate": 1e9, "request_percentage": 12.5},
    }
    assert {(a.resource, a.name, a.pattern, a.operation, a.permission) for a in reading.acls or ()} == {
        ("topic", "gro", "prefixed", "read", "allow"),
        ("group", "*", "literal", "all", "deny"),
        ("user", "User:y", "literal", "describe_tokens", "allow"),
    }
    assert [(u.user, u.mechanism, u.iterations) for u in reading.scram_users or ()] == [
        ("alice", "SCRAM-SHA-256", 4096),
        ("b o%b", "SCRAM-SHA-512", 8192),
    ]
    assert [(t.id, t.owner, t.renewers) for t in reading.delegation_tokens or ()] == [
        (changed.token, "User:b o%b", ("User:renewer é",))
    ]
    assert [(r.id, r.role) for r in reading.registrations or ()] == [(1, "broker"), (1, "controller")]
    assert {f.name for f in reading.features or ()} >= {"metadata.version", "kraft.version"}
    assert reading.next_producer_id == 1000
