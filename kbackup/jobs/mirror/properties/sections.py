"""The sections of the properties file by cluster and flow, with references to values resolved."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from kbackup.config.clients import parse_properties, translate
from kbackup.errors import UsageError
from kbackup.kafka.client import with_admin
from kbackup.kafka.property_check import refusal

_PROVIDERS = "config.providers"
_PACKAGE = "org.apache.kafka.common.config.provider."
_CLASSES = {
    f"{_PACKAGE}EnvVarConfigProvider": "env",
    f"{_PACKAGE}FileConfigProvider": "file",
    f"{_PACKAGE}DirectoryConfigProvider": "directory",
}


@dataclass(frozen=True)
class References:
    """Replaces references in values. `kinds` are the names of providers: `env` and `file` are always there."""

    file: str
    kinds: Mapping[str, str]
    environ: Mapping[str, str]

    def resolve(self, value: str, key: str) -> str:
        """Return `value` with every reference replaced. Raise `UsageError`, which shows no value, where one leads
        nowhere."""
        pattern = r"\$\{(" + "|".join(map(re.escape, self.kinds)) + r"):([^}]*)\}"
        where = f"{self.file}: {key}"

        def replace(match: re.Match[str]) -> str:
            return _READERS[self.kinds[match[1]]](self, match[2], where)

        return re.sub(pattern, replace, value)

    def _variable(self, name: str, where: str) -> str:
        name = name.removeprefix(":")
        if name not in self.environ:
            raise UsageError(f"{where}: the environment variable {name} is not set", "set the variable")
        return self.environ[name]

    def _from_file(self, location: str, where: str) -> str:
        """Return the value of a key in a properties file for `path:key`, and the whole text for `path` alone."""
        path, colon, key = location.rpartition(":")
        if not colon:
            return _text(location, where)
        values = parse_properties(_bytes(path, where), path)
        if key not in values:
            raise UsageError(f"{where}: the file {path} has no key {key}", "name a key of the file")
        return values[key]

    def _from_directory(self, location: str, where: str) -> str:
        path, _, name = location.rpartition(":")
        return _text(str(Path(path) / name), where)


def references_of(raw: Mapping[str, str], file: str, environ: Mapping[str, str]) -> References:
    """Return the resolver of the references of a file, by its `config.providers`."""
    kinds = {"env": "env", "file": "file"}
    for name in filter(None, re.split(r"\s*,\s*", raw.get(_PROVIDERS, "").strip())):
        key = f"{_PROVIDERS}.{name}.class"
        provider = raw.get(key, "").strip()
        if provider not in _CLASSES:
            raise UsageError(
                f"{file}: {key}: {provider or 'no class'} can't be used here", f"name one of {', '.join(_CLASSES)}"
            )
        kinds[name] = _CLASSES[provider]
    return References(file, kinds, environ)


def _bytes(path: str, where: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(
            f"{where}: can't read the file {path}: {(error.strerror or '').lower()}", "name a readable file"
        ) from None


def _text(path: str, where: str) -> str:
    try:
        return _bytes(path, where).decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise UsageError(f"{where}: the file {path} is not UTF-8 text", "name a text file") from None


_READERS: dict[str, Callable[[References, str, str], str]] = {
    "env": References._variable,
    "file": References._from_file,
    "directory": References._from_directory,
}


# A properties file, cut by its prefixes: all flows, a cluster, a flow.


_FLOW = re.compile(r"(.+?)->(.+?)\.")


class FlowClusters(NamedTuple):
    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}->{self.target}"


@dataclass
class Sections:
    """The values of a file by key, without the prefix. `file` is named in errors."""

    file: str
    clusters: tuple[str, ...]
    references: References
    top: dict[str, str] = field(default_factory=dict)
    by_cluster: dict[str, dict[str, str]] = field(default_factory=dict)
    by_flow: dict[FlowClusters, dict[str, str]] = field(default_factory=dict)
    stray: list[str] = field(default_factory=list)
    """Keys of flows between clusters that `clusters` does not name."""

    def pairs(self) -> list[FlowClusters]:
        return [FlowClusters(s, t) for s in self.clusters for t in self.clusters if s != t]

    def value(self, name: str, pair: FlowClusters, *, of_cluster: bool = False) -> tuple[str, str] | None:
        """Return (whole key, value) of a key for a flow: the flow's own, with `of_cluster` its source's, or the value
        for all flows. None if the file has none."""
        for key, section in (
            (f"{pair}.{name}", self.by_flow[pair]),
            (f"{pair.source}.{name}", self.by_cluster[pair.source] if of_cluster else {}),
            (name, self.top),
        ):
            if name in section:
                return key, self.references.resolve(section[name], key)
        return None


def cut(raw: dict[str, str], file: str, references: References) -> Sections:
    """Return the sections. Raise `UsageError` if `clusters` names fewer than two clusters, or one twice."""
    clusters = tuple(
        filter(None, re.split(r"\s*,\s*", references.resolve(raw.get("clusters", ""), "clusters").strip()))
    )
    if len(clusters) < 2 or len(set(clusters)) < len(clusters):
        raise UsageError(
            f"{file}: clusters names {', '.join(clusters) or 'no cluster'}",
            "name at least two different clusters: clusters = A, B",
        )
    if odd := next((alias for alias in clusters if "->" in alias), None):
        raise UsageError(f"{file}: clusters: the alias {odd!r} holds '->'", "choose another alias")
    sections = Sections(file, clusters, references)
    sections.by_cluster = {alias: {} for alias in clusters}
    sections.by_flow = {pair: {} for pair in sections.pairs()}
    # an alias may be the beginning of another one: the longest prefix counts
    by_prefix = {f"{alias}.": section for alias, section in sections.by_cluster.items()}
    by_prefix |= {f"{pair}.": section for pair, section in sections.by_flow.items()}
    prefixes = sorted(by_prefix, key=len, reverse=True)
    for key, value in raw.items():
        prefix = next(filter(key.startswith, prefixes), None)
        if prefix is not None:
            by_prefix[prefix][key.removeprefix(prefix)] = value
        elif _FLOW.match(key):
            sections.stray.append(key)
        elif key != "clusters":
            sections.top[key] = value
    return sections


# Client properties of a flow's clusters: Java's, merged as MirrorMaker 2 merges them, in librdkafka's words.


Side = Literal["source", "target"]

ROLES = ("consumer.", "producer.", "admin.")
_RESET = "auto.offset.reset"
_SECURITY = ("ssl.", "sasl.", "security.")
_COMMON = re.compile(r"bootstrap\.servers|client\.dns\.lookup|security\.protocol|(ssl|sasl)\..*|security\.providers")
"""Client properties that a cluster, or the top of the file, sets for all clients at once."""


def is_common(name: str) -> bool:
    return _COMMON.fullmatch(name) is not None


@dataclass(frozen=True)
class ClusterClient:
    """librdkafka's properties of a cluster, None if no bootstrap.servers are named; and what was left out."""

    properties: dict[str, str] | None
    notes: tuple[str, ...]


def cluster_client(sections: Sections, pair: FlowClusters, side: Side) -> ClusterClient:
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


def starts_at_end(sections: Sections, pair: FlowClusters) -> bool:
    """Return whether a flow mirrors only records that come after its first round of a topic."""
    return _java_properties(sections, pair, "source", "consumer.").get(_RESET) == "latest"


def _translated(java: dict[str, str], where: str) -> tuple[dict[str, str], list[str]]:
    """Return (librdkafka's properties, what was left out)."""
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


def _has_admin(sections: Sections, pair: FlowClusters, side: Side) -> bool:
    """Return whether the file has properties for the admin client; otherwise the side's other properties apply."""
    alias = pair.source if side == "source" else pair.target
    own = ("admin.", f"{side}.admin.")
    return any(name.startswith("admin.") for name in sections.by_cluster[alias]) or any(
        name.startswith(own) for name in sections.by_flow[pair]
    )


def _java_properties(sections: Sections, pair: FlowClusters, side: Side, role: str) -> dict[str, str]:
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
    resolved = {name: sections.references.resolve(value, key).strip() for name, (key, value) in merged.items()}
    return {name: value for name, value in resolved.items() if not name.startswith("override.")}


def _stripped(section: dict[str, str], prefix: str, before: str) -> dict[str, tuple[str, str]]:
    """Return (whole key, value) by the name behind `prefix`."""
    return {
        name.removeprefix(prefix): (f"{before}{name}", value)
        for name, value in section.items()
        if name.startswith(prefix)
    }
