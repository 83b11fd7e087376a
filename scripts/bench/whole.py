"""python -m scripts.bench.whole: whole commands from start to exit, kbackup's and other tools' in turns.

Each tool runs its commands against the same broker and S3 server on this machine. A tool is a TOML file and a program:
see `scripts/bench/peers`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from string import Template
from typing import Any, Self

from kbackup.errors import KbackupError
from kbackup.store import S3Options, open_store
from scripts.bench.servers import PARTITIONS, Servers, grid
from scripts.dev.link import Link
from scripts.dev.tools import MissingToolError

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Tool:
    """`commands` by work ('backup', 'restore'), `files` by name and `env` are templates of `string.Template`.

    Their variables: `folder`, `bootstrap`, `endpoint`, `region`, `bucket`, `prefix`, `access_key`, `secret_key`,
    `topic`, `target` (the topic that a restore creates and fills) and `program` (the tool's).
    """

    name: str
    commands: Mapping[str, list[str]]
    files: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a TOML file: `name`, and the tables `commands`, `files`, `env`."""
        document = tomllib.loads(path.read_text("utf-8"))
        return cls(document["name"], document["commands"], document.get("files", {}), document.get("env", {}))

    def prepare(self, work: str, variables: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
        """Write the tool's files into `variables['folder']`, and return its command and environment."""
        folder = Path(variables["folder"])
        for name, text in self.files.items():
            (folder / name).write_text(Template(text).substitute(variables), "utf-8")
        plain = {k: v for k, v in os.environ.items() if not k.startswith(("KBACKUP_", "AWS_"))}
        filled = {name: Template(value).substitute(variables) for name, value in self.env.items()}
        return [Template(word).substitute(variables) for word in self.commands[work]], plain | filled


def kbackup(name: str = "kbackup", tree: Path = _ROOT, more: Mapping[str, str] | None = None) -> Tool:
    """Return kbackup of a checkout as a tool, run by its own .venv if it has one, with `more` environment variables."""
    own = tree / ".venv" / "bin" / "python"
    command = [str(own if own.exists() else sys.executable), "-m", "kbackup", "--json"]
    env = {
        "PYTHONPATH": str(tree),
        "PYTHONSAFEPATH": "1",  # not the working directory, which is this checkout
        "KBACKUP_ARCHIVE": "s3://$bucket/$prefix",
        "KBACKUP_S3_ENDPOINT_URL": "$endpoint",
        "KBACKUP_S3_REGION": "$region",
        "KBACKUP_S3_ACCESS_KEY_ID": "$access_key",
        "KBACKUP_S3_SECRET_ACCESS_KEY": "$secret_key",
        "KBACKUP_SOURCE_BOOTSTRAP_SERVERS": "$bootstrap",
        "KBACKUP_TARGET_BOOTSTRAP_SERVERS": "$bootstrap",
        "KBACKUP_BACKUP_TOPICS": "$topic",
    }
    restore = ["restore", "--topic", "$topic", "--map", "$topic=$target"]
    commands = {"backup": [*command, "backup"], "restore": [*command, *restore]}
    return Tool(name, commands, env=env | dict(more or {}))


WORKS = ("backup", "restore")


@dataclass(frozen=True)
class Round:
    """One command: `wall` and `cpu` in seconds, `memory` of the tree at most and `stored` in bytes.

    `steps` are the seconds of kbackup's steps; empty for other tools. `broker` and `store` are the CPU seconds of the
    servers. `links` are the bytes that passed each link, on its busier way.
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
    steps: Mapping[str, float]
    links: Mapping[str, int]

    @property
    def startup(self) -> float | None:
        """The wall time outside kbackup's step `run`; None for other tools."""
        return self.wall - self.steps["run"] if "run" in self.steps else None

    @property
    def rate(self) -> float:
        """Records a second."""
        return self.records / self.wall


class WholeBench:
    """A topic with `records` records of `size` bytes, written once, and one archive a tool."""

    def __init__(
        self, servers: Servers, size: int, records: int, tools: Sequence[tuple[Tool, str]], partitions: int = PARTITIONS
    ) -> None:
        self._servers, self._size, self._tools = servers, size, tools
        count = records // partitions
        self._records = count * partitions
        self._topic = servers.fill(size, count, partitions)

    def rounds(self, repeat: int, works: Sequence[str] = WORKS) -> Iterator[Round]:
        """Run each tool's backup, then its restore, `repeat` times; the tools take turns in going first."""
        for number in range(repeat):
            for tool, program in (*self._tools[number % len(self._tools) :], *self._tools[: number % len(self._tools)]):
                archive = self._servers.new_archive()
                for work in works:
                    yield self._measure(work, tool, program, archive)
                self._servers.delete_archive(archive)

    def _measure(self, work: str, tool: Tool, program: str, archive: Mapping[str, Any]) -> Round:
        target = self._servers.unused_name()
        with tempfile.TemporaryDirectory(prefix="kbackup-bench-") as folder:
            bucket, _, prefix = archive["store"].removeprefix("s3://").partition("/")
            s3 = archive["s3"]
            variables = {
                **{"folder": folder, "program": program, "bootstrap": self._servers.broker.bootstrap},
                **{"bucket": bucket, "prefix": prefix, "endpoint": s3["endpoint_url"], "region": s3["region"]},
                **{"access_key": s3["access_key_id"], "secret_key": s3["secret_access_key"]},
                **{"topic": self._topic, "target": target},
            }
            command, env = tool.prepare(work, variables)
            before = self._servers.cpu()
            for link in self._servers.far.values():
                link.passed = [0, 0]
            used = _run(command, env, Path(folder))
            after = self._servers.cpu()
            links = {name: max(link.passed) for name, link in self._servers.far.items()}
            try:
                report = json.loads(Path(folder, "stdout").read_bytes())["seconds"]
                steps = {name: float(seconds) for name, seconds in report.items()}
            except (ValueError, KeyError, TypeError):
                steps = {}  # the output of another tool
        if work == "restore":
            self._servers.delete_topic(target)
        return Round(
            *(work, tool.name, self._size, self._records, used["wall"], used["cpu"], int(used["peak"])),
            stored=sum(entry.size for entry in open_store(archive["store"], {"s3": S3Options(**archive["s3"])}).list()),
            broker=after["broker"] - before["broker"],
            store=after["minio"] - before["minio"],
            steps=steps,
            links=links,
        )


def _run(command: Sequence[str], env: Mapping[str, str], folder: Path) -> dict[str, float]:
    runner = [sys.executable, str(_ROOT / "scripts/bench/processes.py"), str(folder / "stdout"), *command]
    errors = folder / "stderr"
    with errors.open("wb") as file:
        done = subprocess.run(runner, env=env, stdout=subprocess.PIPE, stderr=file, check=True)
    used: dict[str, float] = json.loads(done.stdout)
    if used["code"]:
        raise SystemExit(f"{' '.join(command[:4])} … ended with {used['code']:.0f}:\n{errors.read_text()[-2000:]}")
    return used


_HEAD = (
    *("work", "tool", "records/s", "median", "wall s", "start-up s"),
    *("client CPU s", "µs a record", "memory MiB", "stored MiB", "broker s", "store s"),
)


def table(rounds: Sequence[Round]) -> str:
    """Return one row per work, size and tool: the range and the median of the rates, medians of the rest."""
    groups: dict[tuple[str, int, int, str], list[Round]] = {}
    for each in rounds:
        groups.setdefault((each.work, each.size, each.records, each.tool), []).append(each)
    return "\n".join(grid(_HEAD, [_row(group) for group in groups.values()]))


def steps_table(rounds: Sequence[Round]) -> str:
    """Return the medians of each step's time, and of what is outside of the steps, one column per tool."""
    of: dict[str, list[Round]] = {}
    for each in rounds:
        of.setdefault(f"{each.work}, {each.tool}", []).append(each)
    rows = [["before and after the steps"]]
    rows[0] += [f"{median(r.wall - sum(r.steps.values()) for r in group):.2f}" for group in of.values()]
    for name in dict.fromkeys(name for each in rounds for name in each.steps):
        rows.append([name, *(f"{median(r.steps.get(name, 0) for r in group):.2f}" for group in of.values())])
    return "\n".join(grid(("s", *of), rows))


def links_table(rounds: Sequence[Round], rate: float) -> str:
    """Return the rate of each link in MB/s, and its share of what the link takes, in the step `run`."""
    head = ("work", "tool", *(f"{name} MB/s, %" for name in rounds[0].links), "run s", "other s")
    rows = []
    for r in rounds:
        used = [size / r.steps["run"] for size in r.links.values()]
        shares = [f"{each / 1e6:.2f}, {100 * each / rate:.0f}" for each in used]
        rows.append([r.work, r.tool, *shares, f"{r.steps['run']:.1f}", f"{r.startup or 0:.1f}"])
    return "\n".join(grid(head, rows))


def document(rounds: Sequence[Round]) -> dict[str, Any]:
    """Return the rounds as a JSON document."""
    measured = [{**asdict(each), "rate": round(each.rate)} for each in rounds]
    return {"format": "kbackup-bench-whole", "version": 1, "cores": os.cpu_count(), "rounds": measured}


def _row(rounds: Sequence[Round]) -> list[str]:
    first = rounds[0]
    rates = sorted(each.rate for each in rounds)
    cpu = median(each.cpu for each in rounds)
    startup = [each.startup for each in rounds if each.startup is not None]
    return [
        f"{first.work} {first.records / 1e6:g}M x {first.size} B",
        first.tool,
        f"{rates[0] / 1000:,.0f}-{rates[-1] / 1000:,.0f}k",
        f"{median(rates) / 1000:,.0f}k",
        f"{median(each.wall for each in rounds):.1f}",
        f"{median(startup):.1f}" if startup else "",
        f"{cpu:.1f}",
        f"{cpu / first.records * 1e6:.2f}",
        f"{max(each.memory for each in rounds) / 2**20:,.0f}",
        f"{median(each.stored for each in rounds) / 2**20:,.0f}",
        f"{median(each.broker for each in rounds):.1f}",
        f"{median(each.store for each in rounds):.1f}",
    ]


_CASES = "540:1000000,540:4000000,540:16000000,140:8000000"

_WARM_RECORDS = 4_000  # of the first round, which brings programs into the system's caches and does not count


def main(arguments: list[str]) -> int:
    """Measure the rounds that the arguments ask for, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.whole", description=__doc__)
    add = parser.add_argument
    add("--cases", default=_CASES, help=f"value sizes and records ({_CASES})")
    add("--repeat", type=int, default=3, help="rounds (3)")
    add("--partitions", type=int, default=PARTITIONS, help=f"of the topic ({PARTITIONS})")
    add("--works", type=lambda text: tuple(text.split(",")), default=WORKS, help="backup,restore")
    add("--set", action="append", metavar="NAME=VALUE,…", help="kbackup once more, with these variables; '' for none")
    add("--against", type=Path, action="append", default=[], help="kbackup of another checkout")
    add("--peer", nargs=2, action="append", default=[], metavar=("FILE", "PROGRAM"), help="another tool")
    add("--far", type=lambda text: text.split(","), default=[], help="servers behind a link: kafka,minio")
    add("--delay", type=float, default=0.2, help="round trip of a link, in seconds (0.2)")
    add("--rate", type=float, default=5.0, help="MB/s of a link (5)")
    add("--steps", action="store_true", help="show the time of each of kbackup's steps too")
    add("--json", type=Path, metavar="FILE", help="write all rounds to FILE")
    options = parser.parse_args(arguments)
    options.set = options.set or [""]
    rounds: list[Round] = []
    for case in options.cases.split(","):
        size, _, records = case.partition(":")
        with Servers(far={name: Link(options.delay, options.rate * 1e6) for name in options.far}) as servers:
            warm = (
                WholeBench(servers, int(size), _WARM_RECORDS, _tools(options))
                if not rounds and not options.far
                else None
            )
            for each in warm.rounds(1, options.works) if warm else ():
                print(f"not counted: {each.tool} {each.wall:.1f} s", file=sys.stderr, flush=True)
            bench = WholeBench(servers, int(size), int(records), _tools(options), options.partitions)
            for each in bench.rounds(options.repeat, options.works):
                rounds.append(each)
                startup = f", start-up {each.startup:.1f} s" if each.startup is not None else ""
                line = f"{each.work} {size} B {each.tool}: {each.rate:,.0f} records/s, {each.wall:.1f} s{startup}"
                print(line, file=sys.stderr, flush=True)
                if options.json is not None:
                    options.json.write_text(json.dumps(document(rounds), indent=1) + "\n")
    more = [steps_table(rounds)] if options.steps else []
    more += [links_table(rounds, options.rate * 1e6)] if options.far else []
    print(table(rounds), *more, sep="\n\n")
    return 0


def _tools(options: argparse.Namespace) -> list[tuple[Tool, str]]:
    tools = []
    for value in options.set:
        more = dict(each.split("=", 1) for each in value.split(",") if each)
        tools.append((kbackup(f"kbackup {value}".rstrip(), more=more), ""))
    tools += [(kbackup(tree.name, tree.resolve()), "") for tree in options.against]
    return [*tools, *((Tool.load(Path(file)), program) for file, program in options.peer)]


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops the servers
    try:
        sys.exit(main(sys.argv[1:]))
    except (KbackupError, MissingToolError) as error:
        sys.exit(f"error: {error}")
