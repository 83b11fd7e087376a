"""A properties file, cut by its prefixes: all flows, a cluster, a flow."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from kbackup.errors import UsageError
from kbackup.jobs.mirror.properties.references import References

_FLOW = re.compile(r"(.+?)->(.+?)\.")


class Pair(NamedTuple):
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
    by_flow: dict[Pair, dict[str, str]] = field(default_factory=dict)
    stray: list[str] = field(default_factory=list)
    """Keys of flows between clusters that `clusters` does not name."""

    def pairs(self) -> list[Pair]:
        return [Pair(s, t) for s in self.clusters for t in self.clusters if s != t]

    def value(self, name: str, pair: Pair, *, of_cluster: bool = False) -> tuple[str, str] | None:
        """Return (whole key, value) of a key for a flow: the flow's own, with `of_cluster` its source's, or that of all
        flows. None where the file has none."""
        for key, section in (
            (f"{pair}.{name}", self.by_flow[pair]),
            (f"{pair.source}.{name}", self.by_cluster[pair.source] if of_cluster else {}),
            (name, self.top),
        ):
            if name in section:
                return key, self.references.resolve(section[name], key)
        return None


def cut(raw: dict[str, str], file: str, references: References) -> Sections:
    """Return the sections. Raise `UsageError` where `clusters` names fewer than two clusters, or one twice."""
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
