"""Run the commands of tools in turns against one broker and one S3 server."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kbackup.store import S3Options, open_store
from scripts.bench import data
from scripts.bench.servers import Servers
from scripts.bench.whole.tool import Tool

WORKS = ("backup", "restore")


@dataclass(frozen=True)
class Round:
    """One command: `wall` and `cpu` in seconds, `memory` of the tree at most and `stored` in bytes.

    `startup` is the wall time outside kbackup's step `run`; None for other tools. `broker` and `store` are the
    CPU seconds of the servers.
    """

    work: str
    tool: str
    size: int
    records: int
    wall: float
    cpu: float
    memory: int
    stored: int
    broker: float
    store: float
    startup: float | None

    @property
    def rate(self) -> float:
        """Records a second."""
        return self.records / self.wall

    def document(self) -> dict[str, Any]:
        """Return the members as JSON shows them."""
        return {**asdict(self), "rate": round(self.rate)}


class WholeBench:
    """A topic with `records` records of `size` bytes, written once, and one archive a tool."""

    def __init__(self, servers: Servers, size: int, records: int, tools: Sequence[tuple[Tool, str]]) -> None:
        self._servers, self._size, self._tools = servers, size, tools
        count = records // data.PARTITIONS
        self._records = count * data.PARTITIONS
        self._topic = servers.fill(size, count)

    def rounds(self, repeat: int, works: Sequence[str] = WORKS) -> Iterator[Round]:
        """Run each tool's backup, then its restore, `repeat` times; the tools take turns in going first."""
        for number in range(repeat):
            for tool, program in self._in_turn(number):
                archive = self._servers.new_archive()
                for work in works:
                    yield self._measure(work, tool, program, archive)
                self._servers.delete_archive(archive)

    def _in_turn(self, number: int) -> list[tuple[Tool, str]]:
        first = number % len(self._tools)
        return [*self._tools[first:], *self._tools[:first]]

    def _measure(self, work: str, tool: Tool, program: str, archive: Mapping[str, Any]) -> Round:
        target = self._servers.unused_name()
        with tempfile.TemporaryDirectory(prefix="kbackup-bench-") as folder:
            variables = self._variables(archive, program, target, folder)
            command, env = tool.prepare(work, variables)
            before = self._servers.cpu()
            used = _run(command, env, Path(folder))
            after = self._servers.cpu()
            startup = _startup(Path(folder, "stdout"), used["wall"])
        if work == "restore":
            self._servers.delete_topic(target)
        return Round(
            *(work, tool.name, self._size, self._records, used["wall"], used["cpu"], int(used["peak"])),
            stored=_stored(archive),
            broker=after["broker"] - before["broker"],
            store=after["minio"] - before["minio"],
            startup=startup,
        )

    def _variables(
        self, archive: Mapping[str, Any], program: str, target: str, folder: str
    ) -> dict[str, str]:
        bucket, _, prefix = archive["store"].removeprefix("s3://").partition("/")
        s3 = archive["s3"]
        return {
            **{"folder": folder, "program": program, "bootstrap": self._servers.broker.bootstrap},
            **{"bucket": bucket, "prefix": prefix, "endpoint": s3["endpoint_url"], "region": s3["region"]},
            **{"access_key": s3["access_key_id"], "secret_key": s3["secret_access_key"]},
            **{"topic": self._topic, "target": target},
        }


def _run(command: Sequence[str], env: Mapping[str, str], folder: Path) -> dict[str, float]:
    runner = [sys.executable, "-m", "scripts.bench.whole.runner", str(folder / "stdout"), *command]
    errors = folder / "stderr"
    with errors.open("wb") as file:
        done = subprocess.run(
            runner, env=dict(env) | _runner_path(env), stdout=subprocess.PIPE, stderr=file, check=True
        )
    used: dict[str, float] = json.loads(done.stdout)
    if used["code"]:
        raise SystemExit(
            f"{' '.join(command[:4])} … ended with {used['code']:.0f}:\n{errors.read_text()[-2000:]}"
        )
    return used


def _runner_path(env: Mapping[str, str]) -> dict[str, str]:
    root = str(Path(__file__).parents[3])
    return {"PYTHONPATH": f"{env['PYTHONPATH']}:{root}" if env.get("PYTHONPATH") else root}


def _startup(stdout: Path, wall: float) -> float | None:
    """Return the wall time outside the step `run` of kbackup's report; None for other output."""
    try:
        return wall - float(json.loads(stdout.read_bytes())["seconds"]["run"])
    except (ValueError, KeyError, TypeError):
        return None


def _stored(archive: Mapping[str, Any]) -> int:
    store = open_store(archive["store"], S3Options(**archive["s3"]))
    return sum(entry.size for entry in store.list())
