"""Compare the figures with their targets.

Rates depend on the machine; the shares, measured within one round, are what counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

from scripts.bench.measure import Result

MIB = 1 << 20

_RATES = {
    ("backup", 140): 900e3,
    ("backup", 540): 2 * 362e3,
    ("backup", 1024): 1.5 * 147e3,
    ("restore", 140): 2 * 392e3,
    ("restore", 540): 2 * 204e3,
}
"""Records/s by loop and value size: multiples of what the strongest peer (OSO kafka-backup 0.25.2) reached on a
machine of two cores with broker and S3 server beside it."""

_RAW_UPLOAD = 0.9  # where the rate of the table is beyond the S3 server, this share of a raw upload will do
_SHARES = {
    ("backup", "bare kernel"): 0.45,
    ("restore", "restore, no transactions"): 0.85,
    ("backup zstd", "backup"): 0.8,
}
_STORED = 0.25
_WORKER = 400 * MIB
_A_FEW = 3  # records of the largest size that a worker may hold beside that
_LARGE = 1_000_000  # bytes; smaller ones are within the limit
_GROWTH = 0.1


class Verdict(NamedTuple):
    what: str
    measured: str
    target: str
    met: bool


def verdicts(results: Sequence[Result], grown: Sequence[Result], large: Sequence[Result]) -> list[Verdict]:
    found = [v for size in dict.fromkeys(r.size for r in results) for v in _of_size(size, results)]
    return [*found, *_memory([*results, *grown, *large]), *_growth(grown)]


def share(of: str, to: str, size: int, results: Iterable[Result]) -> float | None:
    """The median over the rounds of `of`'s rate to `to`'s; None where one of them did not run."""
    every = list(results)
    ours, theirs = ([r.rate for r in every if (r.loop, r.size) == (name, size)] for name in (of, to))
    if not ours or not theirs:
        return None
    return median(a / b for a, b in zip(ours, theirs, strict=False))


def _of_size(size: int, results: Sequence[Result]) -> Iterator[Verdict]:
    for (loop, at), rate in _RATES.items():
        rates = [r.rate for r in results if (r.loop, r.size) == (loop, size)]
        if at == size and rates:
            yield _rate(loop, size, median(rates), rate, results)
    for (loop, other), least in _SHARES.items():
        found = share(loop, other, size, results)
        if found is not None and (other != "bare kernel" or size == 140):
            yield Verdict(f"{loop} to {other}, {size} B", f"{found:.2f}", f">= {least:.2f}", found >= least)
    stored = [r.stored_share for r in results if (r.loop, r.size) == ("backup zstd", size)]
    if stored:
        yield Verdict(
            f"zstd, stored share, {size} B",
            f"{median(stored):.3f}",
            f"<= {_STORED}",
            median(stored) <= _STORED,
        )


def _rate(loop: str, size: int, rate: float, least: float, results: Sequence[Result]) -> Verdict:
    raw = share(loop, "bare upload", size, results) if loop == "backup" and size != 140 else None
    measured, target, met = f"{rate:,.0f}/s", f">= {least:,.0f}/s", rate >= least
    if raw is not None:
        measured += f", {raw:.2f} of a raw upload"
        target += f" or {_RAW_UPLOAD:.2f}"
        met = met or raw >= _RAW_UPLOAD
    return Verdict(f"{loop}, {size} B", measured, target, met)


def _memory(results: Iterable[Result]) -> Iterator[Verdict]:
    by_size: dict[int, int] = {}
    for result in results:
        if "worker" in result.peak:
            by_size[result.size] = max(by_size.get(result.size, 0), result.peak["worker"])
    for size, peak in by_size.items():
        limit = _WORKER + (_A_FEW * size if size > _LARGE else 0)
        yield Verdict(
            f"memory of a worker, {size:,} B", f"{peak / MIB:.0f} MiB", f"<= {limit / MIB:.0f}", peak <= limit
        )


def _growth(grown: Sequence[Result]) -> Iterator[Verdict]:
    for loop in dict.fromkeys(r.loop for r in grown):
        ours = sorted((r for r in grown if r.loop == loop), key=lambda r: r.records)
        small, big = ([r for r in ours if r.records == n] for n in (ours[0].records, ours[-1].records))
        times = big[0].records / small[0].records
        ratio = median(r.seconds for r in big) / median(r.seconds for r in small) / times
        yield Verdict(
            f"{loop}, {times:.0f} x the records, time to {times:.0f} x",
            f"{ratio:.2f}",
            f"{1 - _GROWTH:.2f} to {1 + _GROWTH:.2f}",
            abs(ratio - 1) <= _GROWTH,
        )
