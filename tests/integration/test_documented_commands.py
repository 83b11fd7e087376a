"""The commands of README and of the guides run: those of a page in order, in the world that it assumes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kbackup.cli import main
from scripts.dev.kafka import Broker
from scripts.dev.s3 import Minio
from tests.integration.conftest import commands_on
from tests.integration.documented_world import WITH_ACLS, World
from tests.project.docs.documents import kbackup_lines
from tests.support.confluent_registry import ConfluentRegistry
from tests.support.secrets import watch

RESTORE_POINTS = {"40": "1", "41": "2", "42": "3"}
"""The restore points of the documents, and those of the world."""

REPLACED = [
    (re.compile(r"^(?:new-)?broker-1:909[23]$"), "{target}"),
    (re.compile(r"^http://registry:8081$"), "{registry}"),
    (re.compile(r"^((?:file:)?)/(mnt|srv|var|etc|backups)/"), r"\1{folder}/\2/"),
    (re.compile(r"^back\.toml$"), "back/kbackup.toml"),
    (re.compile(r"^orders:0:150000-200000$"), "orders:0:150-200"),
    (re.compile(r"^orders:3:90000-$"), "orders:3:90-"),
]
"""Arguments of the documents, and what stands for them in the world."""

TIMES = {"--from-time": "{start}", "--to-time": "{moment}"}
"""Options whose times are those of the world."""

LEFT_OUT = {
    "kubernetes": "needs Docker and Kubernetes: tests/project/infra checks its files and commands",
    "mirroring": "needs two clusters with flows: tests/integration/mirror runs them",
    "mirror-properties": "as mirroring",
    "serve": "each line serves until a signal: tests/unit/cli/test_serve.py sends it",
    "test-data": "needs a function of the user's: tests/integration/test_masked.py has one",
    "spark": "needs a Spark cluster: tests/integration/test_spark_cluster.py has one",
    "zookeeper-to-kraft": "needs ZooKeeper: tests/interop/migration has it",
}
"""Pages whose lines do not run here, each with the reason."""

NOT_RUN = {
    "restore --guide": "asks on a terminal: test_guide.py answers",
    "init": "asks on a terminal: test_init.py answers",
    "init --schedule systemd": "asks on a terminal: test_init.py answers",
    "init --yes --schedule systemd --write-secrets --bootstrap-server broker-1:9093 --archive s3://my-backups/kafka "
    "--set 'source.sasl.password=${env:KAFKA_PASSWORD}' --notify chat": "needs a webhook: test_init.py has one",
    "backup --follow --listen 127.0.0.1:9464": "runs until a signal: test_follow.py sends it",
    "ui": "runs until a signal: test_web_page.py opens it",
    "backup --bootstrap-server new-broker-1:9092 --adopt-cluster": "gives the archive of all pages to another cluster: "
    "test_archive_goes_on.py has one of its own",
}
"""Lines that do not run here, each with the reason."""

CODES: dict[str, tuple[int, str]] = {
    "diff latest target --topic orders --exit-code": (3, "transactions of the restore took offsets of the target")
}
"""The exit codes of lines that end with another one than 0, each with the reason."""

Step = str | Callable[[World], None]
BEFORE: dict[str, list[Step]] = {
    "drill: verify --against target --restore-id worst-day --groups": ["restore --restore-id worst-day"],
    r"drill: verify --against target --map-regex '^(.*)$=restored.\1'": [r"restore --map-regex '^(.*)$=restored.\1'"],
    "moving-a-cluster: backup --config back.toml": [World.start_producers_on_the_target],
    "repair: adopt --archive /backups/kafka": [World.write_java_folders],
    "restore: restore /mnt/kafka-backup --dry-run": [World.empty_target, World.write_java_folders],
    "schemas: schemas undo --restore-id 2026-01-31-1a2b3c4d": [
        World.empty_target,
        "schemas restore --restore-id 2026-01-31-1a2b3c4d",
    ],
    "security: backup --encryption-key file:/etc/kbackup/archive.key": [World.empty_archive],
    "settings: restore --undo --restore-id drill-7": ["restore --restore-id drill-7 --with acls"],
    "upgrading: promote --archive s3://elsewhere/kafka": ["copy s3://elsewhere/kafka"],
}
"""What the documents expect to have happened before a line of a page: commands, or changes of the world."""

PAGES: dict[str, list[str]] = {}
for _code in kbackup_lines():
    if _code.language == "sh" and (_code.document.stem == "README" or _code.document.parent.name == "docs"):
        PAGES.setdefault(_code.document.stem, []).append(_code.text)

SOAKED = {"delta": pytest.mark.soak, "schemas": pytest.mark.soak}
"""Pages that take minutes, with lines that write Delta tables: test_delta.py and test_schemas.py run these options."""

LAST = ["moving-a-cluster"]
"""It writes to the source."""
RUN = sorted(PAGES.keys() - LEFT_OUT.keys() - {*LAST}) + LAST


@pytest.fixture(scope="module")
def built_world(minio_server: Minio, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ExitStack() as stack:
        source = stack.enter_context(Broker(WITH_ACLS))
        target = stack.enter_context(Broker(WITH_ACLS))
        registry = stack.enter_context(ConfluentRegistry())
        world = World(source, target, minio_server, registry, spark, tmp_path_factory.mktemp("documented"))
        stack.enter_context(world.target_registry)
        world.make()
        yield world


@pytest.fixture
def world(built_world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    built_world.reset(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("KBACKUP_METADATA_CACHE", "true")  # an undo looks there for what this machine has restored
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "aws.secret"))
    return built_world


@pytest.mark.parametrize("page", [pytest.param(page, marks=SOAKED.get(page, ())) for page in RUN])
def test_the_commands_of_a_page_run(
    page: str, world: World, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    with commands_on(spark):
        for line in PAGES[page]:
            if line not in NOT_RUN:
                run_line(world, page, line, capsys)


def run_line(world: World, page: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    for step in BEFORE.get(f"{page}: {line}", []):
        if callable(step):
            step(world)
        else:
            run_line(world, page, step, capsys)
    arguments = in_the_world(line, world)
    if needs_an_empty_target(arguments):
        world.empty_target()
    code = main(arguments)
    out, err = capsys.readouterr()
    watch.look_at(f"kbackup {line}", out + err)
    expected, reason = CODES.get(line, (0, "done"))
    ended = f"{page}.md: kbackup {line}\nended with {code}, not with {expected} ({reason})"
    assert code == expected, f"{ended}\n{err}\n{out[-2000:]}"


def needs_an_empty_target(arguments: list[str]) -> bool:
    """Tell whether a line restores. The lines of a page are alternatives: each begins with an empty target."""
    return arguments[0] == "restore" and not {"--dry-run", "--undo", "--into-existing"} & {*arguments}


def in_the_world(line: str, world: World) -> list[str]:
    """Return the arguments of a line, with names of the world in place of those of the documents."""
    names = {
        "target": world.target.bootstrap,
        "registry": world.registry.url,
        "folder": str(world.folder),
        "start": world.start,
        "moment": world.moment,
    }
    arguments: list[str] = []
    for argument in shlex.split(line):
        new = RESTORE_POINTS.get(argument, argument)
        if arguments:
            new = TIMES.get(arguments[-1], new)
        for pattern, replacement in REPLACED:
            new = pattern.sub(replacement, new)
        arguments.append(new.format(**names) if new != argument else new)
    if arguments[0] == "groups" and "--same-offsets" in arguments:
        arguments += ["--config", "same-cluster/kbackup.toml"]  # where the cluster of the backup is the target as well
    return arguments


def test_the_tables_name_lines_and_pages_that_are_there() -> None:
    lines = {line for page in RUN for line in PAGES[page]}
    assert NOT_RUN.keys() <= lines
    assert CODES.keys() <= lines
    assert BEFORE.keys() <= {f"{page}: {line}" for page in RUN for line in PAGES[page]}
    assert LEFT_OUT.keys() <= PAGES.keys()
