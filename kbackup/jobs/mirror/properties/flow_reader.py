"""Read the values of one flow: its own keys, those of all flows, and defaults."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from kbackup.errors import UsageError
from kbackup.jobs.mirror.filters import PatternFilter, compile_patterns
from kbackup.jobs.mirror.flow import Clock, Flow, ReplicationPolicy
from kbackup.jobs.mirror.policy import DefaultPolicy, IdentityPolicy
from kbackup.jobs.mirror.properties.clients import cluster_client, starts_at_end
from kbackup.jobs.mirror.properties.keys import DEFAULT_POLICY, FLOW_KEYS, IDENTITY_POLICY, OWN_KEYS
from kbackup.jobs.mirror.properties.sections import Pair, Sections
from kbackup.util.linear_regex import LinearRegex


@dataclass(frozen=True)
class FlowReader:
    """The values of one flow. `UsageError` for a value that can't be used."""

    sections: Sections
    pair: Pair

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
        """(whole key, value), by default that of the table of keys."""
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
