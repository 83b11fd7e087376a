"""Clusters with ZooKeeper that have all kinds of metadata, and what Kafka's own admin client says of them."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kbackup.archive import layout
from kbackup.archive.models import Metadata
from kbackup.archive.reader import open_archive
from kbackup.cli import main
from kbackup.metadata.sources import ZooKeeperOptions
from kbackup.store import open_store
from scripts.dev.zookeeper import MigratingCluster
from tests.interop.migration import content
from tests.support.java import Java

_SCRAM_LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule required"


@dataclass(frozen=True)
class Filled:
    """A running cluster with the metadata of `content`. The user alice may do everything."""

    cluster: MigratingCluster
    java: Java
    zookeeper: ZooKeeperOptions

    def fill(self, made: dict[str, Any]) -> None:
        """Create what `ClusterMetadata apply` takes; tokens as alice, who must be there."""
        tokens = made.pop("delegation_tokens", [])
        self._tool("apply", self._anybody(), made)
        self._tool("apply", self._alice(), {"delegation_tokens": tokens})

    def listed(self) -> dict[str, Any]:
        """The metadata as Kafka's own client lists it."""
        parsed: dict[str, Any] = json.loads(self._tool("list", self._alice(), {}))
        return parsed

    def _tool(self, command: str, properties: dict[str, str], stdin: dict[str, Any]) -> str:
        file = self.cluster.folder / "client.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        return self.java.run("ClusterMetadata", command, str(file), stdin=json.dumps(stdin))

    def _anybody(self) -> dict[str, str]:
        return {"bootstrap.servers": self.cluster.bootstrap}

    def _alice(self) -> dict[str, str]:
        login = f'{_SCRAM_LOGIN} username="alice" password="{content.USERS["alice"]}";'
        return {
            "bootstrap.servers": self.cluster.bootstrap_of("SASL"),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": login,
        }


class Migrated(NamedTuple):
    """What `kbackup migrate` ended with."""

    code: int
    document: dict[str, Any]


@dataclass
class DualWrite:
    """A cluster that writes both sides with two of three controllers, and kbackup beside it. `printed` is all
    output of kbackup."""

    filled: Filled
    folder: Path
    printed: list[str] = field(default_factory=list)

    def migrate(self, *arguments: str, encrypted: bool = True) -> Migrated:
        """The exit code and the JSON document of `kbackup migrate`."""
        cluster, config = self.filled.cluster, self.folder / "kbackup.toml"
        lines = [
            f'archive = "{self.archive(encrypted)}"',
            f'encryption.key = "{self.key}"' if encrypted else "",
            "[source]",
            f'"bootstrap.servers" = "{cluster.bootstrap}"',
            f'"zookeeper.connect" = "{cluster.zookeeper_connect}"',
            f'"metadata.log.dir" = "{cluster.metadata_log().parent}"',
        ]
        config.write_text("\n".join(lines))
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main(["migrate", *arguments, "--json", "--config", str(config)])
        self.printed += [out.getvalue(), err.getvalue()]
        return Migrated(code, json.loads(out.getvalue()))

    @property
    def key(self) -> str:
        return f"file:{self.folder}/key"

    def archive(self, encrypted: bool) -> Path:
        return self.folder / ("sealed" if encrypted else "plain")

    def metadata(self, encrypted: bool = True) -> Metadata:
        store = open_store(str(self.archive(encrypted)), key=self.key if encrypted else "", key_class=layout.key_class)
        archive = open_archive(store)
        assert archive.head is not None
        return archive.metadata(archive.head)


def words(entities: Any, *without: str) -> list[str]:
    """One line for each entity, in order, without some of its members: lists that say the same become equal."""
    plain = msgspec.to_builtins(entities)
    return sorted(
        json.dumps({name: value for name, value in each.items() if name not in without}, sort_keys=True)
        for each in plain
    )
