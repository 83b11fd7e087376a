"""Calculate the size and the cost of an archive, in plain formulas (`infra/docs/sizing.md`).

`python -m scripts.bench.sizing` prints the page's worked table, or with options a row for a cluster of yours.
Sizes are in bytes, prices in US dollars: a GB and month of storage, 1,000 requests.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from math import ceil

from scripts.bench.model import PRICES, Data, segments_of, upload_requests

GB = 1e9
MONTH = 30.0  # days
INDEX = 24  # bytes a record
MANIFEST, TABLE, OFFSETS, POINT = 280, 24, 151, 300
"""Bytes: of a manifest for each partition, of `tables/` for each segment, of `groups.json` for each committed offset,
of `tables/` for each restore point and its history. All but the last as `infra/docs/scale.md` has them."""
STORED = 2
"""A table and the one that it replaced, which a sweep deletes later."""
RUN = 14
"""PUTs of a run beside segments and derived files, at most: its documents, tables, catalogs, `derived.json`, the
lease."""
OPENING = {"GET": 40, "LIST": 8}
"""The requests of a run before it writes (`infra/docs/requests.md`)."""


@dataclass(frozen=True)
class Prices:
    storage: float = 0.023
    put: float = PRICES["PUT"]
    get: float = PRICES["GET"]


@dataclass(frozen=True)
class Cluster:
    """`held` bytes of records when backups begin, `daily` new ones a day, all of them in the archive's own encoding;
    `moving` is the share of the partitions that have new ones in a run."""

    partitions: int = 100
    held: float = 10 * GB
    daily: float = 1 * GB
    record: int = 1024
    runs: float = 1.0
    keep: float = 90.0
    """Days: what is older has expired."""
    stored: float = 0.25
    """Stored bytes to encoded ones: about 0.25 for JSON, 1 without compression."""
    groups: int = 2
    """Committed offsets of each partition."""
    moving: float = 1.0
    prices: Prices = field(default=Prices())

    @property
    def active(self) -> int:
        return max(1, round(self.partitions * self.moving))

    @property
    def records(self) -> float:
        """Bytes of records in the archive, when it has been kept for `keep` days."""
        return self.held + self.daily * self.keep

    @property
    def points(self) -> float:
        return self.runs * self.keep

    @property
    def segments(self) -> float:
        """Return the segments of the first run and of all later ones."""
        first = self.partitions * segments_of(self.held / self.partitions)
        return first + self.points * self.night.segments

    @property
    def night(self) -> Data:
        """Return the new data of one run."""
        return Data(self.active, self.daily / self.runs, self.record)

    @property
    def segment_bytes(self) -> float:
        """The stored bytes of records and of their indexes, which are never compressed."""
        return self.records * self.stored + INDEX * self.records / self.record

    @property
    def point_bytes(self) -> float:
        """Manifests, groups, tables."""
        each = self.partitions * (MANIFEST + OFFSETS * self.groups)
        return self.points * (each + STORED * POINT) + self.segments * TABLE * STORED

    @property
    def objects(self) -> float:
        return 2 * self.segments + 2 * self.partitions + 3 * self.points

    @property
    def run_puts(self) -> float:
        """Of one run: segments with indexes, index and group file of each partition that moved, the restore point."""
        share = self.night.share
        pieces = segments_of(share)
        parts = upload_requests(share * self.stored / pieces) + upload_requests(
            INDEX * share / self.record / pieces
        )
        return self.active * (pieces * parts + 2) + RUN

    @property
    def month(self) -> dict[str, float]:
        """US dollars by what for."""
        runs = self.runs * MONTH
        return {
            "storage": (self.segment_bytes + self.point_bytes) / GB * self.prices.storage,
            "writing": runs * self.run_puts / 1000 * self.prices.put,
            "reading": runs * (OPENING["GET"] * self.prices.get + OPENING["LIST"] * self.prices.put) / 1000,
        }


CASES = {
    "small": Cluster(),
    "small, none": Cluster(stored=1.0),
    "middle": Cluster(1_000, 1_000 * GB, 50 * GB),
    "middle, every hour": Cluster(1_000, 1_000 * GB, 50 * GB, runs=24),
    "middle, every minute": Cluster(1_000, 1_000 * GB, 50 * GB, runs=1440, moving=0.1),
    "large": Cluster(10_000, 100_000 * GB, 1_000 * GB),
    "large, none": Cluster(10_000, 100_000 * GB, 1_000 * GB, stored=1.0),
}
HEAD = (
    "cluster",
    *("partitions", "held", "a day", "runs a day"),
    *("segments", "objects", "records and indexes", "restore points"),
    *("PUTs a run", "storage, $ a month", "writing, $", "looking, $"),
)


def rows(cases: dict[str, Cluster] | None = None) -> Iterator[str]:
    """Lines of a Markdown table, with its head."""
    yield f"| {' | '.join(HEAD)} |"
    yield f"|{'---|' * len(HEAD)}"
    for name, one in (CASES if cases is None else cases).items():
        paid = one.month
        cells = (
            *(name, f"{one.partitions:,}", _bytes(one.held), _bytes(one.daily), f"{one.runs:g}"),
            *(f"{ceil(one.segments):,}", f"{ceil(one.objects):,}"),
            *(_bytes(one.segment_bytes), _bytes(one.point_bytes), f"{ceil(one.run_puts):,}"),
            *(f"{paid[what]:,.2f}" for what in ("storage", "writing", "reading")),
        )
        yield f"| {' | '.join(cells)} |"


def _bytes(size: float) -> str:
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size / 1e3:.3g} kB"


def main(arguments: Sequence[str] | None = None) -> int:
    cases = _asked(arguments)
    print("\n".join(rows(cases)))
    return 0


def _asked(arguments: Sequence[str] | None) -> dict[str, Cluster] | None:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.sizing", description=__doc__)
    numbers = [one for kind in (Cluster, Prices) for one in fields(kind) if one.name != "prices"]
    for one in numbers:
        whole = isinstance(one.default, int)
        parser.add_argument(f"--{one.name}", type=int if whole else float, default=one.default)
    given = vars(parser.parse_args(arguments))
    asked = Cluster(
        **{one.name: given[one.name] for one in fields(Cluster) if one.name != "prices"},
        prices=Prices(**{one.name: given[one.name] for one in fields(Prices)}),
    )
    return None if asked == Cluster() else {"yours": asked}


if __name__ == "__main__":
    sys.exit(main())
