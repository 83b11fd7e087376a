"""Runs for the tests of Kafka's side."""

from __future__ import annotations

from kbackup.native.contract import Runs


def rows(runs: Runs) -> list[tuple[int, int, int]]:
    return list(zip(runs.source.tolist(), runs.target.tolist(), runs.count.tolist(), strict=True))
