"""Metadata logs of both releases, as we read them and as Kafka's own DumpLogSegments prints them."""

from __future__ import annotations

import shutil
from pathlib import Path

from kbackup.kafka.metadata_log.batches import encode_batch
from kbackup.kafka.metadata_log.entities import read_metadata_log, reading_of
from kbackup.kafka.metadata_log.image import read_image, replay_log
from kbackup.kafka.metadata_log.log import MetadataLog, open_log, read_segment
from kbackup.kafka.metadata_log.schema_table import CONTROL_RECORDS, RECORDS
from scripts.dev import metadata_schemas
from tests.interop.metadata_log.cluster import KAFKA_3, KAFKA_4, as_dumped, dump, read
from tests.interop.metadata_log.conftest import Changed

_NEVER = {
    "UnfenceBrokerRecord",  # older Kafkas wrote both
    "FenceBrokerRecord",
    "AbortTransactionRecord",  # of a controller that gave up its transaction
}
_OF_ONE = {"3.9": "ZkMigrationStateRecord", "4.3": "ClearElrRecord"}


def test_table_is_that_of_kafkas_definitions() -> None:
    assert metadata_schemas.read(KAFKA_4.jars()) == (RECORDS, CONTROL_RECORDS)
    for older, newest in zip(metadata_schemas.read(KAFKA_3.jars()), (RECORDS, CONTROL_RECORDS), strict=True):
        metadata_schemas.check_older(newest, older)


def test_every_record_is_as_kafka_prints_it(changed: Changed) -> None:
    files = changed.files
    printed = dump(changed.release, files)
    assert [path.name for path in files] == list(printed)
    names = set()
    for path in files:
        ours = [as_dumped(record) for record in read(path)]
        for our, theirs in zip(ours, printed[path.name], strict=True):
            assert our == theirs, path.name
        names |= {record.name for record in ours}
    known = {schema.name for table in (RECORDS, CONTROL_RECORDS) for schema in table.values()}
    others = {name for version, name in _OF_ONE.items() if version != changed.release.version}
    assert names == known - _NEVER - others


def test_every_batch_is_encoded_as_kafka_does(changed: Changed) -> None:
    for path in changed.files:
        data = path.read_bytes()
        for batch in read_segment(path):
            ours = encode_batch(
                batch.base_offset, batch.epoch, batch.timestamp, [r.record for r in batch.records]
            )
            assert ours == data[batch.position : batch.position + len(ours)], (path.name, batch)


def test_replay_comes_to_what_kafkas_own_snapshots_hold(changed: Changed, tmp_path: Path) -> None:
    (segment,) = changed.log.glob("*.log")
    snapshots = sorted(changed.log.glob("*.checkpoint"))
    assert len(snapshots) > 2
    for path in snapshots[1:]:
        end = int(path.name[:20])
        ended = [batch for batch in read_segment(segment) if batch.last_offset < end]
        assert ended[-1].last_offset == end - 1
        shutil.copy(snapshots[0], tmp_path)  # the voters, from before the first record
        size = next(
            (b.position for b in read_segment(segment) if b.base_offset >= end), segment.stat().st_size
        )
        (tmp_path / segment.name).write_bytes(segment.read_bytes()[:size])
        replayed = read_image(tmp_path)
        kept = replay_log(MetadataLog(changed.log, open_log(changed.log).snapshot._replace(path=path), []))  # type: ignore[union-attr]
        assert reading_of(replayed, "") == reading_of(kept, "")
        assert replayed.partitions == kept.partitions


def test_what_was_changed_is_read(changed: Changed) -> None:
    reading = read_metadata_log(changed.folder)
    assert len(reading.cluster_id) == 22
    topics = {t.name: t for t in reading.topics or () if not t.internal}
    assert topics.keys() == {"grown", "moved"}
    assert (topics["grown"].partitions, topics["grown"].replication_factor) == (5, 2)
    assert topics["grown"].configs == {"cleanup.policy": "compact,delete"}
    assert topics["moved"].replicas == ((2, 1), (2,))
    configs = {(c.broker, c.name): c.value for c in reading.broker_configs or ()}
    assert configs == {
        (None, "log.cleaner.threads"): "2",
        (None, "message.max.bytes"): "2000000",
        (1, "log.cleaner.threads"): "1",
    }
    assert [(g.group, g.name, g.value) for g in reading.group_configs or ()] == [
        ("group é", "consumer.session.timeout.ms", "50000")
    ]
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
