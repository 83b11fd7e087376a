"""Run commands on Spark clusters whose workers don't share each directory: `python -m scripts.soak.unshared [--cases N]
[--seed S]`.

A command either refuses such a worker by its name or leaves nothing out. Exit code 1 where one does otherwise.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import secrets
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pyarrow.parquet as pq

from kbackup.archive.reader import open_archive
from kbackup.store.file import FileStore
from scripts.dev.kafka import Broker
from scripts.dev.spark import SparkCluster
from tests.conftest import delta_conf
from tests.faults.process import Ended, run
from tests.integration import topics
from tests.support.restored import content
from tests.support.truth import Records, archive_records, read_topic

_WORKERS = 2
_TOPIC = "orders"
_PARTITIONS = 6
_DIRECTORIES = ("archive", "state", "export")
_NAMED = re.compile(
    r"worker apart-\d has another directory than the driver at|does not see what worker apart-\d writes"
)


@dataclass
class Case:
    """A cluster, directories that some of its workers lack, and what is in Kafka."""

    broker: Broker
    cluster: SparkCluster
    secret: str
    folder: Path
    unshared: dict[int, list[Path]]
    source: Records

    def lacking(self, *names: str) -> bool:
        """Return whether a worker lacks one of these directories."""
        return any(path.name in names for paths in self.unshared.values() for path in paths)

    def kbackup(self, name: str, *arguments: str, cluster: bool = True) -> Ended:
        settings = {"source": self.broker.bootstrap, "target": self.broker.bootstrap}
        on = [f"--set={side}.bootstrap.servers={address}" for side, address in settings.items()]
        on.append("--set=backup.pack_records=50")
        master = self.cluster.url if cluster else "local[1]"
        where = [f"--master={master}", *([f"--config={self.config}"] if cluster else [])]
        env = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        return run(self.folder / name, [*arguments, *on, *where], env=env)

    @property
    def config(self) -> Path:
        """The configuration of commands on the cluster, with the jars of Delta tables."""
        path = self.folder / "kbackup.toml"
        conf = {
            **delta_conf(),
            "spark.driver.host": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.authenticate.secret": self.secret,
        }
        path.write_text(
            "".join(["[spark.conf]\n", *(f'"{name}" = "{value}"\n' for name, value in conf.items())])
        )
        path.chmod(0o600)
        return path

    def path(self, name: str) -> Path:
        """Return a path below the directory where a worker may have a disk of its own."""
        return self.folder / name / "in"

    def judge(self, ended: Ended, missing: str, *, strict: bool) -> str:
        """Return what a command did; "wrong: …" where that is neither. `strict`: it had to refuse."""
        if ended.code == 0:
            if strict:
                return "wrong: it passed"
            return f"wrong: {missing}" if missing else "complete"
        refused = ended.code == 1 and _NAMED.search(ended.err + ended.out)
        if not refused:
            return f"wrong: exit code {ended.code}\n{ended.out[-2000:]}{ended.err[-3000:]}"
        return "refused"

    def check(self) -> str:
        """All directories of the configuration are tried, on each executor."""
        places = [f"--archive={self.path('archive')}", f"--set=restore.state={self.path('state')}"]
        places.append(f"--set=export.delta={self.path('export')}")
        ended = self.kbackup("check", "check", "--spark", *places)
        return self.judge(ended, "", strict=self.lacking(*_DIRECTORIES))

    def backup(self) -> str:
        ended = self.kbackup("backup", "backup", f"--archive={self.path('archive')}", "-t", _TOPIC)
        missing = ""
        if ended.code == 0:
            store = FileStore(self.path("archive"))
            found = archive_records(store, _TOPIC, open_archive(store).restore_point("latest"))
            missing = "" if found == self.source else "records are not in the archive"
        return self.judge(ended, missing, strict=False)

    def restore(self) -> str:
        target = f"back-{self.folder.name}"
        options = [str(self.path("archive")), f"--map={_TOPIC}={target}", f"--state={self.path('state')}"]
        named = [*options, "--restore-id=by-soak"]
        ended = self.kbackup("restore", "restore", *named)
        missing = ""
        if ended.code == 0:
            found = read_topic(self.broker.bootstrap, target)
            if _contents(found) != _contents(self.source):
                missing = "records are not in the target"
            elif (seen := self.kbackup("verify", "verify", *named, "--against=target", cluster=False)).code:
                missing = f"verify finds a difference\n{seen.out}{seen.err}"
        return self.judge(ended, missing, strict=False)

    def export(self) -> str:
        destination = self.path("export")
        archive = f"--archive={self.path('archive')}"
        ended = self.kbackup("export", "export", archive, f"--delta={destination}")
        missing = ""
        if ended.code == 0:
            expected = {(partition, r.offset) for partition, some in self.source.items() for r in some}
            missing = "" if _exported(destination / _TOPIC) == expected else "records are not in the table"
        return self.judge(ended, missing, strict=False)

    def run(self) -> list[tuple[str, str]]:
        """Return what each command did. One that needs an archive has a whole one: from this machine, if need be."""
        ends = [("check", self.check()), ("backup", self.backup())]
        if ends[-1][1] != "complete":
            again = self.kbackup(
                "again", "backup", f"--archive={self.path('archive')}", "-t", _TOPIC, cluster=False
            )
            assert again.code == 0, again.err
        return [*ends, ("restore", self.restore()), ("export", self.export())]


def _exported(table: Path) -> set[tuple[int, int]]:
    """Return partition and offset of each record in the files of a Delta table that this machine sees."""
    records: set[tuple[int, int]] = set()
    for log in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        for file in (table / unquote(action["add"]["path"]) for action in actions if "add" in action):
            if file.exists():
                columns = pq.read_table(file.open("rb"), columns=["partition", "offset"]).to_pylist()
                records |= {(row["partition"], row["offset"]) for row in columns}
    return records


def _contents(records: Records) -> dict[int, list[object]]:
    return {partition: [content(record) for record in some] for partition, some in records.items()}


def _without(rng: random.Random, folder: Path) -> dict[int, list[Path]]:
    """Choose workers, and the directories that each has on a disk of its own."""
    chosen: dict[int, list[Path]] = {}
    for worker in range(_WORKERS):
        if own := [folder / name for name in _DIRECTORIES if rng.random() < 0.3]:
            chosen[worker] = own
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.soak.unshared", description=__doc__)
    parser.add_argument("--cases", type=int, default=10, help="clusters, each for four commands (10)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed chooses the same directories (1)")
    options = parser.parse_args(arguments)
    rng, ends = random.Random(options.seed), Counter[tuple[str, str]]()
    root = Path(tempfile.mkdtemp(prefix="kbackup-soak-"))
    print(f"seed {options.seed}; all is under {root}", flush=True)
    with Broker() as broker:
        broker.create_topic(_TOPIC, _PARTITIONS)
        for partition in range(_PARTITIONS):
            topics.produce(broker, _TOPIC, partition, topics.numbered(300, f"value-{partition}"), key=b"key")
        source = read_topic(broker.bootstrap, _TOPIC)
        for number in range(options.cases):
            folder = root / f"case-{number}"
            for name in _DIRECTORIES:
                (folder / name).mkdir(parents=True)
            unshared, secret = _without(rng, folder), secrets.token_hex(16)
            with SparkCluster(_WORKERS, secret=secret, unshared=unshared) as cluster:
                done = Case(broker, cluster, secret, folder, unshared, source).run()
            ends.update((command, end.partition("\n")[0]) for command, end in done)
            lacks = {worker: [path.name for path in paths] for worker, paths in unshared.items()}
            print(f"case {number}: unshared {lacks}: {dict(done)}", flush=True)
    for (command, end), count in sorted(ends.items()):
        print(f"{command:8} {count:5} {end}")
    wrong = sum(count for (_, end), count in ends.items() if end.startswith("wrong"))
    print(f"{ends.total()} commands, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
