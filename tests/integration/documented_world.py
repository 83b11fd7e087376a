"""The world that the documents speak of: two clusters, buckets, registries, topics, groups and restore points."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from kbackup.mirror.records import Checkpoint, Heartbeat, OffsetSync
from kbackup.types import TopicPartition
from scripts.dev.kafka import Broker
from scripts.dev.s3 import Minio
from tests.integration.conftest import run_command
from tests.support.confluent_registry import ConfluentRegistry
from tests.support.truth import Position, commit, group_names

BUCKETS = ("my-backups", "elsewhere", "lake")
ARCHIVE = "s3://my-backups/kafka"
ORDER = """{"type": "record", "name": "Order", "fields": [
  {"name": "item", "type": "string"}, {"name": "amount", "type": "int"}]}"""
FILES = {
    "order.avsc": ORDER,
    "shop.proto": 'syntax = "proto3"; package shop; message Order { string item = 1; }',
    "key.json": '{"type": "string"}',
    "request-113.txt": "key-7\nkey-8\n",
}
WITH_ACLS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
"""Properties of the brokers: the documents restore ACLs, which a cluster without an authorizer does not have."""

READERS_ACL = AclBinding(
    ResourceType.TOPIC,
    "orders",
    ResourcePatternType.LITERAL,
    "User:reader",
    "*",
    AclOperation.READ,
    AclPermissionType.ALLOW,
)
ANY_ACL = (ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY)
EVERY_ACL = AclBindingFilter(*ANY_ACL)  # type: ignore[arg-type]  # None stands for any name, and the types don't know it

_PARTITIONS = {"orders": 4, "clicks": 2, "payments.eu": 2, "profiles": 1, "customers": 1}
_STATUSES = ("paid", "failed", "lost")


@dataclass
class World:
    """What the lines of a page run in: `folder` is the working folder, `moment` the time that windows end at."""

    source: Broker
    target: Broker
    server: Minio
    registry: ConfluentRegistry
    spark: object
    template: Path
    folder: Path = Path()
    moment: str = ""
    start: str = ""
    target_registry: ConfluentRegistry = field(default_factory=ConfluentRegistry)
    _archive: dict[str, bytes] = field(default_factory=dict)
    """The objects of the archive when a page begins, by key."""

    def make(self) -> None:
        """Fill the source, take the restore points that the documents name, and keep the archive as a template."""
        self.start = _now()
        for topic, partitions in _PARTITIONS.items():
            compacted = {"cleanup.policy": "compact"} if topic in ("profiles", "customers") else {}
            self.source.create_topic(topic, partitions, config=compacted)
        admin = AdminClient(self.source.client(log_level=0))
        for made in admin.create_acls([READERS_ACL]).values():
            made.result(30)
        for name in BUCKETS:
            self.server.create_bucket(name)
        self._produce_internal_topics()
        self.open_folder(self.template)
        self._produce({0: 180, 1: 20, 2: 700, 3: 200})
        self._commit_groups(100)
        self._back_up()
        self._produce({0: 20, 1: 20, 2: 700, 3: 40})
        self._commit_groups(150)
        self._back_up()
        self.moment = _now()
        self._produce({0: 20, 1: 10, 2: 20, 3: 20})
        self._back_up()
        client = self.server.client()
        for key in self._keys("my-backups"):
            self._archive[key] = client.get_object(Bucket="my-backups", Key=key)["Body"].read()
        self._run("backup", "--archive", str(self.template / "plain"), "--set", "backup.compression=none")

    def reset(self, folder: Path) -> None:
        """Begin a page: the archive with its three restore points, an empty target, nothing anywhere else."""
        for name in BUCKETS:
            self._empty_bucket(name)
        client = self.server.client()
        for key, data in self._archive.items():
            client.put_object(Bucket="my-backups", Key=key, Body=data)
        self.empty_target()
        self.open_folder(folder)

    def open_folder(self, folder: Path) -> None:
        """Write the files that the documents expect in the working folder."""
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self._write_config("kbackup.toml", ARCHIVE, self.source, self.target)
        self._write_config("same-cluster/kbackup.toml", ARCHIVE, self.source, self.source)
        self._write_config("back/kbackup.toml", "s3://my-backups/new-kafka", self.target, self.source)
        for name, text in FILES.items():
            (folder / name).write_text(text)
        keys = f"aws_access_key_id = {self.server.access_key}\naws_secret_access_key = {self.server.secret_key}\n"
        (folder / "aws.secret").write_text(f"[vault]\n{keys}")
        for name in ("mnt", "srv", "backups", "etc/kbackup", "var/www", "var/lib/node_exporter"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def _write_config(self, name: str, archive: str, source: Broker, target: Broker) -> None:
        text = f"""
            archive = "{archive}"
            [source]
            bootstrap.servers = "{source.bootstrap}"
            [target]
            bootstrap.servers = "{target.bootstrap}"
            [schema_registry]
            url = "{self.registry.url}"
            [target_schema_registry]
            url = "{self.target_registry.url}"
            [restore]
            replication_factor = 1
            """
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{text}\n{self.server.toml}")

    def empty_target(self) -> None:
        """Delete what a restore has made: topics and groups of the target, schemas, and its files in the archive."""
        admin = AdminClient(self.target.client(log_level=0))
        topics = [name for name in admin.list_topics(timeout=10).topics if not name.startswith("__")]
        if topics:
            for deleted in admin.delete_topics(topics).values():
                deleted.result(30)
        groups = sorted(group_names(admin))
        if groups:
            for deleted in admin.delete_consumer_groups(groups).values():
                deleted.result(30)
        for removed in admin.delete_acls([EVERY_ACL]).values():
            removed.result(30)
        self.target_registry.subjects.clear()
        self._empty_bucket("my-backups", "kafka/restores/")

    def empty_archive(self) -> None:
        self._empty_bucket("my-backups")

    def write_java_folders(self) -> None:
        """Make the folders of the Java tool that the documents name. An archive's plain segments are in its format."""
        for name in ("mnt/kafka-backup", "backups/kafka"):
            shutil.copytree(self.template / "plain" / "topics", self.folder / name, dirs_exist_ok=True)

    def start_producers_on_the_target(self) -> None:
        """Clients have moved: note the time, and write orders into the new cluster."""
        self.moment = _now()
        producer = Producer(self.target.client(log_level=0))
        producer.produce("orders", b"{}", b"customer-17", 0)
        assert producer.flush(30) == 0

    def _produce(self, orders: dict[int, int]) -> None:
        """Write JSON orders, but Avro into partition 1, and some records into the other topics."""
        producer = Producer(self.source.client(log_level=0))
        serialize = AvroSerializer(SchemaRegistryClient({"url": self.registry.url}), ORDER)
        context = SerializationContext("orders", MessageField.VALUE)
        headers: list[tuple[str, str | bytes | None]] = [("traceparent", b"00-25b"), ("retries", b"5")]
        for partition, count in orders.items():
            for number in range(count):
                key = f"customer-{number % 40}"
                if partition == 1:
                    value = serialize({"item": "pen", "amount": number}, context)
                else:
                    fields = {"id": number, "status": _STATUSES[number % 3], "amount": number}
                    value = json.dumps(fields).encode()
                producer.produce("orders", value, key, partition, headers=headers)
        for topic in _PARTITIONS:
            if topic != "orders":
                for number in range(10):
                    producer.produce(topic, b'{"from": "somewhere"}', f"key-{number}", 0)
        assert producer.flush(30) == 0

    def _produce_internal_topics(self) -> None:
        """Write a record of each kind that MirrorMaker 2 writes."""
        orders = TopicPartition("orders", 0)
        records: dict[str, Heartbeat | Checkpoint | OffsetSync] = {
            "heartbeats": Heartbeat("us-west", "us-east", 1_700_000_000_000),
            "us-west.checkpoints.internal": Checkpoint("shipping", orders, 100, 90, ""),
            "mm2-offset-syncs.us-west.internal": OffsetSync(orders, 100, 90),
        }
        producer = Producer(self.source.client(log_level=0))
        for topic, record in records.items():
            self.source.create_topic(topic)
            producer.produce(topic, record.value, record.key)
        assert producer.flush(30) == 0

    def _commit_groups(self, offset: int) -> None:
        here = Position(offset, "")
        commit(self.source.bootstrap, "shipping", {("orders", 0): here, ("orders", 3): here})
        commit(self.source.bootstrap, "billing", {("payments.eu", 0): Position(10, "")})

    def _back_up(self) -> None:
        self._run("backup")

    def _run(self, *arguments: str) -> None:
        outcome = run_command(self.spark, self.folder / "kbackup.toml", arguments)
        assert outcome.code == 0, outcome

    def _keys(self, bucket: str, prefix: str = "") -> list[str]:
        listed = self.server.client().list_objects_v2(Bucket=bucket, Prefix=prefix)
        assert not listed["IsTruncated"]
        return [entry["Key"] for entry in listed.get("Contents", [])]

    def _empty_bucket(self, bucket: str, prefix: str = "") -> None:
        keys = self._keys(bucket, prefix)
        if keys:
            self.server.client().delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key} for key in keys]})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
