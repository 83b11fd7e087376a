"""`make versions`: run kbackup's main jobs with the releases of Spark, Python and Kafka that people have.

    python -m scripts.versions [spark|python|oldest|kafka]...

It prints a table: what ran, and whether each job did its work. It takes an hour, and 4 GB in $KBACKUP_CACHE for
environments, which the next call uses again. The exit code is 1 if anything failed. A Python that is not on this
machine is named, and is no error.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kbackup.errors import KbackupError
from kbackup.spark.jars import known_jars
from scripts.dev import tools
from scripts.dev.jars import between_jars, old_jars, zookeeper_jars
from scripts.dev.kafka import Broker, Nodes
from scripts.dev.s3 import Minio
from scripts.dev.tools import MissingToolError
from scripts.dev.zookeeper import MigratingCluster
from scripts.versions.environments import Environment, locked_spark, remove_others
from scripts.versions.jobs import Job, make_bucket

SPARKS = ("4.0.5", "4.1.4", "4.2.1", "4.3.0")
"""The newest of each minor release that pyproject.toml allows."""
OLDEST_SPARK = "4.0.1"

KAFKAS: dict[str, Callable[[], Nodes]] = {
    "Kafka 2.8 with ZooKeeper": lambda: MigratingCluster(controllers=0, jars=old_jars),
    "Kafka 3.3": lambda: Broker(jars=between_jars["3.3"]),
    "Kafka 3.9": lambda: Broker(jars=zookeeper_jars),
    "Kafka 4.0": lambda: Broker(jars=between_jars["4.0"]),
    "Kafka 4.4": Broker,
}

STEPS = ("backup", "verify", "Parquet", "Delta", "source", "cluster", "restore", "groups")
PARTS = ("spark", "python", "oldest", "kafka")


@dataclass
class Row:
    """The steps of one release by their names, in seconds or as a word, and what went wrong."""

    title: str
    cells: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def run(self, name: str, step: Callable[[], str]) -> None:
        """Run a step; a failure goes into the table, and the other steps run all the same."""
        start = time.monotonic()
        try:
            word = step()
        except Exception as error:  # noqa: BLE001 (whatever it is, it is shown, and the exit code is 1)
            self.cells[name] = "FAILED"
            self.problems.append(f"{self.title}, {name}: {error}")
            traceback.print_exc()
        else:
            self.cells[name] = f"{time.monotonic() - start:.0f} s" if word == "ok" else word
        print(f"{self.title}: {name} {self.cells[name]}", flush=True)


def try_environment(environment: Environment, nodes: Nodes, s3: Minio, folder: Path) -> Row:
    """Run all steps with a Spark and a Python."""
    row = Row(environment.title)
    try:
        program = str(environment.path() / "bin" / "python")
    except KbackupError as error:
        row.problems.append(f"{row.title}: {error}")
        return row
    job = _job(program, nodes, s3, folder, row.title)
    has_delta = known_jars(environment.spark) is not None
    row.run("backup", job.back_up)
    row.run("verify", job.verify)
    row.run("Parquet", job.export_files)
    row.run("Delta", partial(job.export_tables, possible=has_delta))
    row.run("source", job.read_as_table)
    row.run("cluster", job.use_cluster)
    _restore(row, job)
    job.wipe()
    return row


def try_kafka(title: str, make: Callable[[], Nodes], s3: Minio, folder: Path) -> Row:
    """Run the steps that a broker has a part in, with the packages of this environment."""
    row = Row(title)
    with make() as nodes:
        job = _job(sys.executable, nodes, s3, folder, title)
        row.run("backup", job.back_up)
        row.run("verify", job.verify)
        _restore(row, job)
    return row


def _restore(row: Row, job: Job) -> None:
    row.run("restore", job.restore)
    row.run("groups", job.compare_groups)


def _job(program: str, nodes: Nodes, s3: Minio, folder: Path, title: str) -> Job:
    name = title.lower().replace(",", "").replace(" ", "-")
    (folder / name).mkdir()
    return Job(program, nodes, s3, folder / name, name)


def environments(parts: Sequence[str]) -> list[Environment]:
    """Return the environments of `parts`; those that have no Python on this machine are left out."""
    pythons = {version: program for version, program in tools.pythons().items() if program is not None}
    first = min(pythons, key=_number)
    found: list[Environment] = []
    if "spark" in parts:
        found += [Environment(first, pythons[first], spark) for spark in SPARKS]
    if "python" in parts:
        found += [Environment(version, program, locked_spark()) for version, program in pythons.items()]
    if "oldest" in parts:
        found.append(Environment(first, pythons[first], OLDEST_SPARK, oldest=True))
    return found


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a table of Markdown."""
    lines = ["| | " + " | ".join(STEPS) + " |", "|---" * (1 + len(STEPS)) + "|"]
    for row in rows:
        cells = [row.cells.get(step, "") for step in STEPS]
        lines.append(f"| {row.title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parts = list(arguments) or list(PARTS)
    if not set(parts) <= set(PARTS):
        print(__doc__, file=sys.stderr)
        return 2
    # SIGTERM ends us as Ctrl-C does, so that what we started is stopped and removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    missing = [version for version, program in tools.pythons().items() if program is None]
    remove_others({environment.name for environment in environments(PARTS)})
    rows: list[Row] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kbackup-versions-")))
        s3 = stack.enter_context(Minio())
        make_bucket(s3)
        asked = environments(parts)
        if asked:
            with Broker() as broker:
                rows += [try_environment(environment, broker, s3, folder) for environment in asked]
        if "kafka" in parts:
            rows += [try_kafka(title, make, s3, folder) for title, make in KAFKAS.items()]
    problems = [problem for row in rows for problem in row.problems]
    print("", *problems, table(rows), sep="\n")
    if missing and "python" in parts:
        print(f"\nnot on this machine, so not run: Python {', '.join(missing)}")
    return 1 if problems else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
    except (KbackupError, MissingToolError) as error:
        sys.exit(f"error: {error}")
