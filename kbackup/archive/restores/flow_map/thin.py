"""Bound the runs of a partition: the newest stay exact, older ones are joined so that no answer becomes greater.

Every round leaves a transaction marker in the target, so runs grow with rounds. A stretch of neighbouring runs becomes
one run with as many records, or two where the source has holes in it. An answer within a stretch may then lie before
the exact one, by at most the markers and holes that the stretch has. An answer never lies behind the exact one. What a
stretch spans is at most 1/`SHARE` of its distance to the newest record, so that runs grow with the logarithm of the
distance. The first run of each stretch is exact.
"""

from __future__ import annotations

import numpy as np

from kbackup.archive.restores.flow_map.tables import Runs

EXACT = 1024
"""Runs that are never joined: the newest of a partition."""

SLACK = 512
"""Runs beyond `EXACT` that make joining worthwhile."""

SHARE = 64


def thin(runs: Runs) -> Runs:
    """Return the runs, joined where there are many."""
    source, target, count = runs
    older = len(source) - EXACT
    if older <= SLACK:
        return runs
    head = int(source[-1] + count[-1])
    rows: list[tuple[int, int, int]] = []
    stretch: list[tuple[int, int, int]] = []
    for row in zip(source[:older].tolist(), target[:older].tolist(), count[:older].tolist(), strict=True):
        end = row[0] + row[2]
        if stretch and (end - stretch[0][0]) * SHARE > head - end:
            rows += _join(stretch)
            stretch = []
        stretch.append(row)
    rows += _join(stretch)
    joined = np.array(rows, np.int64).T
    return (
        np.concatenate([joined[0], source[older:]]),
        np.concatenate([joined[1], target[older:]]),
        np.concatenate([joined[2], count[older:]]),
    )


def _join(stretch: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """The first run as it is, and everything after it as late in the source and as early in the target as can be: so
    many records as lie before a source offset at least, so far is the answer from the first run's end."""
    source, target, count = stretch[0]
    records = sum(c for _, _, c in stretch)
    holes = stretch[-1][0] + stretch[-1][2] - source - records
    if not holes:
        return [(source, target, records)]
    return [(source, target, count), (source + count + holes, target + count, records - count)]
