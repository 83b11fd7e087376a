"""Show rounds of whole commands as a table for people and a document for machines."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from scripts.bench.text import grid
from scripts.bench.whole.measure import Round

_HEAD = (
    *("work", "tool", "records/s", "median", "wall s", "start-up s"),
    *("client CPU s", "µs a record", "memory MiB", "stored MiB", "broker s", "store s"),
)


def table(rounds: Sequence[Round]) -> str:
    """Return one row a work, size and tool: the range and the median of the rates, medians of the rest."""
    return "\n".join(grid(_HEAD, [_row(group) for group in _groups(rounds)]))


def document(rounds: Sequence[Round]) -> dict[str, Any]:
    """Return the rounds as a JSON document."""
    return {
        "format": "kbackup-bench-whole",
        "version": 1,
        "cores": os.cpu_count(),
        "rounds": [each.document() for each in rounds],
    }


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


def _groups(rounds: Iterable[Round]) -> list[list[Round]]:
    """Return the rounds of the same work, size, number of records and tool together, in order of appearance."""
    groups: dict[tuple[str, int, int, str], list[Round]] = {}
    for each in rounds:
        groups.setdefault((each.work, each.size, each.records, each.tool), []).append(each)
    return list(groups.values())
