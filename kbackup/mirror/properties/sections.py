"""A properties file, cut by what its keys begin with: all flows, a cluster, or a flow."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kbackup.errors import UsageError
from kbackup.mirror.properties.keys import FIRST_WORDS
from kbackup.mirror.properties.references import References, list_items


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
        """Return every possible flow, in the order of the clusters."""
        found: list[FlowClusters] = []
        for source in self.clusters:
            for target in self.clusters:
                if source != target:
                    found.append(FlowClusters(source, target))
        return found

    def by_prefix(self) -> dict[str, dict[str, str]]:
        """Return the sections of clusters and flows by what their keys begin with in the file."""
        sections: dict[str, dict[str, str]] = {}
        for alias, section in self.by_cluster.items():
            sections[f"{alias}."] = section
        for pair, section in self.by_flow.items():
            sections[f"{pair}."] = section
        return sections

    def value(self, name: str, pair: FlowClusters, *, of_cluster: bool = False) -> tuple[str, str] | None:
        """Return (whole key, value) of a key for a flow: the flow's own, with `of_cluster` its source's, or the value
        for all flows. None if the file has none."""
        places = [(f"{pair}.{name}", self.by_flow[pair])]
        if of_cluster:
            places.append((f"{pair.source}.{name}", self.by_cluster[pair.source]))
        places.append((name, self.top))
        for key, section in places:
            if name in section:
                return key, self.references.resolve(section[name], key)
        return None


def cut(raw: dict[str, str], file: str, references: References) -> Sections:
    """Return the sections. Raise `UsageError` if `clusters` names fewer than two clusters, or one twice."""
    named = references.resolve(raw.get("clusters", ""), "clusters")
    clusters = tuple(list_items(named))
    _check_aliases(clusters, file)
    sections = Sections(file, clusters, references)
    sections.by_cluster = {alias: {} for alias in clusters}
    sections.by_flow = {pair: {} for pair in sections.pairs()}
    # An alias may be the beginning of another one: the longest prefix counts.
    by_prefix = sections.by_prefix()
    prefixes = sorted(by_prefix, key=len, reverse=True)
    for key, value in raw.items():
        prefix = _first_prefix(key, prefixes)
        if prefix:
            by_prefix[prefix][key.removeprefix(prefix)] = value
        elif re.match(r"(.+?)->(.+?)\.", key):
            sections.stray.append(key)
        elif key != "clusters":
            sections.top[key] = value
    return sections


def _first_prefix(text: str, prefixes: Iterable[str]) -> str:
    """Return the first one of `prefixes` that `text` begins with; '' if it begins with none."""
    for prefix in prefixes:
        if text.startswith(prefix):
            return prefix
    return ""


def _check_aliases(clusters: Sequence[str], file: str) -> None:
    """Raise `UsageError` for fewer than two clusters, one twice, or an alias that a key could be taken for."""
    if len(clusters) < 2 or len(set(clusters)) < len(clusters):
        names = ", ".join(clusters) or "no cluster"
        raise UsageError(f"{file}: clusters names {names}", "name at least two different clusters: clusters = A, B")
    for alias in clusters:
        if "->" in alias:
            raise UsageError(f"{file}: clusters: the alias {alias!r} holds '->'", "choose another alias")
    for alias in clusters:
        # Aliases source and target are usual, and nobody is misled: source.consumer.x is of that cluster either way.
        meant = [key for key in FIRST_WORDS if key.startswith(f"{alias}.")]
        if meant:
            raise UsageError(
                f"{file}: clusters: the alias {alias!r} is also the first word of {meant[0]}…, a key for all flows",
                "choose another alias",
            )
