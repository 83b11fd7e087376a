"""The keys of a flow with their defaults, and the keys that are refused or have no meaning here."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Literal, NamedTuple

from kbackup.schemas.base import RegistryOptions

ROLES = ("consumer.", "producer.", "admin.")
"""What the keys of a Kafka client begin with, by what it does."""


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


def _registry_key(field: str) -> str:
    words = field.replace("_", ".")
    return f"kbackup.registry.{words}"


REGISTRY_KEYS = {_registry_key(field.name): field.name for field in fields(RegistryOptions)}
"""Of a cluster: its schema registry, as `[schema_registry]` has it."""

KEYS = FLOW_KEYS | OWN_KEYS

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

CONNECT = re.compile(
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


KNOWN = (*KEYS, *FILTER_CLASSES, "clusters", "bootstrap.servers", "security.protocol")
FIRST_WORDS = (*KNOWN, *OWN_KEYS, *ROLES, "ssl.", "sasl.", "client.", "security.")
"""Keys that stand in a file without an alias, or what they begin with."""
