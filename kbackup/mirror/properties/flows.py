"""The flows of a mirror, by MirrorMaker 2's properties file."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kbackup.config.clients import parse_properties
from kbackup.errors import UsageError, suggest_name
from kbackup.jobs.schemas.judgement import SchemaTopics
from kbackup.mirror.filters import PatternFilter, compile_patterns
from kbackup.mirror.flow import Clock, DefaultPolicy, Flow, IdentityPolicy
from kbackup.mirror.properties.clients import cluster_client, java_properties
from kbackup.mirror.properties.keys import (
    CLOCKS,
    DEFAULT_POLICY,
    FLOW_KEYS,
    IDENTITY_POLICY,
    KEYS,
    OWN_KEYS,
    REGISTRY_KEYS,
)
from kbackup.mirror.properties.references import references_of
from kbackup.mirror.properties.review import review
from kbackup.mirror.properties.sections import FlowClusters, Sections, cut
from kbackup.mirror.topics import without_cycles
from kbackup.schemas.base import RegistryOptions
from kbackup.util.linear_regex import LinearRegex


@dataclass(frozen=True)
class FlowReader:
    """The values of one flow. `UsageError` for a value that can't be used."""

    sections: Sections
    pair: FlowClusters

    def flow(self, archive: str | None) -> tuple[Flow, list[str]]:
        """Return the flow, and notes on its client properties."""
        source, notes = cluster_client(self.sections, self.pair, "source")
        target, more = cluster_client(self.sections, self.pair, "target")
        consumer = java_properties(self.sections, self.pair, "source", "consumer.")
        choices: Any = self.text  # each is checked against the choices of its key
        clocks: Any = {name.replace(".", "_"): self.clock(name) for name in CLOCKS}
        address = (archive or self.text("kbackup.archive")).replace("{source}", self.pair.source)
        with_schemas = PatternFilter(self.patterns("kbackup.schemas.topics"), None)
        without_schemas = PatternFilter(self.patterns("kbackup.schemas.topics.exclude"), None)
        topics = PatternFilter(self.patterns("topics"), self.patterns("topics.exclude"))
        groups = PatternFilter(self.patterns("groups"), self.patterns("groups.exclude"))
        excluded_configs = PatternFilter(self.patterns("config.properties.exclude"), None)
        flow = Flow(
            source=self.pair.source,
            target=self.pair.target,
            source_properties=source,
            target_properties=target,
            archive=address or None,
            policy=self.policy(),
            topics=topics,
            groups=groups,
            excluded_configs=excluded_configs,
            use_defaults_from=choices("use.defaults.from"),
            replication_factor=self.number("replication.factor"),
            heartbeats_replication_factor=self.number("heartbeats.topic.replication.factor"),
            checkpoints_replication_factor=self.number("checkpoints.topic.replication.factor"),
            offset_syncs_replication_factor=self.number("offset-syncs.topic.replication.factor"),
            heartbeats_replicated=self.flag("heartbeats.replication.enabled"),
            emit_offset_syncs=self.flag("emit.offset-syncs.enabled"),
            offset_syncs_location=choices("offset-syncs.topic.location"),
            offset_lag_max=self.number("offset.lag.max"),
            checkpoint_rule=choices("kbackup.checkpoints"),
            on_recreate=choices("kbackup.on.recreate"),
            schemas=choices("kbackup.schemas"),
            schema_topics=SchemaTopics(with_schemas, without_schemas),
            unmapped=choices("kbackup.schemas.unmapped"),
            source_registry=self.registry(self.pair.source),
            target_registry=self.registry(self.pair.target),
            # MirrorMaker 2's consumer begins at the end then, and a flow at the end of a topic's first restore point.
            starts_at_end=consumer.get("auto.offset.reset") == "latest",
            **clocks,
        )
        return flow, [*notes, *more]

    def registry(self, alias: str) -> RegistryOptions:
        """Return the schema registry of a cluster; its `url` is '' if the file names none."""
        own = self.sections.by_cluster[alias]
        options: dict[str, Any] = {}
        for name, field in REGISTRY_KEYS.items():
            if name in own:
                value = self.sections.references.resolve(own[name], f"{alias}.{name}")
                options[field] = value.strip()
        return RegistryOptions(**options)

    def check(self, flow: Flow) -> None:
        """Refuse keys that can't go together."""
        if flow.schemas != "none":
            for alias, options in ((flow.source, flow.source_registry), (flow.target, flow.target_registry)):
                if not options.url:
                    key, _ = self._value("kbackup.schemas")
                    text = f"{flow.schemas!r} needs the schema registries of both clusters"
                    raise self._refuse(key, text, f"set {alias}.kbackup.registry.url")
        if flow.checkpoint_rule == "mm2" and not flow.emit_offset_syncs:
            key, _ = self._value("kbackup.checkpoints")
            syncs, _ = self._value("emit.offset-syncs.enabled")
            text = f"'mm2' translates by offset syncs, and {syncs} = false writes none"
            raise self._refuse(key, text, f"set {syncs} = true, or kbackup.checkpoints = exact")

    def _value(self, name: str) -> tuple[str, str]:
        """Return (whole key, value), with the default from the table of keys."""
        found = self.sections.value(name, self.pair, of_cluster=name in OWN_KEYS)
        return found or (name, KEYS[name].default)

    def _refuse(self, key: str, text: str, hint: str) -> UsageError:
        return UsageError(f"{self.sections.file}: {key}: {text}", hint)

    def text(self, name: str) -> str:
        key, value = self._value(name)
        choices = KEYS[name].choices
        if choices and value not in choices:
            raise self._refuse(key, f"{value!r} can't be used", f"write {' or '.join(choices)}")
        return value

    def enabled(self) -> bool:
        """Return whether the flow is enabled. MirrorMaker 2 takes an empty value for the default."""
        _, value = self._value("enabled")
        # Its default is false; any other flag refuses an empty value.
        if not value.strip():
            return False
        return self.flag("enabled")

    def flag(self, name: str) -> bool:
        key, value = self._value(name)
        if value.lower() not in ("true", "false"):
            raise self._refuse(key, f"{value!r} is neither true nor false", "write true or false")
        return value.lower() == "true"

    def number(self, name: str) -> int:
        key, value = self._value(name)
        least = FLOW_KEYS[name].least
        is_whole = re.fullmatch(r"[+-]?[0-9]{1,18}", value) is not None
        if not is_whole or (least is not None and int(value) < least):
            bound = "" if least is None else f" from {least} on"
            raise self._refuse(key, f"{value!r} is no whole number{bound}", "write a whole number")
        return int(value)

    def clock(self, name: str) -> Clock:
        """Return when something happens. A negative interval means never, as in MirrorMaker 2."""
        seconds = self.number(f"{name}.interval.seconds")
        is_enabled = self.flag(f"{name}.enabled") and seconds >= 0
        return Clock(is_enabled, float(max(0, seconds)))

    def patterns(self, name: str) -> LinearRegex | None:
        key, value = self._value(name)
        patterns: list[str] = []
        if value.strip():
            patterns = re.split(r"\s*,\s*", value.strip())
        try:
            return compile_patterns(patterns)
        except ValueError as error:
            raise self._refuse(
                key, f"{value!r}: {error}", "write names and Java regular expressions, with commas between"
            ) from None

    def names(self, name: str) -> list[str]:
        """Return the items of a list that are plain names."""
        _, value = self._value(name)
        return [item for item in re.split(r"\s*,\s*", value) if re.fullmatch(r"[A-Za-z0-9_-]+", item)]

    def policy(self) -> DefaultPolicy:
        key, name = self._value("replication.policy.class")
        separator_key, separator = self._value("replication.policy.separator")
        if not separator:
            raise self._refuse(separator_key, "a separator is needed", "write '.', for instance")
        internal = self.flag("replication.policy.internal.topic.separator.enabled")
        if name in (DEFAULT_POLICY, "DefaultReplicationPolicy"):
            return DefaultPolicy(separator, internal)
        if name in (IDENTITY_POLICY, "IdentityReplicationPolicy"):
            return IdentityPolicy(separator, internal, source_alias=self.pair.source)
        hint = IDENTITY_POLICY if "Legacy" in name else f"{DEFAULT_POLICY} or {IDENTITY_POLICY}"
        raise self._refuse(key, f"the policy {name} can't be used here", f"write {hint}")


@dataclass(frozen=True)
class MirrorProperties:
    """Flows and settings of a properties file. `flows` are the enabled pairs of clusters, in the order of `clusters`.

    `heartbeat_flows` are the other pairs that emit heartbeats: MirrorMaker 2 writes `heartbeats` into each cluster for
    every pair, enabled or not. `notes` name the keys that have no meaning here, `warnings` the keys that are doubtful.
    """

    clusters: tuple[str, ...]
    flows: tuple[Flow, ...]
    heartbeat_flows: tuple[Flow, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]

    def selected(self, names: Collection[str]) -> tuple[Flow, ...]:
        """Return the flows of these names, all where none is given. `UsageError` if there is none, and where two
        sources have one archive."""
        known = {flow.name: flow for flow in self.flows}
        if not known:
            raise UsageError("the file enables no flow", "write A->B.enabled = true")
        for name in names:
            if name not in known:
                hint = suggest_name(name, known, f"its flows are {', '.join(known)}")
                raise UsageError(f"the file enables no flow {name}", hint)
        selected = names or known
        flows = tuple(flow for name, flow in known.items() if name in selected)
        # Two sources in one archive would be two clusters' topics under the same names.
        owners: dict[str, str] = {}
        for flow in flows:
            if not flow.archive:
                continue
            owner = owners.setdefault(flow.archive.rstrip("/"), flow.source)
            if owner != flow.source:
                raise UsageError(
                    f"{owner} and {flow.source} have one archive, {flow.archive}",
                    "write {source} into the address: kbackup.archive = s3://bucket/{source}",
                )
        return flows


def check_remote_names(flows: Sequence[Flow], file: str) -> None:
    """Raise `UsageError` where topics of two sources would have the same name in a target: `us.west.x` is the topic
    `x` of a cluster `us.west`, and `west.x` of a cluster `us`."""
    for one in flows:
        for other in flows:
            if one.target != other.target or one.source == other.source:
                continue
            begins = one.policy.format_remote_topic(one.source, "")
            if begins and other.policy.format_remote_topic(other.source, "").startswith(begins):
                raise UsageError(
                    f"{file}: clusters: topics of {one.source} and {other.source} can have one name in {one.target}, "
                    f"as {other.source!r} begins with {begins!r}",
                    "choose another alias, or another replication.policy.separator",
                )


def load_flows(
    source: Path | str, archive: str | None = None, environ: Mapping[str, str] = os.environ
) -> MirrorProperties:
    """Return the flows of a file (a `Path`) or of a text. `archive` is an address with `{source}` in it; it takes the
    place of `kbackup.archive`. Raise `UsageError` for a key or a value that can't be used."""
    file, data = _read(source)
    raw = {key: value.strip() for key, value in parse_properties(data, file).items()}
    sections = cut(raw, file, references_of(raw, file, environ))
    notes, warnings = review(sections)
    flows: list[Flow] = []
    heartbeat_flows: list[Flow] = []
    named_topics: list[str] = []
    for pair in sections.pairs():
        reader = FlowReader(sections, pair)
        named_topics += reader.names("topics")
        is_enabled = reader.enabled()
        if not is_enabled and not reader.clock("emit.heartbeats").enabled:
            continue
        flow, notes_on_clients = reader.flow(archive)
        notes += notes_on_clients
        if is_enabled:
            reader.check(flow)
            flows.append(flow)
        else:
            heartbeat_flows.append(_heartbeats_alone(flow))
    check_remote_names(flows, file)
    return MirrorProperties(
        clusters=sections.clusters,
        flows=without_cycles(flows, named_topics, file),
        heartbeat_flows=tuple(heartbeat_flows),
        notes=tuple(dict.fromkeys(notes)),  # flows of one cluster have the same ones
        warnings=tuple(warnings),
    )


def _read(source: Path | str) -> tuple[str, bytes]:
    """Return the name of a file for messages, and its bytes. A text is turned into the bytes of a file."""
    if isinstance(source, str):
        # A properties file is Latin-1 to Java, and writes other characters as escapes.
        return "mm2.properties", source.encode("latin-1", "backslashreplace")
    try:
        return str(source), source.read_bytes()
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UsageError(f"{source}: {why}", "name a readable file") from error


def _heartbeats_alone(flow: Flow) -> Flow:
    """Return a flow that is not enabled, as it writes heartbeats: MirrorMaker 2 writes them for each pair."""
    never = Clock(False, 0)
    return replace(flow, heartbeats_replicated=False, emit_checkpoints=never, emit_offset_syncs=False)
