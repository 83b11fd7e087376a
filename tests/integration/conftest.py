"""The command line on the session's Spark, and archives on the real S3 server."""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
import pytest

from kbackup.cli import main
from kbackup.config import Config
from kbackup.native import kernel
from kbackup.store import open_store
from kbackup.store.base import Store
from tests.conftest import options_of
from tests.support.secrets import watch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from scripts.dev.kafka import Broker
    from scripts.dev.s3 import Minio, S3Server
    from tests.integration.backed_up import BackedUp
    from tests.integration.zoo import Zoo

Choose = Callable[[str], None]
SEGMENT_BYTES = 4 << 10
SPLIT_RECORDS = 1_000
PACK_RECORDS = 300


@dataclass(frozen=True)
class Outcome:
    """The end of a command: exit code, its JSON document, its stderr, and the command line."""

    code: int
    document: dict[str, Any]
    err: str
    line: str = ""

    def __str__(self) -> str:
        return f"kbackup {self.line} ended with {self.code}\n{self.err}\n{json.dumps(self.document)[:2000]}"


@dataclass
class CountedSpark:
    """The session, with a note of how many tasks each job has."""

    session: SparkSession
    tasks: list[int] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def createDataFrame(self, rows: pa.Table) -> Any:  # noqa: N802 (pyspark's name)
        # A task is a row, and Spark makes one partition of each batch.
        self.tasks.append(len(rows.to_batches()))
        return self.session.createDataFrame(rows)


@dataclass(frozen=True)
class Archive:
    """A place of its own, empty at first."""

    url: str
    store: Store

    def objects(self) -> dict[str, str]:
        """Every key with its version."""
        return {entry.key: entry.etag for entry in self.store.list()}


@contextmanager
def commands_on(spark: object) -> Iterator[None]:
    """Let the commands of this process run on a session that is there."""

    @contextmanager
    def given(config: Config, **_: object) -> Iterator[Callable[[], object]]:
        yield lambda: spark

    with ExitStack() as stack:
        for name in ("backup", "check", "drill", "repair", "restore", "verify"):
            stack.enter_context(mock.patch(f"kbackup.cli.{name}.spark_session", given))
        yield


def run_command(spark: object, config: Path, arguments: Sequence[str]) -> Outcome:
    """Run kbackup in this process, on this session."""
    out, err = io.StringIO(), io.StringIO()
    with ExitStack() as stack:
        stack.enter_context(commands_on(spark))
        stack.enter_context(redirect_stdout(out))
        stack.enter_context(redirect_stderr(err))
        code = main([*arguments, "--json", "--config", str(config)])
    watch.look_at(f"kbackup {arguments[0]}", out.getvalue() + err.getvalue())
    return Outcome(code, json.loads(out.getvalue()), err.getvalue(), " ".join(arguments))


@dataclass
class Kbackup:
    """`python -m kbackup` in this process. All goes to one broker, and to archives on one S3 server."""

    spark: CountedSpark
    config: Path

    def __call__(self, *arguments: str) -> Outcome:
        return run_command(self.spark, self.config, arguments)

    def backup(self, archive: Archive, *arguments: str, code: int = 0) -> dict[str, Any]:
        return self.run("backup", "--archive", archive.url, *arguments, code=code)

    def restore(self, archive: Archive, *arguments: str, code: int = 0) -> dict[str, Any]:
        return self.run("restore", archive.url, *arguments, code=code)

    def run(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """Return the document of a command that must end with `code`."""
        outcome = self(*arguments)
        assert outcome.code == code, f"{outcome.err}\n{outcome.document}"
        return outcome.document


def servers_config(broker: Broker, server: S3Server) -> str:
    """The part of a configuration file that names the servers."""
    return f"""
        [source]
        "bootstrap.servers" = "{broker.bootstrap}"
        [target]
        "bootstrap.servers" = "{broker.bootstrap}"
        {server.toml}
        """


@pytest.fixture(scope="session")
def kbackup(
    broker: Broker, minio_server: Minio, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Kbackup:
    config = tmp_path_factory.mktemp("kbackup") / "kbackup.toml"
    sizes = f"segment_bytes = {SEGMENT_BYTES}\nsplit_records = {SPLIT_RECORDS}\npack_records = {PACK_RECORDS}\n"
    config.write_text(f"{servers_config(broker, minio_server)}[backup]\n{sizes}")
    return Kbackup(CountedSpark(spark), config)


@pytest.fixture(scope="session")
def archive_bucket(minio_server: Minio) -> str:
    name = f"archives-{secrets.token_hex(6)}"
    minio_server.create_bucket(name)
    return name


@pytest.fixture(scope="session")
def new_archive(minio_server: Minio, archive_bucket: str) -> Callable[[], Archive]:
    """Makes archives, each under a prefix of its own."""

    def new() -> Archive:
        url = f"s3://{archive_bucket}/{secrets.token_hex(6)}"
        return Archive(url, open_store(url, {"s3": options_of(minio_server)}))

    return new


@pytest.fixture
def archive(new_archive: Callable[[], Archive]) -> Archive:
    return new_archive()


@pytest.fixture(scope="session")
def zoo(broker: Broker, kbackup: Kbackup, new_archive: Callable[[], Archive]) -> Zoo:
    """Topics of all kinds, backed up three times. Nobody changes them or their archive."""
    from tests.integration.zoo import build

    return build(broker, f"zoo-{secrets.token_hex(4)}", new_archive(), kbackup)


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Iterator[Choose]:
    """Chooses a kernel by its name."""

    def to(name: str) -> None:
        monkeypatch.setenv(kernel.VARIABLE, name)
        kernel.selected_kernel.cache_clear()
        assert kernel.selected_kernel().name == name

    yield to
    kernel.selected_kernel.cache_clear()


@pytest.fixture(scope="module")
def made(
    broker: Broker, minio_server: Minio, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> BackedUp:
    """A topic with a group, backed up twice, for the tests of one module."""
    from tests.integration.backed_up import back_up

    return back_up(broker, minio_server, spark, tmp_path_factory.mktemp("made"))
