"""One measured loop at a time: kbackup's, and the bare ones beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from scripts.bench import data
from scripts.bench.children import Child, Spec, children
from scripts.bench.model import segments_of
from scripts.bench.processes import Tree
from scripts.bench.servers import Servers

Seconds = dict[str, float]


class Loop(NamedTuple):
    """`work` is a job of kbackup (with `options`), or a bare loop. `archive` is the loop whose archive is restored."""

    work: str
    options: Mapping[str, Any] = {}
    archive: str = ""

    @property
    def is_job(self) -> bool:
        return self.work in {"backup", "restore"}


LOOPS = {
    "bare consume": Loop("consume"),
    "bare kernel": Loop("kernel"),
    "bare upload": Loop("upload"),
    "backup": Loop("backup", {"compression": "none"}),
    "backup zstd": Loop("backup", {"compression": "zstd"}),
    "bare produce": Loop("produce"),
    "restore": Loop("restore", archive="backup"),
    "restore zstd": Loop("restore", archive="backup zstd"),
    "restore, no transactions": Loop("restore", {"transactions": False}, "backup"),
}
"""In the order of a round: a restore takes the archive of the last backup of its kind."""


@dataclass(frozen=True)
class Result:
    """`seconds` is the wall time of the data phase; `cpu` its CPU seconds and `peak` the most bytes of one process
    in its whole life, by role; `start` what came before, `steps` kbackup's own times by step, `sizes` its bytes."""

    loop: str
    processes: int
    size: int
    records: int
    seconds: float
    cpu: Seconds
    peak: dict[str, int]
    start: Seconds = field(default_factory=dict)
    steps: Seconds = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Records a second."""
        return self.records / self.seconds

    @property
    def stored_share(self) -> float:
        """Stored bytes to those of the documented files."""
        return self.sizes["stored"] / self.sizes["bytes"]

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "rate": round(self.rate)}


class Bench:
    """The servers and the topic of `records` records for one size of records, written once.

    The command line of every measured process begins with `within`.
    """

    def __init__(
        self,
        servers: Servers,
        size: int,
        records: int,
        tasks: int,
        partitions: int = data.PARTITIONS,
        within: Sequence[str] = (),
        made: data.Made = data.records,
    ) -> None:
        self._servers, self._size, self._tasks, self._partitions = servers, size, tasks, partitions
        self._within = within
        self._count = max(1, records // partitions)
        self._records = self._count * partitions
        self._topic = servers.fill(size, self._count, partitions, made)
        self._archives: dict[str, dict[str, Any]] = {}

    def run(self, name: str, extra: Spec | None = None) -> Result:
        """`extra` are settings to try: 'cluster' (of the Kafka client), 'options' (of the job), 's3_options'."""
        loop = LOOPS[name]
        return self._job(name, loop, extra or {}) if loop.is_job else self._bare(name, loop, extra or {})

    def _bare(self, name: str, loop: Loop, extra: Spec) -> Result:
        makes_topic = loop.work == "produce"
        topic = self._servers.new_topic(self._partitions, self._size) if makes_topic else self._topic
        where = self._servers.new_archive()
        specs = [self._spec(number, topic) | where | extra for number in range(self._tasks)]
        with children(specs, "scripts.bench.bare", loop.work, within=self._within) as running:
            before = self._servers.cpu()
            for child in running:
                child.tell({"go": True})
            answers = [child.hear() for child in running]
            servers = _difference(self._servers.cpu(), before)
        if makes_topic:
            self._servers.delete_topic(topic)
        self._servers.delete_archive(where)
        return Result(
            name,
            self._tasks,
            self._size,
            sum(words["records"] for words in answers),
            max(words["ended"] for words in answers) - min(words["began"] for words in answers),
            {"loop": sum(words["cpu"] for words in answers), **servers},
            {"loop": max(words["peak"] for words in answers)},
        )

    def _spec(self, number: int, topic: str) -> Spec:
        """Of process `number`: its partitions, and what its uploads amount to."""
        here = list(range(number, self._partitions, self._tasks))
        size = self._count * data.encoded_bytes(self._size)
        pieces = segments_of(size)
        return {
            "bootstrap": self._servers.broker.bootstrap,
            "topic": topic,
            "partitions": here,
            "size": self._size,
            "count": self._count,
            "records": self._count * len(here),
            "prefix": f"process-{number}",
            "segments": pieces * len(here),
            "segment_bytes": size // pieces,
            "index_bytes": 24 * self._count // pieces,
        }

    def _job(self, name: str, loop: Loop, extra: Spec) -> Result:
        spec: Spec = {
            "bootstrap": self._servers.broker.bootstrap,
            "topic": self._topic,
            "target": self._servers.unused_name(),
            "tasks": self._tasks,
            **extra,
            "options": {**loop.options, **extra.get("options", {})},
        }
        where = self._archive_for(name)
        begun = children([spec | where], "scripts.bench.job", loop.work, within=self._within)
        with begun as (child,), Tree(child.pid) as tree:
            child.tell({"go": True})
            cpu, words = self._follow(child, tree)
        if loop.work == "restore":
            self._servers.delete_topic(spec["target"])
        return Result(
            name,
            self._tasks,
            self._size,
            self._records,
            words["seconds"]["run"],
            cpu,
            tree.peaks(),
            {"session": words["session"], "workers": words["warm"]},
            words["seconds"],
            words["sizes"],
        )

    def _archive_for(self, name: str) -> dict[str, Any]:
        """A new one for a backup, kept until the next of its kind. A restore takes that, and makes it where there is
        none."""
        if LOOPS[name].work == "backup":
            if name in self._archives:
                self._servers.delete_archive(self._archives[name])
            self._archives[name] = self._servers.new_archive()
            return self._archives[name]
        if LOOPS[name].archive not in self._archives:
            self.run(LOOPS[name].archive)
        return self._archives[LOOPS[name].archive]

    def _follow(self, child: Child, tree: Tree) -> tuple[Seconds, dict[str, Any]]:
        """The CPU that tree and servers used in step 'run', and the child's last words."""
        marks: list[Seconds] = []
        words: dict[str, Any] = {"phase": None}
        while words["phase"] != "":
            words = child.hear()
            if words["phase"] == "run" or len(marks) == 1:
                marks.append({**tree.cpu(), **self._servers.cpu()})
        return _difference(marks[1], marks[0]), words


def _difference(after: Seconds, before: Seconds) -> Seconds:
    return {name: round(used - before.get(name, 0.0), 2) for name, used in after.items()}
