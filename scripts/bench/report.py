"""Show measurements as tables for people and a document for machines."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import confluent_kafka

from kbackup import __version__
from scripts.bench.data import encoded_bytes
from scripts.bench.measure import LOOPS, Result
from scripts.bench.targets import MIB, share, verdicts
from scripts.bench.text import grid

_NOTE = """\
Medians. Data phase: kbackup's step 'run' with Spark and its Python workers started before; the bare loops from their
first call to their last record. /consume, /kernel, /upload, /produce: the rate to that of the bare loop of the same
round. CPU in µs a record, of all processes of a kind; memory: the high-water mark of the largest one, in MiB.
"""
_BARE = ("consume", "kernel", "upload", "produce")
_HEAD = (
    *("value", "loop", "s", "records/s", "MB/s", *(f"/{name}" for name in _BARE), "stored"),
    *("CPU", "jvm", "driver", "broker", "minio", "memory", "jvm", "driver"),
)
_MEMORY = ("value", "records", "loop", "s", "worker", "jvm", "driver")


@dataclass
class Measured:
    """`speed` are rounds over the sizes; `grown` the same topic small and ten times as large; `large` records of
    megabytes."""

    speed: list[Result] = field(default_factory=list)
    grown: list[Result] = field(default_factory=list)
    large: list[Result] = field(default_factory=list)


def table(measured: Measured) -> str:
    lines = [_NOTE, *grid(_HEAD, [_speed(rows, measured.speed) for rows in _groups(measured.speed)])]
    ours = [r for r in measured.speed if LOOPS[r.loop].is_job]
    if ours:
        session, workers = (median(r.start[name] for r in ours) for name in ("session", "workers"))
        lines += ["", f"before the data: Spark's session {session:.1f} s, its Python workers {workers:.1f} s"]
    more = [*measured.grown, *measured.large]
    if more:
        lines += ["", "Large topics and large records:", *grid(_MEMORY, [_memory(r) for r in more])]
    judged = verdicts(measured.speed, measured.grown, measured.large)
    rows = [(v.what, v.measured, v.target, "met" if v.met else "NOT MET") for v in judged]
    return "\n".join([*lines, "", *grid(("what", "measured", "target", ""), rows)])


def document(options: Mapping[str, Any], measured: Measured) -> dict[str, Any]:
    return {
        "format": "kbackup-bench",
        "version": 2,
        "machine": {
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
            "librdkafka": confluent_kafka.libversion()[0],
            "kernel": os.environ.get("KBACKUP_KERNEL", ""),
            "kbackup": __version__,
        },
        "options": {name: str(value) for name, value in options.items()},
        "what": _NOTE,
        "targets": [v._asdict() for v in verdicts(measured.speed, measured.grown, measured.large)],
        "results": [r.document() for r in measured.speed],
        "growth": [r.document() for r in measured.grown],
        "large records": [r.document() for r in measured.large],
    }


def _speed(rows: Sequence[Result], results: Sequence[Result]) -> list[str]:
    first = rows[0]
    rate = median(r.rate for r in rows)
    loop = LOOPS[first.loop]
    shares = [share(first.loop, f"bare {name}", first.size, results) for name in _BARE]
    ours = {"backup": (0, 1, 2), "restore": (3,)}.get(loop.work, ())
    cpu = [_micros(rows, name) for name in ("worker" if loop.is_job else "loop", *_SERVERS)]
    peak = [_mib(rows, name) for name in ("worker" if loop.is_job else "loop", "jvm", "driver")]
    return [
        f"{first.size} B",
        first.loop,
        f"{median(r.seconds for r in rows):.1f}",
        f"{rate:,.0f}",
        f"{rate * encoded_bytes(first.size) / 1e6:.0f}",
        *(
            f"{measured:.2f}" if measured is not None and n in ours else ""
            for n, measured in enumerate(shares)
        ),
        f"{median(r.stored_share for r in rows):.2f}" if "stored" in first.sizes else "",
        *cpu,
        *peak,
    ]


_SERVERS = ("jvm", "driver", "broker", "minio")


def _memory(result: Result) -> list[str]:
    peaks = [_mib([result], name) for name in ("worker", "jvm", "driver")]
    return [f"{result.size:,} B", f"{result.records:,}", result.loop, f"{result.seconds:.1f}", *peaks]


def _groups(results: Iterable[Result]) -> list[list[Result]]:
    """Rounds of the same loop together, in order of first appearance."""
    measured: dict[tuple[int, str], list[Result]] = {}
    for result in results:
        measured.setdefault((result.size, result.loop), []).append(result)
    return list(measured.values())


def _micros(rows: Sequence[Result], role: str) -> str:
    if role not in rows[0].cpu:
        return ""
    return f"{median(r.cpu[role] / r.records for r in rows) * 1e6:.2f}"


def _mib(rows: Sequence[Result], role: str) -> str:
    return f"{max(r.peak[role] for r in rows) / MIB:.0f}" if role in rows[0].peak else ""
