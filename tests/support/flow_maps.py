"""Flows of a properties file, offset maps of flows, and random histories of what a flow has applied."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from hypothesis import strategies as st

from kbackup.archive.restores.offset_map import OffsetMap
from kbackup.mirror.flow import Flow
from kbackup.mirror.properties.flows import load_flows

Pairs = list[tuple[int, int]]
"""(source offset, target offset) of each record that was applied, in order."""


def map_of(pairs: Pairs) -> OffsetMap:
    """Return the map of records as runs, as long as they can be."""
    runs: list[list[int]] = []
    for source, target in pairs:
        if runs and (source - runs[-1][0], target - runs[-1][1]) == (runs[-1][2],) * 2:
            runs[-1][2] += 1
        else:
            runs.append([source, target, 1])
    source_, target_, count = np.array(runs, np.int64).reshape(-1, 3).T
    return OffsetMap(source_, target_, count, pairs[-1][1] + 1 if pairs else 0)


@st.composite
def histories(draw: st.DrawFn, steps: st.SearchStrategy[int] | None = None) -> Pairs:
    """Records in order, with gaps in the source (compaction, transactions) and in the target (transactions)."""
    step = steps or st.sampled_from([1, 1, 1, 1, 2, 3, 50])
    gaps = draw(st.lists(st.tuples(step, step, st.integers(1, 60)), max_size=12))
    pairs: Pairs = []
    source, target = draw(st.integers(0, 100)), draw(st.sampled_from([0, 0, 50]))
    for n, (ahead, behind, count) in enumerate(gaps):
        source, target = source + ahead, target + behind if n else target
        pairs += [(source + i, target + i) for i in range(count)]
        source, target = source + count, target + count
    return pairs


CLUSTERS = "clusters = A, B\nA.bootstrap.servers = a:9092\nB.bootstrap.servers = b:9092\nA->B.enabled = true\n"


def flow_of(text: str = "", *, archive: str | None = None, environ: Mapping[str, str] | None = None) -> Flow:
    """Return the first flow of a properties file. `text` comes after `CLUSTERS`, unless it names clusters itself."""
    text = text if "clusters" in text else CLUSTERS + text
    return load_flows(text, archive=archive, environ=environ or {}).flows[0]
