"""One measured loop at a time: kbackup's, and the bare one beside it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from scripts.bench import data
from scripts.bench.children import Child, Spec, children
from scripts.bench.processes import Tree
from scripts.bench.servers import Servers

What = Literal["backup", "restore"]
Seconds = dict[str, float]


@dataclass(frozen=True)
class Result:
    """`seconds` is the wall time of the data phase; `cpu` its CPU seconds and `peak` the most bytes of one process
    in its whole life, by role; `start` what came before, `steps` kbackup's own times by step."""

    what: What
    loop: Literal["kbackup", "bare"]
    processes: int
    size: int
    records: int
    seconds: float
    cpu: Seconds
    peak: dict[str, int]
    start: Seconds = field(default_factory=dict)
    steps: Seconds = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Records a second."""
        return self.records / self.seconds

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "rate": round(self.rate)}


class Bench:
    """What one size of records needs: servers and a topic of `records` records."""

    def __init__(self, servers: Servers, size: int, records: int, tasks: int) -> None:
        self._servers, self._size, self._tasks = servers, size, tasks
        self._count = records // data.PARTITIONS
        self._records = self._count * data.PARTITIONS
        self._topic = servers.fill(size, self._count)
        self._archive: dict[str, Any] = {}

    def bare(self, what: What, processes: int) -> Result:
        topic = self._topic if what == "backup" else self._servers.new_topic()
        specs = [
            {
                "bootstrap": self._servers.broker.bootstrap,
                "topic": topic,
                "partitions": list(range(number, data.PARTITIONS, processes)),
                "size": self._size,
                "count": self._count,
            }
            for number in range(processes)
        ]
        loop = "consume" if what == "backup" else "produce"
        with children(specs, "scripts.bench.bare", loop) as running:
            before = self._servers.cpu()
            for child in running:
                child.tell({"go": True})
            said = [child.hear() for child in running]
            servers = _difference(self._servers.cpu(), before)
        if what == "restore":
            self._servers.delete_topic(topic)
        return Result(
            what,
            "bare",
            processes,
            self._size,
            sum(words["records"] for words in said),
            max(words["ended"] for words in said) - min(words["began"] for words in said),
            {"loop": sum(words["cpu"] for words in said), **servers},
            {"loop": max(words["peak"] for words in said)},
        )

    def kbackup(self, what: What) -> Result:
        """A restore takes the archive of the last backup, and makes one first where there is none."""
        spec: Spec = {
            "bootstrap": self._servers.broker.bootstrap,
            "topic": self._topic,
            "target": self._servers.unused_name(),
            "tasks": self._tasks,
        }
        if what == "backup":
            self._archive = self._servers.new_archive()
        elif not self._archive:
            self.kbackup("backup")
        with children([spec | self._archive], "scripts.bench.job", what) as (child,), Tree(child.pid) as tree:
            child.tell({"go": True})
            cpu, words = self._follow(child, tree)
        if what == "restore":
            self._servers.delete_topic(spec["target"])
        return Result(
            what,
            "kbackup",
            self._tasks,
            self._size,
            self._records,
            words["seconds"]["run"],
            cpu,
            tree.peaks(),
            {"session": words["session"], "workers": words["warm"]},
            words["seconds"],
        )

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
