"""A fresh cluster of Kafka 4.4 that starts from an archive, and what Kafka's own tools list of a cluster."""

from __future__ import annotations

import re
from pathlib import Path

from kbackup.migrate.metadata_log.checkpoint import FIRST_SNAPSHOT
from tests.integration.conftest import Kbackup, Outcome
from tests.interop.metadata_log.cluster import KAFKA_4, Cluster, replace_file
from tests.support.java import Java, KafkaTools

CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
_TOKENS = "org.apache.kafka.tools.DelegationTokenCommand"
_CONFIGS = ("org.apache.kafka.tools.ConfigCommand", "--describe", "--entity-type")
LISTED = {
    "topics": ("org.apache.kafka.tools.TopicCommand", "--describe", "--exclude-internal"),
    "ACLs": ("org.apache.kafka.tools.AclCommand", "--list"),
    "users": (*_CONFIGS, "users"),
    "clients": (*_CONFIGS, "clients"),
    "users and clients": (*_CONFIGS, "users", "--entity-type", "clients"),
    "ips": (*_CONFIGS, "ips"),
    "brokers": (*_CONFIGS, "brokers"),
    "orders": (*_CONFIGS, "topics", "--entity-name", "orders"),
}
"""The tool that lists each kind of setting, with its arguments."""

_SHAPE = re.compile(r"TopicId: \S+|Configs: .*| sensitive=.*")
_NOBODYS = re.compile(r"synonyms=\{(STATIC|DEFAULT)_|^\s*min\.insync\.replicas=|^\s*$|^\tTopic:")
"""Lines of settings that no user made (Kafka 4 sets the second itself at formatting), and of partitions."""


class FreshCluster(Cluster):
    """One node of 4.4, with the id 0. It starts with the file that `kbackup migrate bootstrap` made."""

    bootstrapped: Outcome

    def __init__(self, kbackup: Kbackup, archive: str) -> None:
        self._kbackup, self._archive = kbackup, archive
        super().__init__(KAFKA_4, 1)

    def _node_properties(self, node: int) -> dict[str, str]:
        changed = {"node.id": str(node), "super.users": "User:ANONYMOUS;User:kbackup"}
        return super()._node_properties(node) | changed

    def _format(self, node: int, properties: Path, *arguments: str) -> None:
        super()._format(node, properties, *arguments)
        base, out = self.metadata_log_dir / FIRST_SNAPSHOT, self.folder / "out"
        self.bootstrapped = self._kbackup(
            "migrate", "bootstrap", "-a", self._archive, "--base", str(base), "--out", str(out)
        )
        assert self.bootstrapped.code == 0, self.bootstrapped.err
        replace_file(base, (out / base.name).read_bytes())


def listed(java: Java, bootstrap: str, sasl: str, login: Path) -> dict[str, list[str]]:
    """Return the settings of users that Kafka's own tools list, and the tokens of the user of `login`, by `sasl`."""
    found: dict[str, list[str]] = {}
    with KafkaTools(java) as tools:
        for name, (tool, *arguments) in LISTED.items():
            found[name] = _blocks(tools.run(tool, "--bootstrap-server", bootstrap, *arguments))
        by_sasl = ("--bootstrap-server", sasl, "--command-config", str(login))
        found["tokens"] = _blocks(tools.run(_TOKENS, *by_sasl, "--describe"))
    return found


def _blocks(text: str) -> list[str]:
    """The lines in order, with those of an ACL's resource behind its name. Kafka lists values in any order."""
    blocks: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith("\t(") or line.startswith(" \t("):
            blocks[-1].append(line)
        elif not _NOBODYS.search(line):
            entity, are, values = _SHAPE.sub("", line).partition(" are ")
            blocks.append([entity + are + ", ".join(sorted(values.split(", ")))])
    return sorted("\n".join(sorted(block)) for block in blocks)
