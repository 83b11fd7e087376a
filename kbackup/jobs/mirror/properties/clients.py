"""Client properties of a flow's clusters: Java's, merged as MirrorMaker 2 merges them, in librdkafka's words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from kbackup.config.clients import translate
from kbackup.errors import UsageError
from kbackup.jobs.mirror.properties.sections import Pair, Sections
from kbackup.kafka.admin.properties import with_admin
from kbackup.kafka.client.property_check import refusal

Side = Literal["source", "target"]

ROLES = ("consumer.", "producer.", "admin.")
_RESET = "auto.offset.reset"
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


def cluster_client(sections: Sections, pair: Pair, side: Side) -> ClusterClient:
    """Return how the flow `pair` reads its source, or writes into its target. Raise `UsageError` for settings that
    only Java supports."""
    alias = pair.source if side == "source" else pair.target
    where = f"{sections.file}: {alias}"
    java = _java_properties(sections, pair, side, "consumer." if side == "source" else "producer.")
    if java.get(_RESET) in ("earliest", "latest"):
        del java[_RESET]  # `starts_at_end`
    if "bootstrap.servers" not in java:
        return ClusterClient(None, ())
    properties, notes = _translated(java, where)
    if _has_admin(sections, pair, side):
        admin, more = _translated(_java_properties(sections, pair, side, "admin."), where)
        properties, notes = with_admin(properties, admin), [*notes, *more]
    return ClusterClient(properties, tuple(notes))


def starts_at_end(sections: Sections, pair: Pair) -> bool:
    """Return whether a flow mirrors only records that come after its first round of a topic."""
    return _java_properties(sections, pair, "source", "consumer.").get(_RESET) == "latest"


def _translated(java: dict[str, str], where: str) -> tuple[dict[str, str], list[str]]:
    """(librdkafka's properties, what was left out)."""
    client = translate(java, where)
    properties: dict[str, str] = {}
    notes = list(client.notes)
    for name, value in client.properties.items():
        refused = refusal(name, value)
        if refused is None:
            properties[name] = value
        elif refused.kind == "unknown name" and not name.startswith(_SECURITY):
            notes.append(f"{where}: {name} is left out: it tunes the Java client")
        else:
            why = "has no such property" if refused.kind == "unknown name" else "refuses its value"
            raise UsageError(f"{where}: {name}: librdkafka {why}", "see librdkafka's CONFIGURATION.md")
    return properties, notes


def _has_admin(sections: Sections, pair: Pair, side: Side) -> bool:
    """Return whether the file has properties of the admin client alone; else it has those of the side's other
    clients."""
    alias = pair.source if side == "source" else pair.target
    own = ("admin.", f"{side}.admin.")
    return any(name.startswith("admin.") for name in sections.by_cluster[alias]) or any(
        name.startswith(own) for name in sections.by_flow[pair]
    )


def _java_properties(sections: Sections, pair: Pair, side: Side, role: str) -> dict[str, str]:
    """MirrorMaker 2's order: what all clients share, the flow's `consumer.…`, the cluster's `consumer.…` with what
    all share there, too, the flow's `source.consumer.…`. `role` is 'consumer.', 'producer.' or 'admin.'."""
    alias = pair.source if side == "source" else pair.target
    cluster, flow = sections.by_cluster[alias], sections.by_flow[pair]
    common = {name: (name, value) for name, value in sections.top.items() if is_common(name)}
    common |= {name: (f"{alias}.{name}", value) for name, value in cluster.items() if is_common(name)}
    merged = dict(common)
    for prefix in (f"{side}.cluster.", role):
        merged |= _stripped(flow, prefix, f"{pair}.")
    merged |= common | _stripped(cluster, role, f"{alias}.")
    for prefix in (f"{side}.{role}", f"{role}override."):
        merged |= _stripped(flow, prefix, f"{pair}.")
    resolved = {
        name: sections.references.resolve(value, key).strip() for name, (key, value) in merged.items()
    }
    return {name: value for name, value in resolved.items() if not name.startswith("override.")}


def _stripped(section: dict[str, str], prefix: str, before: str) -> dict[str, tuple[str, str]]:
    """(whole key, value) by the name behind `prefix`."""
    return {
        name.removeprefix(prefix): (f"{before}{name}", value)
        for name, value in section.items()
        if name.startswith(prefix)
    }
