"""Read MirrorMaker 2's properties file."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kbackup.config.properties import parse_properties
from kbackup.errors import UsageError, suggest_name
from kbackup.jobs.mirror.cycles import without_cycles
from kbackup.jobs.mirror.flow import Clock, Flow
from kbackup.jobs.mirror.properties.flow_reader import FlowReader
from kbackup.jobs.mirror.properties.references import references_of
from kbackup.jobs.mirror.properties.review import review
from kbackup.jobs.mirror.properties.sections import cut


@dataclass(frozen=True)
class MirrorProperties:
    """Flows and settings of a properties file. `flows` are the enabled pairs of clusters, in the order of `clusters`.

    `heartbeat_flows` are the other pairs that emit heartbeats: MirrorMaker 2 writes `heartbeats` into each cluster for
    every pair, enabled or not. `notes` name the keys that have no meaning here, `warnings` the keys that are doubtful.
    """

    clusters: tuple[str, ...]
    flows: tuple[Flow, ...]
    heartbeat_flows: tuple[Flow, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def selected(self, names: Collection[str]) -> tuple[Flow, ...]:
        """Return the flows of these names, all where none is given. `UsageError` where there is none, and where two
        sources have one archive."""
        known = {flow.name: flow for flow in self.flows}
        if not known:
            raise UsageError("the file enables no flow", "write A->B.enabled = true")
        for name in names:
            if name not in known:
                hint = suggest_name(name, known, f"its flows are {', '.join(known)}")
                raise UsageError(f"the file enables no flow {name}", hint)
        flows = tuple(flow for name, flow in known.items() if not names or name in names)
        _refuse_shared_archives(flows)
        return flows


def _refuse_shared_archives(flows: Iterable[Flow]) -> None:
    owners: dict[str, str] = {}
    for flow in flows:
        if flow.archive and owners.setdefault(flow.archive.rstrip("/"), flow.source) != flow.source:
            raise UsageError(
                f"{owners[flow.archive.rstrip('/')]} and {flow.source} have one archive, {flow.archive}",
                "write {source} into the address: kbackup.archive = s3://bucket/{source}",
            )


def load_flows(
    source: Path | str, archive: str | None = None, environ: Mapping[str, str] = os.environ
) -> MirrorProperties:
    """Return the flows of a file (a `Path`) or of a text. `archive` is an address with `{source}` in it; it takes the
    place of `kbackup.archive`. Raise `UsageError` for a key or a value that can't be used."""
    if isinstance(source, Path):
        file, data = str(source), _read(source)
    else:
        file, data = "mm2.properties", source.encode("latin-1", "backslashreplace")
    raw = {key: value.strip() for key, value in parse_properties(data, file).items()}
    sections = cut(raw, file, references_of(raw, file, environ))
    notes, warnings = review(sections)
    flows: list[Flow] = []
    heartbeat_flows: list[Flow] = []
    for pair in sections.pairs():
        reader = FlowReader(sections, pair)
        enabled = reader.enabled()
        if enabled or reader.clock("emit.heartbeats").enabled:
            flow, of_clients = reader.flow(archive)
            if enabled:
                reader.check(flow)
                flows.append(flow)
            else:
                heartbeat_flows.append(_only_heartbeats(flow))
            notes += of_clients
    names = [name for pair in sections.pairs() for name in FlowReader(sections, pair).names("topics")]
    return MirrorProperties(
        sections.clusters,
        without_cycles(flows, names, file),
        tuple(heartbeat_flows),
        tuple(dict.fromkeys(notes)),
        warnings,
    )


def _only_heartbeats(flow: Flow) -> Flow:
    off = Clock(False, 0)
    return replace(flow, heartbeats_replicated=False, emit_checkpoints=off, emit_offset_syncs=False)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path}: {(error.strerror or str(error)).lower()}", "name a readable file"
        ) from error
