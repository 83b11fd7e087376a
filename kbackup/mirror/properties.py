"""MirrorMaker 2's properties file: its sections, its keys with their defaults, and the flows of a mirror."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from kbackup.config.clients import parse_properties, translate
from kbackup.errors import UsageError, suggest_name
from kbackup.jobs.schemas.judgement import SchemaTopics
from kbackup.kafka.client import with_admin
from kbackup.mirror.filters import PatternFilter, compile_patterns
from kbackup.mirror.flow import Clock, DefaultPolicy, Flow, IdentityPolicy
from kbackup.mirror.topics import without_cycles
from kbackup.native.property_check import refusal
from kbackup.schemas.base import RegistryOptions
from kbackup.util.linear_regex import LinearRegex

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
        where = f"{self.file}: {key}"

        def replace(match: re.Match[str]) -> str:
            kind, location = self.kinds[match[1]], match[2]
            if kind == "env":
                variable = location.removeprefix(":")
                if variable not in self.environ:
                    raise UsageError(f"{where}: the environment variable {variable} is not set", "set the variable")
                return self.environ[variable]
            path, colon, name = location.rpartition(":")
            if kind == "directory":
                return _text(str(Path(path) / name), where)
            if not colon:
                return _text(location, where)
            values = parse_properties(_bytes(path, where), path)
            if name not in values:
                raise UsageError(f"{where}: the file {path} has no key {name}", "name a key of the file")
            return values[name]

        return re.sub(r"\$\{(" + "|".join(map(re.escape, self.kinds)) + r"):([^}]*)\}", replace, value)


def references_of(raw: Mapping[str, str], file: str, environ: Mapping[str, str]) -> References:
    """Return the resolver of the references of a file, by its `config.providers`."""
    kinds = {"env": "env", "file": "file"}
    for name in _items(raw.get("config.providers", "")):
        key = f"config.providers.{name}.class"
        provider = raw.get(key, "").strip()
        if provider not in _CLASSES:
            raise UsageError(
                f"{file}: {key}: {provider or 'no class'} can't be used here", f"name one of {', '.join(_CLASSES)}"
            )
        kinds[name] = _CLASSES[provider]
    return References(file, kinds, environ)


def _items(text: str) -> list[str]:
    return [item for item in re.split(r"\s*,\s*", text.strip()) if item]


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

    def by_prefix(self) -> dict[str, dict[str, str]]:
        """Return the sections of clusters and flows by what their keys begin with in the file."""
        of_clusters = {f"{alias}.": section for alias, section in self.by_cluster.items()}
        return of_clusters | {f"{pair}.": section for pair, section in self.by_flow.items()}

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
    clusters = tuple(_items(references.resolve(raw.get("clusters", ""), "clusters")))
    if len(clusters) < 2 or len(set(clusters)) < len(clusters):
        raise UsageError(
            f"{file}: clusters names {', '.join(clusters) or 'no cluster'}",
            "name at least two different clusters: clusters = A, B",
        )
    if odd := next((alias for alias in clusters if "->" in alias), None):
        raise UsageError(f"{file}: clusters: the alias {odd!r} holds '->'", "choose another alias")
    for alias in clusters:
        # Aliases source and target are usual, and nobody is misled: source.consumer.x is of that cluster either way.
        meant = next((key for key in _FIRST_WORDS if key.startswith(f"{alias}.")), None)
        if meant is not None:
            raise UsageError(
                f"{file}: clusters: the alias {alias!r} is also the first word of {meant}…, a key for all flows",
                "choose another alias",
            )
    sections = Sections(file, clusters, references)
    sections.by_cluster = {alias: {} for alias in clusters}
    sections.by_flow = {pair: {} for pair in sections.pairs()}
    # an alias may be the beginning of another one: the longest prefix counts
    by_prefix = sections.by_prefix()
    prefixes = sorted(by_prefix, key=len, reverse=True)
    for key, value in raw.items():
        prefix = next(filter(key.startswith, prefixes), None)
        if prefix is not None:
            by_prefix[prefix][key.removeprefix(prefix)] = value
        elif re.match(r"(.+?)->(.+?)\.", key):
            sections.stray.append(key)
        elif key != "clusters":
            sections.top[key] = value
    return sections


Side = Literal["source", "target"]

ROLES = ("consumer.", "producer.", "admin.")
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
    java = _java_properties(sections, pair, side, "consumer." if side == "source" else "producer.")
    if java.get("auto.offset.reset") in ("earliest", "latest"):
        del java["auto.offset.reset"]  # `Flow.starts_at_end`
    if "bootstrap.servers" not in java:
        return None, []
    properties, notes = _translated(java, where)
    # without properties for the admin client, the side's other ones apply
    own = [name for name in sections.by_flow[pair] if name.startswith(("admin.", f"{side}.admin."))]
    if own or any(name.startswith("admin.") for name in sections.by_cluster[alias]):
        admin, more = _translated(_java_properties(sections, pair, side, "admin."), where)
        properties, notes = with_admin(properties, admin), [*notes, *more]
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


def _java_properties(sections: Sections, pair: FlowClusters, side: Side, role: str) -> dict[str, str]:
    """MirrorMaker 2's order: what all clients share, the flow's `consumer.…`, the cluster's `consumer.…` with what
    all share there, too, the flow's `source.consumer.…`. `role` is 'consumer.', 'producer.' or 'admin.'."""
    alias = getattr(pair, side)
    cluster, flow = sections.by_cluster[alias], sections.by_flow[pair]

    def stripped(section: dict[str, str], prefix: str, before: str) -> dict[str, tuple[str, str]]:
        """Return (whole key, value) by the name behind `prefix`."""
        own = [name for name in section if name.startswith(prefix)]
        return {name.removeprefix(prefix): (f"{before}.{name}", section[name]) for name in own}

    common = {name: (name, value) for name, value in sections.top.items() if is_common(name)}
    common |= {name: (f"{alias}.{name}", value) for name, value in cluster.items() if is_common(name)}
    merged = common | stripped(flow, f"{side}.cluster.", f"{pair}") | stripped(flow, role, f"{pair}")
    merged |= common | stripped(cluster, role, alias)
    merged |= stripped(flow, f"{side}.{role}", f"{pair}") | stripped(flow, f"{role}override.", f"{pair}")
    resolved = {name: sections.references.resolve(value, key).strip() for name, (key, value) in merged.items()}
    return {name: value for name, value in resolved.items() if not name.startswith("override.")}


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

    kind: Literal["flag", "number", "list", "text"]
    default: str
    least: int | None = 0
    choices: tuple[str, ...] = ()


CLOCKS = {
    "emit.heartbeats": ("true", "1"),
    "emit.checkpoints": ("true", "60"),
    "refresh.topics": ("true", "600"),
    "refresh.groups": ("true", "600"),
    "sync.topic.configs": ("true", "600"),
    "sync.topic.acls": ("true", "600"),
    "sync.group.offsets": ("false", "60"),
}
"""By the name of a `Clock` of `Flow`: the defaults of its keys `.enabled` and `.interval.seconds`."""

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
    **{f"{name}.enabled": FlowKey("flag", enabled) for name, (enabled, _) in CLOCKS.items()},
    **{f"{name}.interval.seconds": FlowKey("number", seconds, None) for name, (_, seconds) in CLOCKS.items()},
}
"""MirrorMaker 2's, with its defaults; but `offset-syncs.topic.location`, whose default there is `source`."""

OWN_KEYS = {
    "kbackup.archive": FlowKey("text", ""),
    "kbackup.checkpoints": FlowKey("text", "exact", choices=("exact", "mm2")),
    "kbackup.on.recreate": FlowKey("text", "continue", choices=("continue", "stop")),
    "kbackup.schemas": FlowKey("text", "none", choices=("none", "same", "map")),
    "kbackup.schemas.unmapped": FlowKey("text", "keep", choices=("keep", "fail")),
    "kbackup.schemas.topics": FlowKey("list", ""),
    "kbackup.schemas.topics.exclude": FlowKey("list", ""),
}
"""kbackup's own. A cluster may have them, too: they hold for the flows from it."""

REGISTRY_KEYS = {f"kbackup.registry.{each.name.replace('_', '.')}": each.name for each in fields(RegistryOptions)}
"""Of a cluster: its schema registry, as `[schema_registry]` has it."""

_KEYS = FLOW_KEYS | OWN_KEYS

REFUSED = {
    "topics.blacklist": "write topics.exclude",
    "groups.blacklist": "write groups.exclude",
    "config.properties.blacklist": "write config.properties.exclude",
    "topics.whitelist": "write topics",
    "groups.whitelist": "write groups",
    "rename.topics": f"write replication.policy.class = {IDENTITY_POLICY}",
    "readahead.queue.capacity": "remove the key; fetch.max.bytes of the consumer bounds what is read ahead",
    **{
        f"{topic}.topic.retention.ms": "remove the key, and set retention.ms of the topic itself"
        for topic in ("heartbeats", "checkpoints", "offset.syncs", "offset-syncs")
    },
    **{name: f"write {name}.enabled" for name in CLOCKS},
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
"""Keys of a Connect worker or connector, or of Java's clock of MirrorMaker 2's tasks."""


@dataclass(frozen=True)
class FlowReader:
    """The values of one flow. `UsageError` for a value that can't be used."""

    sections: Sections
    pair: FlowClusters

    def flow(self, archive: str | None) -> tuple[Flow, list[str]]:
        """Return the flow, and notes on its client properties."""
        source, notes = cluster_client(self.sections, self.pair, "source")
        target, more = cluster_client(self.sections, self.pair, "target")
        consumer = _java_properties(self.sections, self.pair, "source", "consumer.")
        choices: Any = self.text  # each is checked against the choices of its key
        clocks: Any = {name.replace(".", "_"): self.clock(name) for name in CLOCKS}
        flow = Flow(
            source=self.pair.source,
            target=self.pair.target,
            source_properties=source,
            target_properties=target,
            archive=(archive or self.text("kbackup.archive")).replace("{source}", self.pair.source) or None,
            policy=self.policy(),
            topics=PatternFilter(self.patterns("topics"), self.patterns("topics.exclude")),
            groups=PatternFilter(self.patterns("groups"), self.patterns("groups.exclude")),
            excluded_configs=PatternFilter(self.patterns("config.properties.exclude"), None),
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
            schema_topics=SchemaTopics(
                PatternFilter(self.patterns("kbackup.schemas.topics"), None),
                PatternFilter(self.patterns("kbackup.schemas.topics.exclude"), None),
            ),
            unmapped=choices("kbackup.schemas.unmapped"),
            source_registry=self.registry(self.pair.source),
            target_registry=self.registry(self.pair.target),
            # only records that come after the flow's first round of a topic
            starts_at_end=consumer.get("auto.offset.reset") == "latest",
            **clocks,
        )
        return flow, [*notes, *more]

    def registry(self, alias: str) -> RegistryOptions:
        """Return the schema registry of a cluster; its `url` is '' if the file names none."""
        own = self.sections.by_cluster[alias]
        resolve = self.sections.references.resolve
        given = {field: name for name, field in REGISTRY_KEYS.items() if name in own}
        return RegistryOptions(**{f: resolve(own[name], f"{alias}.{name}").strip() for f, name in given.items()})

    def check(self, flow: Flow) -> None:
        """Refuse keys that can't go together."""
        if flow.schemas != "none":
            for alias, options in ((flow.source, flow.source_registry), (flow.target, flow.target_registry)):
                if not options.url:
                    text = f"{flow.schemas!r} needs the schema registries of both clusters"
                    raise self._refuse(self._value("kbackup.schemas")[0], text, f"set {alias}.kbackup.registry.url")
        if flow.checkpoint_rule == "mm2" and not flow.emit_offset_syncs:
            key, (syncs, _) = "kbackup.checkpoints", self._value("emit.offset-syncs.enabled")
            text = f"'mm2' translates by offset syncs, and {syncs} = false writes none"
            raise self._refuse(self._value(key)[0], text, f"set {syncs} = true, or {key} = exact")

    def _value(self, name: str) -> tuple[str, str]:
        """Return (whole key, value), with the default from the table of keys."""
        found = self.sections.value(name, self.pair, of_cluster=name in OWN_KEYS)
        return found or (name, _KEYS[name].default)

    def _refuse(self, key: str, text: str, hint: str) -> UsageError:
        return UsageError(f"{self.sections.file}: {key}: {text}", hint)

    def text(self, name: str) -> str:
        key, value = self._value(name)
        choices = _KEYS[name].choices
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

    def patterns(self, name: str) -> LinearRegex | None:
        key, value = self._value(name)
        try:
            return compile_patterns(re.split(r"\s*,\s*", value.strip()) if value.strip() else [])
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
        if name in (DEFAULT_POLICY, DEFAULT_POLICY.rpartition(".")[2]):
            return DefaultPolicy(separator, internal)
        if name in (IDENTITY_POLICY, IDENTITY_POLICY.rpartition(".")[2]):
            return IdentityPolicy(separator, internal, source_alias=self.pair.source)
        hint = IDENTITY_POLICY if "Legacy" in name else f"{DEFAULT_POLICY} or {IDENTITY_POLICY}"
        raise self._refuse(key, f"the policy {name} can't be used here", f"write {hint}")


_CLIENTS = (*(f"{side}.{role}" for side in ("source", "target") for role in (*ROLES, "cluster.")), *ROLES)


def review(sections: Sections) -> tuple[list[str], list[str]]:
    """Return (notes, warnings): the keys that have no meaning here, and those that are doubtful. Raise `UsageError`
    for a key that is refused."""
    notes: list[str] = []
    warnings: list[str] = []
    for key in sections.stray:
        aliases = key.partition("->")[0], key.partition("->")[2].partition(".")[0]
        raise _unknown_cluster(sections, key, next(a for a in aliases if a not in sections.clusters))
    by_prefix = {"": sections.top, **sections.by_prefix()}
    keys = ((prefix, *item) for prefix, section in by_prefix.items() for item in section.items())
    for prefix, name, value in keys:
        where = f"{sections.file}: {prefix}{name}"
        _check_refused(name, value, where)
        if name == "use.defaults.from" and value.strip() == "source":
            warnings.append(
                f"{where} = source has no effect: an archive does not hold the defaults of the source's brokers; "
                f"set {name} = target"
            )
        if prefix.count("->"):
            known = name in _KEYS or name.startswith(_CLIENTS)
        elif prefix:
            known = _is_of_cluster(name)
        else:
            known = name in _KEYS or is_common(name)
        if known or name in FILTER_CLASSES:
            continue
        meant = next((other for other in _KNOWN if _is_one_letter_off(name, other)), None)
        if meant is not None:
            raise UsageError(f"{where} is no key of MirrorMaker 2", f"did you mean {prefix}{meant}?")
        alias, _, rest = name.partition(".")
        of_connect = _CONNECT.fullmatch(name) is not None
        if not prefix and not of_connect and f"{alias}." not in ROLES and _is_of_cluster(rest):
            raise _unknown_cluster(sections, name, alias)
        if of_connect or (not prefix and name.startswith(ROLES)):
            notes.append(f"{where} has no meaning here")
        elif prefix and "->" not in prefix:
            hint = f"write {prefix}consumer.{name} or {prefix}producer.{name}"
            if name in FLOW_KEYS:
                hint = f"write it for all flows, or for a flow: A->B.{name}"
            warnings.append(f"{where} has no meaning, in MirrorMaker 2 neither: {hint}")
        else:
            warnings.append(f"{where} is no key of MirrorMaker 2: {suggest_name(name, FLOW_KEYS, 'it is left out')}")
    return notes, warnings


_KNOWN = (*_KEYS, *FILTER_CLASSES, "clusters", "bootstrap.servers", "security.protocol")
_FIRST_WORDS = (*_KNOWN, *OWN_KEYS, *ROLES, "ssl.", "sasl.", "client.", "security.")
"""Keys that stand in a file without an alias, or what they begin with."""


def _is_one_letter_off(name: str, other: str) -> bool:
    """Return whether a letter more, less, or another one, or two swapped ones make `other` of `name`."""
    at = next((n for n, (a, b) in enumerate(zip(name, other, strict=False)) if a != b), min(len(name), len(other)))
    rest, due = name[at:], other[at:]
    swapped = rest[1:2] + rest[:1] + rest[2:]
    return name != other and (due in (swapped, rest[1:]) or due[1:] in (rest, rest[1:]))


def _is_of_cluster(name: str) -> bool:
    """Return whether a cluster has the key `name`."""
    return name in OWN_KEYS or name in REGISTRY_KEYS or is_common(name) or name.startswith(ROLES)


def _unknown_cluster(sections: Sections, key: str, alias: str) -> UsageError:
    hint = suggest_name(alias, sections.clusters, f"write one of {', '.join(sections.clusters)}, or add it to clusters")
    return UsageError(f"{sections.file}: {key}: clusters does not name {alias}", hint)


def _check_refused(name: str, value: str, where: str) -> None:
    if name in REFUSED:
        raise UsageError(f"{where} is no key of MirrorMaker 2", REFUSED[name])
    known = (*OWN_KEYS, *REGISTRY_KEYS)
    if name.startswith("kbackup.") and name not in known:
        raise UsageError(f"{where} is no key of kbackup", suggest_name(name, known, f"keys are {', '.join(known)}"))
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
        flows = tuple(flow for name, flow in known.items() if not names or name in names)
        owners: dict[str, str] = {}
        for flow in flows:
            if flow.archive and (owner := owners.setdefault(flow.archive.rstrip("/"), flow.source)) != flow.source:
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
    file, data = "mm2.properties", b""
    if isinstance(source, str):
        data = source.encode("latin-1", "backslashreplace")
    else:
        file = str(source)
        try:
            data = source.read_bytes()
        except OSError as error:
            raise UsageError(f"{file}: {(error.strerror or str(error)).lower()}", "name a readable file") from error
    raw = {key: value.strip() for key, value in parse_properties(data, file).items()}
    sections = cut(raw, file, references_of(raw, file, environ))
    notes, warnings = review(sections)
    flows: list[Flow] = []
    heartbeat_flows: list[Flow] = []
    readers = [FlowReader(sections, pair) for pair in sections.pairs()]
    for reader in readers:
        enabled = reader.enabled()
        if enabled or reader.clock("emit.heartbeats").enabled:
            flow, of_clients = reader.flow(archive)
            if enabled:
                reader.check(flow)
                flows.append(flow)
            else:
                only = replace(
                    flow, heartbeats_replicated=False, emit_checkpoints=Clock(False, 0), emit_offset_syncs=False
                )
                heartbeat_flows.append(only)
            notes += of_clients
    check_remote_names(flows, file)
    return MirrorProperties(
        sections.clusters,
        without_cycles(flows, [name for reader in readers for name in reader.names("topics")], file),
        tuple(heartbeat_flows),
        tuple(dict.fromkeys(notes)),
        tuple(warnings),
    )
