"""What was measured, as a table for people and a document for machines."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import confluent_kafka

from kbackup import __version__
from scripts.bench.measure import Result, What
from scripts.bench.text import grid

_MIB = 1 << 20
_NOTE = """\
Medians. Data phase: kbackup's step 'run' with Spark and its Python workers started before; the bare loops from their
first call to their last record. ratio: kbackup's rate to that of the bare loop with as many processes, of the same
round. CPU in µs a record, of all processes of a kind; memory: the high-water mark of the largest one, in MiB.
"""


def table(results: Sequence[Result], grown: Sequence[Result]) -> str:
    found = ratios(results)
    lines = [_NOTE, *grid(_SPEED, [_speed(rows, found) for rows in _groups(results)])]
    ours = [r for r in results if r.loop == "kbackup"]
    if ours:
        session, workers = (median(r.start[name] for r in ours) for name in ("session", "workers"))
        lines += ["", f"before the data: Spark's session {session:.1f} s, its Python workers {workers:.1f} s"]
    if grown:
        lines += ["", "Memory when the topic grows:", *grid(_MEMORY, [_memory(r) for r in grown])]
    return "\n".join(lines)


def document(
    options: Mapping[str, Any], results: Sequence[Result], grown: Sequence[Result]
) -> dict[str, Any]:
    return {
        "format": "kbackup-bench",
        "version": 1,
        "machine": {
            "cores": os.cpu_count(),
            "system": platform.platform(),
            "python": platform.python_version(),
            "librdkafka": confluent_kafka.libversion()[0],
            "kbackup": __version__,
        },
        "options": {name: str(value) for name, value in options.items()},
        "what": _NOTE,
        "ratios": ratios(results),
        "results": [r.document() for r in results],
        "memory": [r.document() for r in grown],
    }


def ratios(results: Sequence[Result]) -> dict[str, float]:
    """kbackup's rate to the bare loop's by '<what> <size>': the median of the rounds' ratios."""
    return {
        f"{rows[0].what} {rows[0].size}": round(_ratio(rows, results), 3)
        for rows in _groups(results)
        if rows[0].loop == "kbackup"
    }


_SPEED = (
    *("value", "loop", "procs", "s", "records/s", "MB/s", "ratio"),
    *("CPU", "jvm", "driver", "broker", "minio", "memory", "jvm", "driver"),
)
_MEMORY = ("records", "what", "worker", "jvm", "driver", "records/s")


def _speed(rows: Sequence[Result], found: Mapping[str, float]) -> list[str]:
    first = rows[0]
    ratio = found[f"{first.what} {first.size}"] if first.loop == "kbackup" else None
    rate = median(r.rate for r in rows)
    work = "worker" if first.loop == "kbackup" else "loop"
    cpu = [_micros(rows, name) for name in (work, "jvm", "driver", "broker", "minio")]
    peak = [_mib(rows, name) for name in (work, "jvm", "driver")]
    return [
        f"{first.size} B",
        first.what
        if first.loop == "kbackup"
        else "  bare " + ("consume" if first.what == "backup" else "produce"),
        str(first.processes),
        f"{median(r.seconds for r in rows):.1f}",
        f"{rate:,.0f}",
        f"{rate * first.size / 1e6:.0f}",
        "" if ratio is None else f"{ratio:.2f}",
        *cpu,
        *peak,
    ]


def _memory(result: Result) -> list[str]:
    peaks = [_mib([result], name) for name in ("worker", "jvm", "driver")]
    return [f"{result.records:,}", result.what, *peaks, f"{result.rate:,.0f}"]


def _ratio(rows: Sequence[Result], results: Sequence[Result]) -> float:
    bare = [
        r
        for r in results
        if (r.what, r.size, r.processes, r.loop) == (rows[0].what, rows[0].size, rows[0].processes, "bare")
    ]
    return median(ours.rate / theirs.rate for ours, theirs in zip(rows, bare, strict=True))


def _groups(results: Iterable[Result]) -> list[list[Result]]:
    """Rounds of the same loop together, in order of first appearance."""
    found: dict[tuple[int, What, str, int], list[Result]] = {}
    for result in results:
        found.setdefault((result.size, result.what, result.loop, result.processes), []).append(result)
    return list(found.values())


def _micros(rows: Sequence[Result], role: str) -> str:
    if role not in rows[0].cpu:
        return ""
    return f"{median(r.cpu[role] / r.records for r in rows) * 1e6:.2f}"


def _mib(rows: Sequence[Result], role: str) -> str:
    return f"{max(r.peak[role] for r in rows) / _MIB:.0f}" if role in rows[0].peak else ""
