"""The Kafka clients of a flow: their properties in MirrorMaker 2's order, as librdkafka has them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

from kbackup.config.clients import translate
from kbackup.errors import UsageError
from kbackup.kafka.client import with_admin
from kbackup.mirror.properties.sections import FlowClusters, Sections
from kbackup.native.property_check import refusal

Side = Literal["source", "target"]

_COMMON = re.compile(r"bootstrap\.servers|client\.dns\.lookup|security\.protocol|(ssl|sasl)\..*|security\.providers")
"""Client properties that a cluster, or the top of the file, sets for all clients at once."""


def is_common(name: str) -> bool:
    return _COMMON.fullmatch(name) is not None


def cluster_client(sections: Sections, pair: FlowClusters, side: Side) -> tuple[dict[str, str] | None, list[str]]:
    """Return librdkafka's properties by which the flow `pair` reads its source, or writes into its target, None if no
    bootstrap.servers are named; and notes on what was left out. Raise `UsageError` for settings that only Java
    supports."""
    alias = getattr(pair, side)
    where = f"{sections.file}: {alias}"
    role = "consumer." if side == "source" else "producer."
    java = java_properties(sections, pair, side, role)
    if java.get("auto.offset.reset") in ("earliest", "latest"):
        del java["auto.offset.reset"]  # `Flow.starts_at_end`
    if "bootstrap.servers" not in java:
        return None, []
    properties, notes = _translated(java, where)
    # Without properties for the admin client, the side's other ones apply.
    of_flow = any(name.startswith(("admin.", f"{side}.admin.")) for name in sections.by_flow[pair])
    of_cluster = any(name.startswith("admin.") for name in sections.by_cluster[alias])
    if of_flow or of_cluster:
        java_of_admin = java_properties(sections, pair, side, "admin.")
        admin, notes_on_admin = _translated(java_of_admin, where)
        properties = with_admin(properties, admin)
        notes += notes_on_admin
    return properties, notes


def _translated(java: dict[str, str], where: str) -> tuple[dict[str, str], list[str]]:
    """Return (librdkafka's properties, what was left out)."""
    client = translate(java, where)
    properties: dict[str, str] = {}
    notes = list(client.notes)
    for name, value in client.properties.items():
        refused = refusal(name, value)
        if refused is None:
            properties[name] = value
        elif refused.kind == "unknown name" and not name.startswith(("ssl.", "sasl.", "security.")):
            notes.append(f"{where}: {name} is left out: it tunes the Java client")
        else:
            why = "has no such property" if refused.kind == "unknown name" else "refuses its value"
            raise UsageError(f"{where}: {name}: librdkafka {why}", "see librdkafka's CONFIGURATION.md")
    return properties, notes


class JavaProperty(NamedTuple):
    """A property of Java's client as the file has it, with its whole key."""

    key: str
    value: str


def java_properties(sections: Sections, pair: FlowClusters, side: Side, role: str) -> dict[str, str]:
    """Return the properties of a Java client, merged in MirrorMaker 2's order: what comes later wins.

    `role` is 'consumer.', 'producer.' or 'admin.'. First comes what all clients share, then the flow's own keys for the
    cluster and the role. What all share counts again before the cluster's keys for the role, as in MirrorMaker 2. The
    flow's keys for the side and the role come last.
    """
    alias = getattr(pair, side)
    cluster, flow = sections.by_cluster[alias], sections.by_flow[pair]
    common = _common_properties(sections.top, "")
    common |= _common_properties(cluster, f"{alias}.")
    layers = [
        common,
        _properties_behind(f"{side}.cluster.", flow, f"{pair}."),
        _properties_behind(role, flow, f"{pair}."),
        common,
        _properties_behind(role, cluster, f"{alias}."),
        _properties_behind(f"{side}.{role}", flow, f"{pair}."),
        _properties_behind(f"{role}override.", flow, f"{pair}."),
    ]
    merged: dict[str, JavaProperty] = {}
    for layer in layers:
        merged |= layer
    resolved: dict[str, str] = {}
    for name, given in merged.items():
        # Every reference is resolved, also of a key that is left out: one that leads nowhere is a mistake.
        value = sections.references.resolve(given.value, given.key).strip()
        if not name.startswith("override."):
            resolved[name] = value
    return resolved


def _common_properties(section: Mapping[str, str], prefix: str) -> dict[str, JavaProperty]:
    """Return what a section sets for all clients. `prefix` stands before its keys in the file."""
    found: dict[str, JavaProperty] = {}
    for name, value in section.items():
        if is_common(name):
            found[name] = JavaProperty(f"{prefix}{name}", value)
    return found


def _properties_behind(role: str, section: Mapping[str, str], prefix: str) -> dict[str, JavaProperty]:
    """Return the properties of a section whose keys begin with `role`, without it. `prefix` stands before them in the
    file."""
    found: dict[str, JavaProperty] = {}
    for name, value in section.items():
        if name.startswith(role):
            found[name.removeprefix(role)] = JavaProperty(f"{prefix}{name}", value)
    return found
