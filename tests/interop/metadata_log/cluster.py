"""A KRaft cluster of 3.9 or 4.4, what Kafka's own tool prints of its metadata log, and what we read."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from kbackup.migrate.metadata_log.checkpoint import FIRST_SNAPSHOT, write_bootstrap
from kbackup.migrate.metadata_log.codec import MetadataRecord
from scripts.dev import classes
from scripts.dev.jars import kafka_jars, zookeeper_jars
from scripts.dev.kafka import SMALL, Broker
from tests.support.metadata_records import Dumped, parse

_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
_SASL = "listener.name.sasl"


class Release(NamedTuple):
    version: str
    jars: Callable[[], Path]
    tools: Callable[[], Path]
    dump: str
    """The class of its DumpLogSegments."""

    def run(self, program: str, *arguments: str) -> str:
        """Run one of the release's own tools, and return its output."""
        options = (
            *(*SMALL, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"),
            *("-Dfile.encoding=UTF-8", "-Dsun.stdout.encoding=UTF-8"),
        )
        argv = [*classes.java(self.jars(), self.tools()), *options, program, *arguments]
        done = subprocess.run(argv, capture_output=True, encoding="utf-8", check=False, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


KAFKA_3 = Release("3.9", zookeeper_jars, zookeeper_jars, "kafka.tools.DumpLogSegments")
KAFKA_4 = Release("4.4", kafka_jars, kafka_jars, "org.apache.kafka.tools.DumpLogSegments")


class Cluster(Broker):
    """Node 1 is broker and controller, a quorum of its own that could grow; node 2, if there is one, is a broker.

    Snapshots are frequent. `added` stands in the first snapshot of node 1 before it starts."""

    def __init__(self, release: Release, nodes: int, added: Sequence[MetadataRecord] = ()) -> None:
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
            path = self.metadata_log_dir / FIRST_SNAPSHOT
            replace_file(path, write_bootstrap(path.read_bytes(), self._added, path.name))


def replace_file(path: Path, data: bytes) -> None:
    """Write another file in the place of one that nobody may write to, as `install` does."""
    path.unlink()
    path.write_bytes(data)


def dump(release: Release, files: Sequence[Path]) -> dict[str, list[Dumped]]:
    """Return the records that DumpLogSegments prints, by file."""
    return parse(release.run(release.dump, "--cluster-metadata-decoder", "--files", ",".join(map(str, files))))


def quotas_and_users(bootstrap: str) -> list[str]:
    """Return the quotas and users that kafka-configs lists."""
    printed = [
        KAFKA_4.run("org.apache.kafka.tools.ConfigCommand", "--bootstrap-server", bootstrap, "--describe", *entities)
        for entities in (
            ("--entity-type", "users"),
            ("--entity-type", "users", "--entity-type", "clients"),
            ("--entity-type", "ips"),
        )
    ]
    return sorted(line for text in printed for line in text.splitlines())


def files_of(folder: Path) -> list[Path]:
    """The segments and the snapshots in a folder."""
    return sorted(path for path in folder.iterdir() if path.suffix in (".log", ".checkpoint"))
