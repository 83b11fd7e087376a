"""Topics and partitions as the source cluster shows them at a capture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Live:
    """A partition as the cluster shows it: log start, log end to archive (last stable offset or high
    watermark), and the high watermark."""

    start: int
    end: int
    high: int


@dataclass(frozen=True, slots=True)
class LiveTopic:
    name: str
    id: str
    partitions: Mapping[int, Live]
