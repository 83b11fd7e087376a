"""Flows of mirrors from a few lines of a properties file."""

from __future__ import annotations

from collections.abc import Mapping

from kbackup.jobs.mirror.flow import Flow
from kbackup.jobs.mirror.properties import load_flows

CLUSTERS = "clusters = A, B\nA.bootstrap.servers = a:9092\nB.bootstrap.servers = b:9092\nA->B.enabled = true\n"


def flow_of(text: str = "", *, archive: str | None = None, environ: Mapping[str, str] | None = None) -> Flow:
    """Return the first flow of a properties file. `text` comes after `CLUSTERS`, unless it names clusters itself."""
    text = text if "clusters" in text else CLUSTERS + text
    return load_flows(text, archive=archive, environ=environ or {}).flows[0]
