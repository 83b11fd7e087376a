"""python -m scripts.bench.same_offsets: what a restore with the same offsets fills logs with, on a broker of its own:
offsets a second before the first record, the bytes that they take, and markers a second.

A whole restore with the same offsets is measured beside one without transactions by
`python -m scripts.bench.whole --works backup,restore --set KBACKUP_RESTORE_TRANSACTIONS=false --set
KBACKUP_RESTORE_SAME_OFFSETS=true`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from kbackup.jobs.restore.same_offsets.plan import markers_per_second
from kbackup.jobs.restore.same_offsets.task import FILLER
from kbackup.kafka.batches import repeated
from kbackup.kafka.control.append import append, delete_before, new_producer
from kbackup.kafka.control.cluster import Cluster
from kbackup.types import TopicPartition
from scripts.dev.kafka import Broker

_FILLERS = 1_000_000


class Head(NamedTuple):
    """Seconds to fill a log up to its first offset, seconds to delete what filled it, and bytes of a filler."""

    filled: float
    deleted: float
    bytes_each: float


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--offsets", type=int, default=50_000_000, help="where the log is to begin")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args(argv)
    with Broker() as broker:
        cluster = Cluster({"bootstrap.servers": broker.bootstrap}, "target")
        heads: list[Head] = []
        rates: list[float] = []
        for number in range(options.repeat):
            topic = f"bench-{number}"
            broker.create_topic(topic, 1)
            heads.append(_fill_head(cluster, TopicPartition(topic, 0), options.offsets))
            rates.append(markers_per_second(cluster, f"bench-{number}", "bench"))
    filled = median(head.filled for head in heads)
    deleted = median(head.deleted for head in heads)
    print(
        f"head of {options.offsets:,} offsets: {filled:.1f} s, {options.offsets / filled:,.0f} a second, "
        f"{heads[0].bytes_each:.2f} B each; deleted in {deleted:.2f} s"
    )
    print(f"markers a second in each log: {median(rates):.0f}")


def _fill_head(cluster: Cluster, tp: TopicPartition, offsets: int) -> Head:
    producer = new_producer(cluster.router)
    body = repeated(FILLER, _FILLERS)
    began = time.monotonic()
    for at in range(0, offsets, _FILLERS):
        appended, refused = append(cluster.router, {tp: body.batch(producer, at)})
        if refused or appended[tp] != at:
            raise SystemExit(f"the broker took no batch at {at}: {refused or appended}")
    filled = time.monotonic() - began
    delete_before(cluster.router, {tp: offsets})
    return Head(filled, time.monotonic() - began - filled, len(body.data) / _FILLERS)


if __name__ == "__main__":
    main()
