"""Load MirrorMaker 2's properties file: its keys, their defaults, and those that are refused or mean nothing here."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from kbackup.config.clients import parse_properties
from kbackup.errors import UsageError, suggest_name
from kbackup.jobs.mirror.filters import PatternFilter, compile_patterns
from kbackup.jobs.mirror.flow import Clock, Flow, ReplicationPolicy
from kbackup.jobs.mirror.properties.sections import (
    ROLES,
    FlowClusters,
    Sections,
    cluster_client,
    cut,
    is_common,
    references_of,
    starts_at_end,
)
from kbackup.jobs.mirror.topics import DefaultPolicy, IdentityPolicy, without_cycles
from kbackup.util.linear_regex import LinearRegex

Kind = Literal["flag", "number", "list", "text"]

PACKAGE = "org.apache.kafka.connect.mirror."
DEFAULT_POLICY, IDENTITY_POLICY = f"{PACKAGE}DefaultReplicationPolicy", f"{PACKAGE}IdentityReplicationPolicy"
EXCLUDED_CONFIGS = (
    r"follower\.replication\.throttled\.replicas, leader\.replication\.throttled\.replicas, "
    r"message\.timestamp\.difference\.max\.ms, log\.message\.timestamp\.before\.max\.ms, "
    r"log\.message\.timestamp\.after\.max\.ms, message\.timestamp\.type, unclean\.leader\.election\.enable, "
    r"min\.insync\.replicas"
)


class FlowKey(NamedTuple):
    """A key of a flow or of all flows. `least` bounds a number, unless it is None; `choices` a text."""

    kind: Kind
    default: str
    least: int | None = 0
    choices: tuple[str, ...] = ()


def _clock(name: str, *, enabled: bool, seconds: int) -> dict[str, FlowKey]:
    return {
        f"{name}.enabled": FlowKey("flag", str(enabled).lower()),
        f"{name}.interval.seconds": FlowKey("number", str(seconds), None),
    }


FLOW_KEYS = {
    "enabled": FlowKey("flag", "false"),
    "topics": FlowKey("list", ".*"),
    "topics.exclude": FlowKey("list", r"mm2.*\.internal, .*\.replica, __.*"),
    "groups": FlowKey("list", ".*"),
    "groups.exclude": FlowKey("list", "console-consumer-.*, connect-.*, __.*"),
    "config.properties.exclude": FlowKey("list", EXCLUDED_CONFIGS),
    "use.defaults.from": FlowKey("text", "target", choices=("source", "target")),
    "replication.policy.class": FlowKey("text", DEFAULT_POLICY),
    "replication.policy.separator": FlowKey("text", "."),
    "replication.policy.internal.topic.separator.enabled": FlowKey("flag", "true"),
    "replication.factor": FlowKey("number", "2", -1),
    "heartbeats.topic.replication.factor": FlowKey("number", "3", -1),
    "checkpoints.topic.replication.factor": FlowKey("number", "3", -1),
    "offset-syncs.topic.replication.factor": FlowKey("number", "3", -1),
    "heartbeats.replication.enabled": FlowKey("flag", "true"),
    "offset.lag.max": FlowKey("number", "100", 0),
    "offset-syncs.topic.location": FlowKey("text", "target", choices=("source", "target")),
    "emit.offset-syncs.enabled": FlowKey("flag", "true"),
    **_clock("emit.heartbeats", enabled=True, seconds=1),
    **_clock("emit.checkpoints", enabled=True, seconds=60),
    **_clock("refresh.topics", enabled=True, seconds=600),
    **_clock("refresh.groups", enabled=True, seconds=600),
    **_clock("sync.topic.configs", enabled=True, seconds=600),
    **_clock("sync.topic.acls", enabled=True, seconds=600),
    **_clock("sync.group.offsets", enabled=False, seconds=60),
}
"""MirrorMaker 2's, with its defaults; but `offset-syncs.topic.location`, whose default there is `source`."""

OWN_KEYS = {
    "kbackup.archive": FlowKey("text", ""),
    "kbackup.checkpoints": FlowKey("text", "exact", choices=("exact", "mm2")),
    "kbackup.on.recreate": FlowKey("text", "continue", choices=("continue", "stop")),
}
"""kbackup's own. A cluster may have them, too: they hold for the flows from it."""

OWN_PREFIX = "kbackup."

REFUSED = {
    "topics.blacklist": "write topics.exclude",
    "groups.blacklist": "write groups.exclude",
    "config.properties.blacklist": "write config.properties.exclude",
    "topics.whitelist": "write topics",
    "groups.whitelist": "write groups",
    "rename.topics": f"write replication.policy.class = {IDENTITY_POLICY}",
    "readahead.queue.capacity": "remove the key; fetch.max.bytes of the consumer bounds what is read ahead",
    "heartbeats.topic.retention.ms": "remove the key, and set retention.ms of the topic itself",
    "checkpoints.topic.retention.ms": "remove the key, and set retention.ms of the topic itself",
    "offset.syncs.topic.retention.ms": "remove the key, and set retention.ms of the topic itself",
    "offset-syncs.topic.retention.ms": "remove the key, and set retention.ms of the topic itself",
    **{
        name.removesuffix(".enabled"): f"write {name}"
        for name, key in FLOW_KEYS.items()
        if name.endswith(".enabled") and f"{name.removesuffix('enabled')}interval.seconds" in FLOW_KEYS
    },
}
"""Keys of the first design that MirrorMaker 2 does not have, with what to write instead."""

FILTER_CLASSES = {
    "topic.filter.class": f"{PACKAGE}DefaultTopicFilter",
    "group.filter.class": f"{PACKAGE}DefaultGroupFilter",
    "config.property.filter.class": f"{PACKAGE}DefaultConfigPropertyFilter",
}
"""Keys that name Java code, with the only class whose answers are known here."""

_CONNECT = re.compile(
    r"tasks\.max|tasks\.max\.enforce|name|group\.id|client\.id|plugin\.path|plugin\.discovery|listeners|cipher\.suites"
    r"|dedicated\.mode\.enable\.internal\.rest|forwarding\.admin\.class|use\.incremental\.alter\.configs"
    r"|add\.source\.alias\.to\.metrics|consumer\.poll\.timeout\.ms|admin\.timeout\.ms|(admin|rest)\..*|response\..*"
    r"|(key|value|header|internal\.key|internal\.value)\.converter(\..*)?|(source|target)\.cluster\.alias"
    r"|(offset|config|status)\.storage\..*|offset\.flush\..*|(task|worker|errors|transforms|predicates)(\..*)?"
    r"|(topic\.creation|topic\.tracking|exactly\.once|transaction\.boundary|access\.control|connect)\..*"
    r"|transaction\.boundary|exactly\.once\.(source\.)?support|offsets\.storage\.topic|config\.(action|providers).*"
    r"|connector\.client\..*|scheduled\.rebalance\..*|inter\.worker\..*|(metrics|metric)\..*|auto\.include\..*"
    r"|(heartbeat|session|rebalance|request|connections|reconnect|retry|socket|metadata|send|receive)\..*"
)


def is_connect_key(name: str) -> bool:
    """Return whether `name` is a key of a Connect worker or connector, or of Java's clock of MirrorMaker 2's tasks."""
    return _CONNECT.fullmatch(name) is not None


# Read the values of one flow: its own keys, those of all flows, and defaults.


@dataclass(frozen=True)
class FlowReader:
    """The values of one flow. `UsageError` for a value that can't be used."""

    sections: Sections
    pair: FlowClusters

    def flow(self, archive: str | None) -> tuple[Flow, tuple[str, ...]]:
        """Return the flow, and notes on its client properties."""
        source = cluster_client(self.sections, self.pair, "source")
        target = cluster_client(self.sections, self.pair, "target")
        choices: Any = self.text  # each is checked against the choices of its key
        flow = Flow(
            source=self.pair.source,
            target=self.pair.target,
            source_properties=source.properties,
            target_properties=target.properties,
            archive=(archive or self.text("kbackup.archive")).replace("{source}", self.pair.source) or None,
            policy=self.policy(),
            topics=self.filter("topics", "topics.exclude"),
            groups=self.filter("groups", "groups.exclude"),
            excluded_configs=PatternFilter(self.patterns("config.properties.exclude"), None),
            use_defaults_from=choices("use.defaults.from"),
            replication_factor=self.number("replication.factor"),
            heartbeats_replication_factor=self.number("heartbeats.topic.replication.factor"),
            checkpoints_replication_factor=self.number("checkpoints.topic.replication.factor"),
            offset_syncs_replication_factor=self.number("offset-syncs.topic.replication.factor"),
            heartbeats_replicated=self.flag("heartbeats.replication.enabled"),
            emit_heartbeats=self.clock("emit.heartbeats"),
            emit_checkpoints=self.clock("emit.checkpoints"),
            emit_offset_syncs=self.flag("emit.offset-syncs.enabled"),
            offset_syncs_location=choices("offset-syncs.topic.location"),
            offset_lag_max=self.number("offset.lag.max"),
            refresh_topics=self.clock("refresh.topics"),
            refresh_groups=self.clock("refresh.groups"),
            sync_topic_configs=self.clock("sync.topic.configs"),
            sync_topic_acls=self.clock("sync.topic.acls"),
            sync_group_offsets=self.clock("sync.group.offsets"),
            checkpoint_rule=choices("kbackup.checkpoints"),
            on_recreate=choices("kbackup.on.recreate"),
            starts_at_end=starts_at_end(self.sections, self.pair),
        )
        return flow, (*source.notes, *target.notes)

    def check(self, flow: Flow) -> None:
        """Refuse keys that can't go together."""
        if flow.checkpoint_rule == "mm2" and not flow.emit_offset_syncs:
            key, (syncs, _) = "kbackup.checkpoints", self._value("emit.offset-syncs.enabled")
            text = f"'mm2' translates by offset syncs, and {syncs} = false writes none"
            raise self._refuse(self._value(key)[0], text, f"set {syncs} = true, or {key} = exact")

    def _value(self, name: str) -> tuple[str, str]:
        """Return (whole key, value), with the default from the table of keys."""
        own = name in OWN_KEYS
        default = OWN_KEYS[name].default if own else FLOW_KEYS[name].default
        return self.sections.value(name, self.pair, of_cluster=own) or (name, default)

    def _refuse(self, key: str, text: str, hint: str) -> UsageError:
        return UsageError(f"{self.sections.file}: {key}: {text}", hint)

    def text(self, name: str) -> str:
        key, value = self._value(name)
        choices = (OWN_KEYS if name in OWN_KEYS else FLOW_KEYS)[name].choices
        if choices and value not in choices:
            raise self._refuse(key, f"{value!r} can't be used", f"write {' or '.join(choices)}")
        return value

    def enabled(self) -> bool:
        """Return whether the flow is enabled. MirrorMaker 2 takes an empty value for the default."""
        return bool(self._value("enabled")[1].strip()) and self.flag("enabled")

    def flag(self, name: str) -> bool:
        key, value = self._value(name)
        if value.lower() not in ("true", "false"):
            raise self._refuse(key, f"{value!r} is neither true nor false", "write true or false")
        return value.lower() == "true"

    def number(self, name: str) -> int:
        key, value = self._value(name)
        least = FLOW_KEYS[name].least
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", value) or (least is not None and int(value) < least):
            bound = "" if least is None else f" from {least} on"
            raise self._refuse(key, f"{value!r} is no whole number{bound}", "write a whole number")
        return int(value)

    def clock(self, name: str) -> Clock:
        """Return when something happens. A negative interval means never, as in MirrorMaker 2."""
        seconds = self.number(f"{name}.interval.seconds")
        return Clock(self.flag(f"{name}.enabled") and seconds >= 0, float(max(0, seconds)))

    def filter(self, include: str, exclude: str) -> PatternFilter:
        return PatternFilter(self.patterns(include), self.patterns(exclude))

    def patterns(self, name: str) -> LinearRegex | None:
        key, value = self._value(name)
        items = re.split(r"\s*,\s*", value.strip()) if value.strip() else []
        try:
            return compile_patterns(items)
        except ValueError as error:
            raise self._refuse(
                key, f"{value!r}: {error}", "write names and Java regular expressions, with commas between"
            ) from None

    def names(self, name: str) -> list[str]:
        """Return the items of a list that are plain names."""
        _, value = self._value(name)
        return [item for item in re.split(r"\s*,\s*", value) if re.fullmatch(r"[A-Za-z0-9_-]+", item)]

    def policy(self) -> ReplicationPolicy:
        key, name = self._value("replication.policy.class")
        separator_key, separator = self._value("replication.policy.separator")
        if not separator:
            raise self._refuse(separator_key, "a separator is needed", "write '.', for instance")
        internal = self.flag("replication.policy.internal.topic.separator.enabled")
        if name in (DEFAULT_POLICY, DEFAULT_POLICY.rpartition(".")[2]):
            return DefaultPolicy(separator, internal)
        if name in (IDENTITY_POLICY, IDENTITY_POLICY.rpartition(".")[2]):
            return IdentityPolicy(separator, internal, source_alias=self.pair.source)
        hint = IDENTITY_POLICY if "Legacy" in name else f"{DEFAULT_POLICY} or {IDENTITY_POLICY}"
        raise self._refuse(key, f"the policy {name} can't be used here", f"write {hint}")


# Review the keys of a properties file: those without a meaning, doubtful ones, and refused ones.


_CLIENTS = (*(f"{side}.{role}" for side in ("source", "target") for role in (*ROLES, "cluster.")), *ROLES)


def review(sections: Sections) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (notes, warnings): the keys that have no meaning here, and those that are doubtful. Raise `UsageError`
    for a key that is refused."""
    notes: list[str] = []
    warnings: list[str] = []
    for key in sections.stray:
        aliases = key.partition("->")[0], key.partition("->")[2].partition(".")[0]
        raise _unknown_cluster(sections, key, next(a for a in aliases if a not in sections.clusters))
    for prefix, name, value in _keys(sections):
        where = f"{sections.file}: {prefix}{name}"
        _check_refused(name, value, where)
        if name == "use.defaults.from" and value.strip() == "source":
            warnings.append(
                f"{where} = source has no effect: an archive does not hold the defaults of the source's brokers; "
                f"set {name} = target"
            )
        if prefix.count("->"):
            known = name in FLOW_KEYS or name in OWN_KEYS or name.startswith(_CLIENTS)
        elif prefix:
            known = name in OWN_KEYS or is_common(name) or name.startswith(ROLES)
        else:
            known = name in FLOW_KEYS or name in OWN_KEYS or is_common(name)
        if known or name in FILTER_CLASSES:
            continue
        meant = next((other for other in _KNOWN if _is_one_letter_off(name, other)), None)
        if meant is not None:
            raise UsageError(f"{where} is no key of MirrorMaker 2", f"did you mean {prefix}{meant}?")
        alias, _, rest = name.partition(".")
        if not prefix and not is_connect_key(name) and alias + "." not in ROLES and _is_of_cluster(rest):
            raise _unknown_cluster(sections, name, alias)
        if is_connect_key(name) or (not prefix and name.startswith(ROLES)):
            notes.append(f"{where} has no meaning here")
        elif prefix and "->" not in prefix:
            hint = f"write {prefix}consumer.{name} or {prefix}producer.{name}"
            if name in FLOW_KEYS:
                hint = f"write it for all flows, or for a flow: A->B.{name}"
            warnings.append(f"{where} has no meaning, in MirrorMaker 2 neither: {hint}")
        else:
            warnings.append(f"{where} is no key of MirrorMaker 2: {suggest_name(name, FLOW_KEYS, 'it is left out')}")
    return tuple(notes), tuple(warnings)


_KNOWN = (*FLOW_KEYS, *OWN_KEYS, *FILTER_CLASSES, "clusters", "bootstrap.servers", "security.protocol")


def _is_one_letter_off(name: str, other: str) -> bool:
    """Return whether a letter more, less, or another one, or two swapped ones make `other` of `name`."""
    at = next((n for n, (a, b) in enumerate(zip(name, other, strict=False)) if a != b), min(len(name), len(other)))
    rest, due = name[at:], other[at:]
    swapped = rest[1:2] + rest[:1] + rest[2:]
    return name != other and (due in (swapped, rest[1:]) or due[1:] in (rest, rest[1:]))


def _is_of_cluster(name: str) -> bool:
    """Return whether a cluster has the key `name`."""
    return name in OWN_KEYS or is_common(name) or name.startswith(ROLES)


def _unknown_cluster(sections: Sections, key: str, alias: str) -> UsageError:
    otherwise = f"write one of {', '.join(sections.clusters)}, or add it to clusters"
    return UsageError(
        f"{sections.file}: {key}: clusters does not name {alias}", suggest_name(alias, sections.clusters, otherwise)
    )


def _keys(sections: Sections) -> Iterator[tuple[str, str, str]]:
    """Yield (prefix, name, value) of every key of a known section."""
    yield from (("", name, value) for name, value in sections.top.items())
    for alias, section in sections.by_cluster.items():
        yield from ((f"{alias}.", name, value) for name, value in section.items())
    for pair, section in sections.by_flow.items():
        yield from ((f"{pair}.", name, value) for name, value in section.items())


def _check_refused(name: str, value: str, where: str) -> None:
    if name in REFUSED:
        raise UsageError(f"{where} is no key of MirrorMaker 2", REFUSED[name])
    if name.startswith(OWN_PREFIX) and name not in OWN_KEYS:
        raise UsageError(
            f"{where} is no key of kbackup", suggest_name(name, OWN_KEYS, f"keys are {', '.join(OWN_KEYS)}")
        )
    if name.startswith("cluster.") and name.endswith((".bootstrap.servers", ".broker.list")):
        alias = name.split(".")[1]
        raise UsageError(f"{where} is no key of MirrorMaker 2", f"write {alias}.bootstrap.servers")
    if name.partition(".")[0] in ("transforms", "predicates") and value.strip():
        raise UsageError(
            f"{where} changes records, and a mirror copies them as they are",
            "remove the key, or change the records in a program that reads the remote topic",
        )
    if name == "connector.class" and "Sink" in value:
        raise UsageError(f"{where} names a sink connector", "remove the key: 'kbackup mirror' writes by itself")
    if name in FILTER_CLASSES and value.strip() not in (FILTER_CLASSES[name], FILTER_CLASSES[name].rpartition(".")[2]):
        raise UsageError(
            f"{where} names Java code, which can't be run here",
            f"remove the key, and select by {name.split('.')[0]}s and {name.split('.')[0]}s.exclude",
        )


# Read MirrorMaker 2's properties file.


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
        """Return the flows of these names, all where none is given. `UsageError` if there is none, and where two
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
        raise UsageError(f"{path}: {(error.strerror or str(error)).lower()}", "name a readable file") from error
