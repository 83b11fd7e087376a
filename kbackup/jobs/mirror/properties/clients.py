"""Client properties of a flow's clusters: Java's, merged as MirrorMaker 2 merges them, in librdkafka's words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from kbackup.config.clients import translate
from kbackup.errors import UsageError
from kbackup.jobs.mirror.properties.sections import Pair, Sections
from kbackup.kafka.property_check import refusal

ROLES = ("consumer.", "producer.", "admin.")
_SECURITY = ("ssl.", "sasl.", "security.")
_COMMON = re.compile(
    r"bootstrap\.servers|client\.dns\.lookup|security\.protocol|(ssl|sasl)\..*|security\.providers"
)
"""Client properties that a cluster, or the top of the file, sets for all clients at once."""


def is_common(name: str) -> bool:
    return _COMMON.fullmatch(name) is not None


@dataclass(frozen=True)
class ClusterClient:
    """librdkafka's properties of a cluster, None where no bootstrap.servers are named; and what was left out."""

    properties: dict[str, str] | None
    notes: tuple[str, ...]


def cluster_client(sections: Sections, pair: Pair, side: Literal["source", "target"]) -> ClusterClient:
    """Return how the flow `pair` reads its source, or writes into its target. Raise `UsageError` for what only Java
    can."""
    alias = pair.source if side == "source" else pair.target
    java = _java_properties(sections, pair, side)
    if "bootstrap.servers" not in java:
        return ClusterClient(None, ())
    where = f"{sections.file}: {alias}"
    client = translate(java, where)
    properties, notes = {}, list(client.notes)
    for name, value in client.properties.items():
        refused = refusal(name, value)
        if refused is None:
            properties[name] = value
        elif refused.kind == "unknown name" and not name.startswith(_SECURITY):
            notes.append(f"{where}: {name} is left out: it tunes the Java client")
        else:
            why = "has no such property" if refused.kind == "unknown name" else "refuses its value"
            raise UsageError(f"{where}: {name}: librdkafka {why}", "see librdkafka's CONFIGURATION.md")
    return ClusterClient(properties, tuple(notes))


def _java_properties(sections: Sections, pair: Pair, side: Literal["source", "target"]) -> dict[str, str]:
    """MirrorMaker 2's order: what all clients share, the flow's `consumer.…`, the cluster's `consumer.…` with what
    all share there, too, the flow's `source.consumer.…`."""
    alias = pair.source if side == "source" else pair.target
    role = "consumer." if side == "source" else "producer."
    cluster, flow = sections.by_cluster[alias], sections.by_flow[pair]
    common = {name: (name, value) for name, value in sections.top.items() if is_common(name)}
    common |= {name: (f"{alias}.{name}", value) for name, value in cluster.items() if is_common(name)}
    merged = dict(common)
    for prefix in (f"{side}.cluster.", role):
        merged |= _stripped(flow, prefix, f"{pair}.")
    merged |= common | _stripped(cluster, role, f"{alias}.")
    for prefix in (f"{side}.{role}", f"{role}override."):
        merged |= _stripped(flow, prefix, f"{pair}.")
    found = {name: sections.references.resolve(value, key).strip() for name, (key, value) in merged.items()}
    return {name: value for name, value in found.items() if not name.startswith("override.")}


def _stripped(section: dict[str, str], prefix: str, before: str) -> dict[str, tuple[str, str]]:
    """(whole key, value) by the name behind `prefix`."""
    return {
        name.removeprefix(prefix): (f"{before}{name}", value)
        for name, value in section.items()
        if name.startswith(prefix)
    }
