"""The keys of MirrorMaker 2's properties file: their defaults, those that mean nothing here, those that are refused."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

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
