"""Read MirrorMaker 2's properties file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kbackup.jobs.mirror.flow import Flow


@dataclass(frozen=True)
class MirrorProperties:
    """What a properties file says. `flows` are the enabled pairs of clusters, in the order of `clusters`.

    `heartbeat_flows` are the other pairs that emit heartbeats: MirrorMaker 2 writes `heartbeats` into each cluster for
    every pair, enabled or not. `notes` name the keys that have no meaning here, `warnings` the keys that are doubtful.
    """

    clusters: tuple[str, ...]
    flows: tuple[Flow, ...]
    heartbeat_flows: tuple[Flow, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def load_flows(
    source: Path | str, archive: str | None = None, environ: Mapping[str, str] = os.environ
) -> MirrorProperties:
    """Return the flows of a file (a `Path`) or of a text. `archive` is an address with `{source}` in it; it takes the
    place of `kbackup.archive`. Raise `UsageError` for a key or a value that can't be used."""
    raise NotImplementedError
