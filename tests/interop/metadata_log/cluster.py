"""A KRaft cluster of 3.9 or 4.3, what Kafka's own tool prints of its metadata log, and what we read."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kbackup.kafka.metadata_log.batches import LogRecord
from kbackup.kafka.metadata_log.bootstrap import write_bootstrap
from kbackup.kafka.metadata_log.codec import Record
from kbackup.kafka.metadata_log.log import read_segment
from kbackup.kafka.metadata_log.schema import Field
from kbackup.kafka.metadata_log.schema_table import CONTROL_RECORDS, RECORDS
from scripts.dev import tools
from scripts.dev.jars import kafka_jars, mirror_jars, zookeeper_jars
from scripts.dev.kafka import Broker

_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
_SASL = "listener.name.sasl"


class Release(NamedTuple):
    version: str
    jars: Callable[[], Path]
    tools: Callable[[], Path]
    dump: str
    """The class of its DumpLogSegments."""

    def run(self, program: str, *arguments: str) -> str:
        """What one of the release's own tools prints."""
        classpath = f"{self.tools()}/*:{self.jars()}/*"
        quiet = ("-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
        argv = [tools.java(), *quiet, "-cp", classpath, program, *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


KAFKA_3 = Release("3.9", zookeeper_jars, zookeeper_jars, "kafka.tools.DumpLogSegments")
KAFKA_4 = Release("4.3", kafka_jars, mirror_jars, "org.apache.kafka.tools.DumpLogSegments")


class Cluster(Broker):
    """Node 1 is broker and controller, a quorum of its own that could grow; node 2, if there is one, is a broker.

    Snapshots are frequent. `added` stands in the bootstrap.checkpoint of node 1 before it starts."""

    def __init__(self, release: Release, nodes: int, added: Sequence[Record] = ()) -> None:
        self.release = release
        self._added = added
        properties = {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:b o%b",
            "delegation.token.secret.key": "the key of tests",
            "metadata.log.max.record.bytes.between.snapshots": "3000",
            f"{_SASL}.sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
            f"{_SASL}.scram-sha-256.sasl.jaas.config": _SCRAM,
            f"{_SASL}.scram-sha-512.sasl.jaas.config": _SCRAM,
        }
        super().__init__(properties, nodes, listeners={"SASL": "SASL_PLAINTEXT"}, jars=release.jars)

    @property
    def metadata_log_dir(self) -> Path:
        return self.folder / "node-0" / "data"

    def scram(self, user: str, password: str, mechanism: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap_of("SASL"),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
            "log_level": 0,
        }

    def _node_properties(self, node: int) -> dict[str, str]:
        properties = super()._node_properties(node)
        del properties["controller.quorum.voters"]
        properties["controller.quorum.bootstrap.servers"] = self.bootstrap_of("CONTROLLER").split(",")[0]
        if node:
            listeners = properties["listeners"].split(",")
            properties["listeners"] = ",".join(each for each in listeners if "CONTROLLER" not in each)
            properties["process.roles"] = "broker"
        return properties

    def _format(self, node: int, properties: Path, *arguments: str) -> None:
        super()._format(node, properties, "--no-initial-controllers" if node else "--standalone")
        if self._added and not node:
            path = self.metadata_log_dir / "bootstrap.checkpoint"
            path.write_bytes(write_bootstrap(path.read_bytes(), self._added))


class Dumped(NamedTuple):
    """A record as DumpLogSegments prints it, and as `as_dumped` makes it of ours."""

    offset: int
    timestamp: int
    name: str
    version: int
    data: dict[str, Any]


_RECORD = re.compile(r"^\| offset: (\d+) CreateTime: (\d+) .*? headerKeys: \[\] (?:payload: )?(.*)$")
_CONTROL = {
    "LeaderChange": "LeaderChangeMessage",
    "SnapshotHeader": "SnapshotHeaderRecord",
    "SnapshotFooter": "SnapshotFooterRecord",
    "KRaftVersion": "KRaftVersionRecord",
    "KRaftVoters": "VotersRecord",
}


def dump(release: Release, files: Sequence[Path]) -> dict[str, list[Dumped]]:
    """What DumpLogSegments prints of each file."""
    printed = release.run(release.dump, "--cluster-metadata-decoder", "--files", ",".join(map(str, files)))
    found: dict[str, list[Dumped]] = {}
    for line in printed.splitlines():
        if line.startswith("Dumping "):
            records = found.setdefault(Path(line.removeprefix("Dumping ")).name, [])
        elif match := _RECORD.match(line):
            records.append(_dumped(int(match[1]), int(match[2]), match[3]))
        else:
            assert not line.startswith("|"), line
    return found


def _dumped(offset: int, timestamp: int, text: str) -> Dumped:
    if text.startswith("{"):
        value = json.loads(text)
        name = "".join(word.capitalize() for word in value["type"].split("_"))
        return Dumped(offset, timestamp, name, value["version"], value["data"])
    kind, _, rest = text.partition(" ")
    data = json.loads(rest)
    return Dumped(offset, timestamp, _CONTROL[kind.rstrip(":")], data["version"], data)


def read(path: Path) -> list[LogRecord]:
    return [record for batch in read_segment(path) for record in batch.records]


def as_dumped(each: LogRecord) -> Dumped:
    record = each.record
    schema = (CONTROL_RECORDS if record.control else RECORDS)[record.number]
    assert isinstance(record.data, dict)
    return Dumped(each.offset, each.timestamp, record.name, record.version, _json(schema.fields, record.data))


def _json(fields: Sequence[Field], data: Mapping[str, Any]) -> dict[str, Any]:
    """As Kafka's converters: bytes in base64; tagged fields only where they differ from their default."""
    return {
        field.name: _value(field, data[field.name])
        for field in fields
        if field.name in data and (field.tag is None or data[field.name] != field.default_value())
    }


def _value(field: Field, value: Any) -> Any:
    if isinstance(value, list):
        return [_value(field, each) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return _json(field.fields, value) if isinstance(value, dict) else value


def files_of(folder: Path) -> list[Path]:
    """The segments and the snapshots in a folder."""
    return sorted(path for path in folder.iterdir() if path.suffix in (".log", ".checkpoint"))
