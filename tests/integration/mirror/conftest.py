"""Three clusters A, B and C, and the command line `kbackup mirror` between them."""

from __future__ import annotations

import io
import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from kbackup.cli import main
from kbackup.config import Config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from scripts.dev.kafka import Broker

HEAD = """
replication.factor = 1
heartbeats.topic.replication.factor = 1
checkpoints.topic.replication.factor = 1
offset-syncs.topic.replication.factor = 1
refresh.topics.interval.seconds = 1
emit.checkpoints.interval.seconds = 1
sync.topic.acls.enabled = false
"""


@dataclass
class Mirror:
    """A properties file on clusters of brokers, and `kbackup mirror` of it in this process.

    Tests share the clusters, and a target knows a flow by its aliases: each test has aliases of its own."""

    brokers: Mapping[str, Broker]
    spark: SparkSession
    folder: Path
    token: str = field(default_factory=lambda: secrets.token_hex(3))

    def named(self, text: str) -> str:
        """A, B and C in a flow's name, or alone, as the aliases of this test."""
        return re.sub(r"\b[ABC](?=->|$)|(?<=->)[ABC]\b", lambda found: f"{found[0]}{self.token}", text)

    def remote(self, alias: str, topic: str) -> str:
        return f"{self.named(alias)}.{topic}"

    def file(self, text: str, *clusters: str) -> Path:
        """A properties file of `clusters`, with small replication factors and archives in a folder."""
        path = self.folder / f"{secrets.token_hex(4)}.properties"
        lines = [f"clusters = {', '.join(map(self.named, clusters))}"]
        lines += [f"{self.named(a)}.bootstrap.servers = {self.brokers[a].bootstrap}" for a in clusters]
        archive = "" if "kbackup.archive" in text else f"kbackup.archive = {path.with_suffix('')}/{{source}}\n"
        path.write_text("\n".join(lines) + HEAD + archive + self.named(text))
        return path

    def __call__(self, file: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
        """The command's JSON document."""
        out, err = io.StringIO(), io.StringIO()

        @contextmanager
        def given(config: Config, **_: object) -> Iterator[Callable[[], SparkSession]]:
            yield lambda: self.spark

        with mock.patch("kbackup.mirror.cli.run.spark_session", given), redirect_stdout(out), redirect_stderr(err):
            ended = main(["mirror", str(file), *arguments, "--json"])
        assert ended == code, err.getvalue()
        document: dict[str, Any] = json.loads(out.getvalue())
        return document

    def once(self, file: Path, *arguments: str) -> dict[str, Any]:
        """Run one round; return the result of each half, by 'take' and the source, or 'apply' and the flow."""
        halves: dict[str, Any] = self(file, "--once", *arguments)["halves"]
        return {name.partition(" into ")[0].replace(self.token, ""): half for name, half in halves.items()}


@pytest.fixture(scope="session")
def clusters(broker: Broker) -> Iterator[Mapping[str, Broker]]:
    from scripts.dev.kafka import Broker

    with ExitStack() as stack:
        yield {"A": broker, "B": stack.enter_context(Broker()), "C": stack.enter_context(Broker())}


@pytest.fixture
def mirror(clusters: Mapping[str, Broker], spark: SparkSession, tmp_path: Path) -> Mirror:
    return Mirror(clusters, spark, tmp_path)
