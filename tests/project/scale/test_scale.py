"""infra/docs/scale.md, sizing.md and requests.md say what the model, the code and the measurements say."""

from __future__ import annotations

import json
import os
import re
from collections import Counter

import msgspec
import pytest

from kbackup.archive.catalog.operations import add_point
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import Manifest
from kbackup.archive.run import TOOL, begin_writing, put_manifest, totals_of
from kbackup.archive.segments.read import FETCH_SPAN
from kbackup.archive.segments.table import in_table
from kbackup.archive.segments.writer import SegmentTarget
from kbackup.config.models import Backup, Follow
from kbackup.jobs.backup.follow import _CAPTURE_EVERY
from kbackup.jobs.backup.task import PACK_PARTITIONS
from kbackup.mirror.reader import INTERVAL_SECONDS
from scripts.bench.requests import table
from tests.project.docs.documents import ROOT
from tests.project.scale.model import CORES, PREFIX_RATES, PRICES, RATE, RECORD, RUN, Cluster, worked_rows
from tests.project.scale.simulated import report_of, simulate
from tests.support.archives import topic_archive, topic_state, write_block
from tests.support.faulty_store import Counting
from tests.support.made_segments import block
from tests.support.memory_store import MemoryStore

DOCS = ROOT / "infra" / "docs"
SCALE, SIZING, REQUESTS = (
    (DOCS / f"{name}.md").read_text("utf-8").replace("\u00d7", "x") for name in ("scale", "sizing", "requests")
)
MEASURED = json.loads((ROOT / "scripts" / "bench" / "results" / "requests.json").read_text("utf-8"))


def test_the_worked_table_is_the_models() -> None:
    assert [line for line in SCALE.splitlines() if re.search(r"\| (first|night) \|", line)] == [*worked_rows()]


def test_the_numbers_in_the_text_are_those_of_the_code() -> None:
    cluster = Cluster(1, 1, 1.0)
    for text in (
        f"{RATE / 1e6:.0f} MB/s below",
        f"records of {RECORD >> 10} KiB, executors of {CORES} cores",
        f"{cluster.start:.0f} s + max((B / R + tasks x {cluster.task} s) / (N x C), tasks / {cluster.launch:.0f}",
        f"up to {PACK_PARTITIONS} partitions share one",
        f"ranges of {FETCH_SPAN >> 20} MiB",
        f"${PRICES['PUT']} for 1,000 PUT or LIST, ${PRICES['GET']} for 1,000 GET",
        f"{PREFIX_RATES['PUT']:,} PUT and {PREFIX_RATES['GET']:,} GET a second",
    ):
        assert text in SCALE, text
    for text in (f"with new records, {RUN} for the run", f"one every {Backup().lease_seconds / 3:.0f} s"):
        assert text in SIZING, text


def test_the_cost_of_a_mirror() -> None:
    """The formulas hold for a commit of a follower, and the table for the formulas."""
    store = Counting(MemoryStore())
    old = topic_archive(store, "orders", block(range(10)))
    with HeldLease(store, "kbackup test", 60) as lease:
        run = begin_writing(store, lease, "backup")
        run.hints = False
        head = run.archive.restore_point("latest")
        store.calls.clear()
        new = write_block(store, SegmentTarget("orders", 1, 0, 1 << 24, "none"), block(range(10, 20)))
        state = topic_state("orders", [(0, 20, [*old, *new])], captured=2)
        manifest = Manifest(
            archive_id=run.archive_id,
            number=2,
            run=run.run,
            previous=run.previous,
            tool=TOOL,
            started_at=head.started_at,
            committed_at=head.committed_at,
            totals=totals_of(new, topics=1, partitions=1, groups=0),
            captures=(msgspec.structs.replace(head.captures[0], number=2),),
            topics=(state,),
        )
        manifest, added = put_manifest(run, manifest), in_table(new)
        run.commit(lambda state: add_point(state, manifest, added), "backup", "test")
        # two of the segment, manifest, two tables, catalog, and a look behind: 2 x P + 5; the apply half adds P + 1
        assert Counter(operation for operation, _ in store.calls) == {"commit": 2, "put_new": 4}
    mirroring, follow, busy = (DOCS / "mirroring.md").read_text("utf-8"), Follow(), 4
    assert f"{follow.lease_seconds} s (`follow" in mirroring
    for interval, name in ((0.1, "100ms"), (1, "1s"), (INTERVAL_SECONDS, "5s")):
        points, slow = 3600 / interval, 3600 / _CAPTURE_EVERY
        fixed = 2 * 3600 / (follow.lease_seconds / 3) + 3600 / follow.look_seconds
        writes, reads = points * (3 * busy + 6) + slow * (busy + 4) + fixed, points * (busy + 4)
        dollars = (writes * PRICES["PUT"] + reads * PRICES["GET"]) / 1000
        assert f"| `{name}` | {writes:,.0f} | {reads:,.0f} | {dollars:.2f} |" in mirroring


def test_sizes_and_requests_are_those_of_a_simulation() -> None:
    """Small, so within a tenth or so: names grow with their numbers, and headers count for more."""
    partitions = 2000
    first, night, back = simulate(partitions, partitions * 3e9, RECORD, 0.01)
    segments = first.data.segments
    for pattern, measured in {
        r"`manifest.json`, (\d+) bytes a partition": first.sizes["manifest.json"] / partitions,
        r"`tables/`, (\d+) bytes a segment": first.sizes["tables"] / segments,
        r"`groups.json`, (\d+) bytes an offset": first.sizes["groups.json"] / (2 * partitions),
        r"on their way back, (\d+) bytes a segment": first.sizes["a result, pickled"],
        r"`plan.json` of that restore, (\d+) bytes a partition": back.sizes["plan.json"] / partitions,
        r"its table, (\d+) bytes a segment": back.sizes["segments"] / (segments + partitions),
        r"its tasks, (\d+) bytes a segment": back.sizes["tasks, compressed"] / (segments + partitions),
    }.items():
        (size,) = re.findall(pattern, SCALE)
        assert int(size) == pytest.approx(measured, rel=0.15), pattern
    # a partition index and a changed group file for each partition
    assert 0 <= night.requests["PUT"] - 2 * partitions <= RUN
    assert back.requests["PUT"] == 2


@pytest.mark.soak
@pytest.mark.parametrize(("partitions", "memory"), [(10_000, 3e9), (100_000, 24e9)], ids=["100 TB", "1 PB"])
def test_a_driver_asks_for_two_objects_a_partition(partitions: int, memory: float) -> None:
    """`pytest --soak -rP tests/project/scale` shows the driver's seconds, memory and requests as well."""
    if os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") < memory:
        pytest.skip(f"the machine has less than {memory / 1e9:.0f} GB of memory to spare")
    for run in simulate(partitions, partitions * 1e10, RECORD, 0.01):
        print("\n".join(report_of(run)), end="\n\n")
        assert len(run.tasks) >= run.data.partitions / PACK_PARTITIONS
        assert run.requests["PUT"] <= 2 * partitions + RUN


def test_the_table_of_requests_is_what_was_measured() -> None:
    assert "\n".join(table(MEASURED)) in REQUESTS


@pytest.mark.parametrize("size", MEASURED["sizes"], ids=lambda size: str(size["points"]))
def test_runs_ask_no_more_than_sizing_says(size: dict[str, dict[str, dict[str, float]]]) -> None:
    nothing = size["steps"]["`backup`, nothing new"]
    gets, lists = map(int, re.findall(r"\| GET, LIST \| (\d+) and (\d+) at most", SIZING)[0])
    assert nothing["PUT"] <= RUN
    assert nothing["GET"] + nothing.get("HEAD", 0) <= gets
    assert nothing["LIST"] <= lists
