"""Clusters with ZooKeeper that have all kinds of metadata, and what Kafka's own admin client says of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgspec

from kbackup.metadata.sources import ZooKeeperOptions
from scripts.dev.zookeeper.cluster import MigratingCluster
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


def words(entities: Any, *without: str) -> list[str]:
    """One line for each entity, in order, without some of its members: lists that say the same become equal."""
    plain = msgspec.to_builtins(entities)
    return sorted(
        json.dumps({name: value for name, value in each.items() if name not in without}, sort_keys=True)
        for each in plain
    )
