"""The worked table of `infra/docs/scale.md`, by the model: `python -m scripts.bench.scale` prints it."""

from __future__ import annotations

from collections.abc import Iterator

from scripts.bench.model import Cluster, Data, cost
from scripts.bench.sizing import RUN

CASES = ((1_000, 1e12), (10_000, 1e14), (100_000, 1e15))
RUNS = {"first": 1.0, "night": 0.01}
EXECUTORS = (1, 4, 16, 64)
CORES, RATE, RECORD = 4, 150e6, 1024
RESTORE_POINT = (
    RUN  # objects beside segments and derived files: lease, catalogs, tables, manifest, groups, metadata
)


def rows() -> Iterator[str]:
    """Lines of a Markdown table, without its head."""
    for partitions, size in CASES:
        for name, share in RUNS.items():
            yield _row(name, Data(partitions, size * share, RECORD))


def _row(name: str, data: Data) -> str:
    puts = data.puts() + 2 * data.partitions + RESTORE_POINT
    hours = (Cluster(n, CORES, RATE).bound(data.size, data.tasks) / 3600 for n in EXECUTORS)
    gets = data.gets()
    cells = (
        *(f"{data.partitions:,}", _bytes(data.size), name, f"{data.tasks:,}", f"{data.segments:,}"),
        *(f"{puts:,}", f"{cost({'PUT': puts}):,.2f}", *(f"{each:,.2f}" for each in hours)),
        *(f"{gets:,}", f"{cost({'GET': gets}):,.2f}"),
    )
    return f"| {' | '.join(cells)} |"


def _bytes(size: float) -> str:
    return f"{size / 1e15:g} PB" if size >= 1e15 else f"{size / 1e12:g} TB"


if __name__ == "__main__":
    print("\n".join(rows()))
