"""What runs with each release: a shop is backed up, wiped, restored and compared, and its archive is used by Spark.

A warning of a library on stderr is an error, too: users see it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import deltalake

from kbackup.errors import KbackupError
from scripts.demo.shop import GROUPS, TOPICS, Shop
from scripts.demo.state import State, capture, compare_groups, compare_partitions
from scripts.dev.kafka import Nodes
from scripts.dev.s3 import Minio
from scripts.dev.spark import SparkCluster
from scripts.versions.environments import ROOT

_DISCOVERY = ROOT / "kbackup" / "discovery"
_BUCKET = "versions"

_SOURCE = """
import sys
from pyspark.sql import SparkSession

archive, folder, options = sys.argv[1], sys.argv[2], dict(word.split("=", 1) for word in sys.argv[3:])
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
frame = spark.read.format("kbackup").options(**options).load(archive)
stream = spark.readStream.format("kbackup").options(**options).load(archive).writeStream.format("parquet")
stream = stream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
stream.start(f"{folder}/stream").awaitTermination()
from kbackup.spark import read

pushed = read(spark, archive, **options).where("topic = 'orders' and offset < 100")
print(frame.count(), spark.read.parquet(f"{folder}/stream").count(), pushed.count())
spark.stop()
"""


_OF_LIBRARIES = re.compile(r"Warning: |Traceback |^spark ", re.MULTILINE)
"""What Python, Spark's JVM and packages begin their lines on stderr with."""


class FailedStepError(KbackupError):
    """A step that did not do its work."""


class Job:
    """The commands of an environment in `folder`, on a cluster and a bucket of its own."""

    def __init__(self, program: str, nodes: Nodes, s3: Minio, folder: Path, name: str) -> None:
        self.program, self.nodes, self._s3, self._folder = program, nodes, s3, folder
        self.archive = f"s3://{_BUCKET}/{name}/archive"
        self._tables = f"s3://{_BUCKET}/{name}"
        self._before: State | None = None
        config = f"""\
archive = "{self.archive}"

[source]
bootstrap.servers = "{nodes.bootstrap}"

[target]
bootstrap.servers = "{nodes.bootstrap}"

[spark.conf]
"spark.jars.ivy" = "{folder.parent / "ivy"}"

{s3.toml}"""
        (folder / "kbackup.toml").write_text(config)
        self._shop = Shop(nodes)

    # The steps. Each returns what it prints into its cell.

    def back_up(self) -> str:
        """Two backups: of an open shop, and of what a day adds."""
        self._shop.open()
        self._kbackup("backup", "--json")
        self._shop.go_on()
        self._before = self._state()
        report = self._kbackup("backup", "--json")
        _check(report["restore_point"] == 2, f"restore point {report['restore_point']}")
        return "ok"

    def verify(self) -> str:
        report = self._kbackup("verify", "--json")
        _check(report["findings"] == [], f"findings: {report['findings']}")
        _check(report["read_records"] >= self._records, f"{report['read_records']} records of {self._records}")
        return "ok"

    def restore(self) -> str:
        """Wipe the cluster, restore it, and compare every partition with what it held."""
        self._shop.wipe()
        self._kbackup("restore", "--json")
        partitions = compare_partitions(self._known, self._state())
        others = [str(row.tp) for row in partitions if not row.same]
        _check(not others, f"partitions that differ: {', '.join(others)}")
        return "ok"

    def compare_groups(self) -> str:
        """Compare every group with where it stood before the restore."""
        rows = compare_groups(self._known, self._state())
        others = [f"{row.group} on {row.tp}" for row in rows if not row.same]
        _check(not others and {row.group for row in rows} == {*GROUPS}, f"groups that differ: {', '.join(others)}")
        return "ok"

    def wipe(self) -> None:
        """Leave the cluster empty for another job."""
        self._shop.wipe()

    def export_files(self) -> str:
        url = f"{self._tables}/files"
        (report,) = self._kbackup("export", "--parquet", url, "--json")["exports"]
        return self._check_exported(report)

    def export_tables(self, *, possible: bool) -> str:
        """Export Delta tables, and count their rows by another program; where it is not possible, be refused."""
        url = f"{self._tables}/tables"
        arguments = ("export", "--delta", url, "--json")
        if not possible:
            refused = self._run(arguments)
            _check(refused.returncode == 2, f"exit code {refused.returncode}: {refused.stderr}")
            _check("there are no jars of Delta for Spark" in refused.stderr, refused.stderr)
            return "refused"
        (report,) = self._kbackup(*arguments)["exports"]
        self._check_exported(report)
        rows = 0
        for table in report["tables"]:
            rows += deltalake.DeltaTable(table["url"], storage_options=self._storage_options).count()
        _check(rows >= self._records, f"{rows} rows, {self._records} records")
        return "ok"

    def read_as_table(self) -> str:
        """Read the archive by the data source: as a table, as a stream, and with a filter."""
        options = [f"s3.{name}={value}" for name, value in self._s3.options.items()]
        work = self._folder / "source"
        done = subprocess.run(
            [self.program, "-c", _SOURCE, self.archive, str(work), *options],
            env=self._environ | {"PYSPARK_PYTHON": self.program},
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
        )
        _check(done.returncode == 0, done.stderr)
        table, stream, pushed = map(int, done.stdout.split())
        _check(table >= self._records, f"{table} rows, {self._records} records")
        _check(stream == table, f"{stream} rows by the stream, {table} by the table")
        _check(0 < pushed <= 100 * TOPICS["orders"][0], f"{pushed} rows by the filter")
        return "ok"

    def use_cluster(self) -> str:
        """Back up by tasks of a standalone cluster, into a directory."""
        folder = self._folder / "shared"
        with SparkCluster(workers=1, python=self.program) as cluster:
            report = self._kbackup("backup", "--archive", str(folder), "--master", cluster.url, "--json")
        _check(report["restore_point"] == 1 and any(folder.rglob("*_records*")), f"{report}")
        return "ok"

    # What the steps are made of.

    @property
    def _known(self) -> State:
        if self._before is None:
            raise FailedStepError("there is no backup to compare with", "mend the step of the backup")
        return self._before

    @property
    def _records(self) -> int:
        """The number of records before the cluster was wiped. Compaction has removed others since the first backup."""
        return sum(len(records) for records in self._known.records.values())

    @property
    def _storage_options(self) -> dict[str, str]:
        env = {**self._s3.env, "AWS_ALLOW_HTTP": "true", "AWS_S3_ALLOW_UNSAFE_RENAME": "true"}
        env["AWS_ENDPOINT_URL"] = env.pop("AWS_ENDPOINT_URL_S3")
        return env

    def _check_exported(self, report: Mapping[str, Any]) -> str:
        records = sum(table["records"] for table in report["tables"])
        _check(records >= self._records, f"{records} exported records, {self._records} in the cluster")
        return "ok"

    def _state(self) -> State:
        topics = {name: partitions for name, (partitions, _) in TOPICS.items()}
        return capture(self.nodes.client(), topics, list(GROUPS))

    def _kbackup(self, *arguments: str) -> dict[str, Any]:
        """Run a command, and return the document that it prints."""
        done = self._run(arguments)
        failed = f"kbackup {' '.join(arguments)} ended with exit code {done.returncode}:\n{done.stdout}{done.stderr}"
        _check(done.returncode == 0, failed)
        of_libraries = _OF_LIBRARIES.search(done.stderr)
        _check(of_libraries is None, f"kbackup {' '.join(arguments)} printed on stderr:\n{done.stderr}")
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def _run(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        argv = [self.program, "-m", "kbackup", *arguments]
        return subprocess.run(argv, env=self._environ, cwd=self._folder, capture_output=True, text=True, check=False)

    @property
    def _environ(self) -> dict[str, str]:
        inherited = {
            k: v for k, v in os.environ.items() if not k.startswith(("KBACKUP_", "AWS_", "SPARK_", "PYSPARK_"))
        }
        return {
            **inherited,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(_DISCOVERY)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "XDG_CACHE_HOME": str(self._folder / "cache"),
        }


def make_bucket(s3: Minio) -> None:
    s3.create_bucket(_BUCKET)


def _check(passes: bool, problem: str) -> None:
    if not passes:
        raise FailedStepError(problem[-3000:], "run the command by hand to see more")
