"""Replay of the records of a metadata log: topics, configs, quotas, brokers and transactions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kbackup.errors import CorruptError
from kbackup.metadata.entities import (
    BROKER_SECRETS,
    BrokerConfig,
    ClientMetrics,
    ClientQuota,
    Feature,
    GroupConfig,
    Listener,
    Reading,
    Registration,
    TopicMetadata,
)
from kbackup.migrate.metadata_log.codec import MetadataRecord, record
from kbackup.migrate.metadata_log.image import MetadataImage, read_image, read_metadata_log, replay_log
from kbackup.migrate.metadata_log.log import open_log
from tests.support.healthy_cluster import ENCRYPTED
from tests.support.metadata_records import write_segment, write_snapshot

A, B = "AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg"


def _topic(name: str, id_: str, *replicas: list[int]) -> list[MetadataRecord]:
    partitions = [
        record("PartitionRecord", {"topicId": id_, "partitionId": p, "replicas": ids}) for p, ids in enumerate(replicas)
    ]
    return [record("TopicRecord", {"name": name, "topicId": id_}), *partitions]


def _config(kind: int, owner: str, name: str, value: str | None) -> MetadataRecord:
    data = {"resourceType": kind, "resourceName": owner, "name": name, "value": value}
    return record("ConfigRecord", data)


def _quota(entity: dict[str, str | None], key: str, value: float | None) -> MetadataRecord:
    pairs = [{"entityType": kind, "entityName": name} for kind, name in entity.items()]
    data = {"entity": pairs, "key": key, "value": value or 0.0, "remove": value is None}
    return record("ClientQuotaRecord", data)


def _broker(id_: int, **data: Any) -> MetadataRecord:
    endpoint = {"name": "SASL", "host": "h", "port": 65535, "securityProtocol": 2}
    return record("RegisterBrokerRecord", {"brokerId": id_, "rack": None, "endPoints": [endpoint], **data}, version=1)


def _read(folder: Path, *batches: list[MetadataRecord]) -> Reading:
    write_segment(folder, 0, *batches)
    return read_metadata_log(folder)


def test_an_image_has_the_newest_of_each_topic(tmp_path: Path) -> None:
    changed = record("PartitionChangeRecord", {"topicId": A, "partitionId": 1, "replicas": [3, 1], "isr": [3]})
    elected = record("PartitionChangeRecord", {"topicId": A, "partitionId": 0, "leader": 2})
    late = record("PartitionChangeRecord", {"topicId": B, "partitionId": 0, "replicas": [9]})
    reading = _read(
        tmp_path,
        [*_topic("b", A, [1, 2], [2, 1]), _config(2, "b", "retention.ms", "1"), _config(2, "b", "x", "y")],
        [*_topic("a", B, [1]), _config(2, "a", "x", "y"), changed, elected, _config(2, "b", "x", None)],
        [record("RemoveTopicRecord", {"topicId": B}), late, *_topic("__consumer_offsets", B, [1])],
    )
    assert reading.topics == (
        TopicMetadata(
            name="__consumer_offsets",
            id=B,
            partitions=1,
            replication_factor=1,
            internal=True,
            configs={},
            replicas=((1,),),
        ),
        TopicMetadata(
            name="b",
            id=A,
            partitions=2,
            replication_factor=2,
            internal=False,
            configs={"retention.ms": "1"},
            replicas=((1, 2), (3, 1)),
        ),
    )
    partition = read_image(tmp_path).partitions[A][0]
    assert (partition["leaderEpoch"], partition["partitionEpoch"]) == (0, 0)  # from -1
    assert (partition["leader"], partition["leaderRecoveryState"], partition["isr"]) == (2, 0, [])


def test_an_image_has_the_newest_config_of_each_resource(tmp_path: Path) -> None:
    reading = _read(
        tmp_path,
        [_config(4, "10", "a", "1"), _config(4, "9", "a", "1"), _config(4, "", "z", "2"), _config(4, "9", "a", "3")],
        [_config(16, "m", "interval.ms", "5"), _config(32, "g", "n", "7"), _config(16, "n", "metrics", "*")],
        [_config(16, "n", "metrics", None), _config(4, "10", "b", "4"), _config(4, "10", "b", None)],
    )
    assert reading.broker_configs == (
        BrokerConfig(broker=None, name="z", value="2"),
        BrokerConfig(broker=9, name="a", value="3"),
        BrokerConfig(broker=10, name="a", value="1"),
    )
    assert reading.group_configs == (GroupConfig(group="g", name="n", value="7"),)
    assert reading.client_metrics == (ClientMetrics(name="m", configs={"interval.ms": "5"}),)


def test_ciphertext_is_no_value(tmp_path: Path) -> None:
    """As controllers without password.encoder.secret copy a sensitive config from ZooKeeper."""
    reading = _read(tmp_path, [_config(4, "1", "ssl.key.password", ENCRYPTED), _config(4, "1", "a", "1")])
    assert reading.broker_configs == (
        BrokerConfig(broker=1, name="a", value="1"),
        BrokerConfig(broker=1, name="ssl.key.password", value=None),
    )
    (entry,) = reading.not_carried
    assert (entry.part, entry.what, entry.reason) == ("broker_configs", BROKER_SECRETS, "failed")
    assert "ssl.key.password without the brokers' password.encoder.secret" in entry.why


def test_an_image_has_the_quotas_that_were_not_removed(tmp_path: Path) -> None:
    reading = _read(
        tmp_path,
        [
            _quota({"user": "u", "client-id": None}, "producer_byte_rate", 1.5),
            _quota({"client-id": None, "user": "u"}, "consumer_byte_rate", 2.0),
            _quota({"ip": None}, "connection_creation_rate", 3.0),
            _quota({"user": None}, "request_percentage", 4.0),
        ],
        [_quota({"user": None}, "request_percentage", None)],
    )
    assert reading.client_quotas == (
        ClientQuota(
            entity={"client-id": None, "user": "u"}, quotas={"consumer_byte_rate": 2.0, "producer_byte_rate": 1.5}
        ),
        ClientQuota(entity={"ip": None}, quotas={"connection_creation_rate": 3.0}),
    )


def test_an_image_has_brokers_and_controllers_as_they_are_now(tmp_path: Path) -> None:
    change = {"brokerId": 1, "fenced": -1}
    reading = _read(
        tmp_path,
        [_broker(1, rack="r"), _broker(2), _broker(3, fenced=False), _broker(4)],
        [record("BrokerRegistrationChangeRecord", change), record("UnregisterBrokerRecord", {"brokerId": 4})],
        [record("UnfenceBrokerRecord", {"id": 2}), record("FenceBrokerRecord", {"id": 3})],
        [record("RegisterControllerRecord", {"controllerId": id_}) for id_ in (9, 10)],
        [record("UnregisterControllerRecord", {"controllerId": 10})],
    )
    listeners = (Listener(name="SASL", host="h", port=65535, security_protocol="SASL_PLAINTEXT"),)
    assert reading.registrations == (
        Registration(id=1, role="broker", listeners=listeners, rack="r", alive=True),
        Registration(id=2, role="broker", listeners=listeners, alive=True),
        Registration(id=3, role="broker", listeners=listeners, alive=False),
        Registration(id=9, role="controller", listeners=()),
    )


def test_features_producer_ids_and_migration(tmp_path: Path) -> None:
    control = MetadataRecord("KRaftVersionRecord", 5, 0, {"version": 0, "kRaftVersion": 1}, control=True)
    features = [
        record("FeatureLevelRecord", {"name": name, "featureLevel": level})
        for name, level in (("metadata.version", 21), ("b", 1), ("b", 0))
    ]
    reading = _read(
        tmp_path,
        [*features, record("ProducerIdsRecord", {"nextProducerId": 2000})],
        [control],
        [record("ZkMigrationStateRecord", {"zkMigrationState": 2})],
    )
    assert reading.features == (Feature(name="kraft.version", level=1), Feature(name="metadata.version", level=21))
    assert (reading.next_producer_id, reading.deletions) == (2000, ())
    assert reading.outdated == "the controllers have not copied ZooKeeper's metadata yet"
    assert read_image(tmp_path).migration == "PRE_MIGRATION"
    write_segment(tmp_path, 6, [record("ZkMigrationStateRecord", {"zkMigrationState": 1})])
    assert read_metadata_log(tmp_path).outdated == ""
    assert read_image(tmp_path).migration == "MIGRATION"
    assert MetadataImage().migration is None


def test_an_image_has_whole_transactions_alone(tmp_path: Path) -> None:
    begin, end, abort = (record(f"{word}TransactionRecord") for word in ("Begin", "End", "Abort"))
    write_segment(
        tmp_path,
        0,
        [begin, *_topic("whole", A, [1])],
        [end],
        [begin, *_topic("aborted", B, [1]), abort],
        [begin, *_topic("open", B, [1])],
    )
    image = replay_log(open_log(tmp_path))
    assert (list(image.topics.values()), image.open_transaction, image.offset) == (["whole"], 3, 11)
    write_segment(tmp_path, 11, [end])
    image = read_image(tmp_path)
    assert (list(image.topics.values()), image.open_transaction, image.offset) == (["whole", "open"], 0, 12)


def test_snapshot_and_later_records(tmp_path: Path) -> None:
    log = tmp_path / "__cluster_metadata-0"
    log.mkdir()
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=Ab_9\nnode.id=1\n")
    write_snapshot(log, 100, _topic("t", A, [1]), [_config(2, "t", "a", "b")], epoch=7)
    write_segment(log, 100, [_config(2, "t", "c", "d")], epoch=8)
    reading = read_metadata_log(tmp_path)
    assert reading.cluster_id == "Ab_9"
    assert [t.configs for t in reading.topics or ()] == [{"a": "b", "c": "d"}]
    image = read_image(log)
    assert (image.offset, image.epoch, image.torn) == (101, 8, None)
    assert read_metadata_log(log) == reading


def test_records_of_a_newer_kafka_are_named(tmp_path: Path) -> None:
    unknown = [MetadataRecord("", 99, 0, b"?"), MetadataRecord("", 99, 0, b"!"), MetadataRecord("", 2, 5, b"?")]
    reading = _read(tmp_path, unknown)
    assert [(n.what, n.reason) for n in reading.not_carried] == [
        ("TopicRecord, version 5", "not supported"),
        ("metadata record 99, version 0", "not supported"),
    ]
    assert reading.not_carried[1].why.startswith("2 such records")


def test_records_that_kafka_never_writes_are_corrupt(tmp_path: Path) -> None:
    write_segment(tmp_path, 0, [record("TopicRecord", {"name": "t", "topicId": A})])
    partition = record("PartitionRecord", {"topicId": A, "partitionId": 1})
    write_segment(tmp_path, 1, [partition])
    with pytest.raises(CorruptError, match=r"topic t has the partitions \[1\]"):
        read_metadata_log(tmp_path)
    write_segment(tmp_path, 1, [_config(4, "one", "a", "b")])
    with pytest.raises(CorruptError, match="configs of a broker whose id is no number"):
        read_metadata_log(tmp_path)
