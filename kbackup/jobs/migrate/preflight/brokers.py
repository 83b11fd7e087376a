"""Checks of the brokers: release, protocol, ids, and that all are alive."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kbackup.jobs.migrate.preflight.findings import Findings
from kbackup.jobs.migrate.preflight.line import Line, each, failed, listed, not_looked_at, ok
from kbackup.jobs.migrate.unread import NotRead, first_unread

RELEASE = "brokers: release"
PROTOCOL = "brokers: inter.broker.protocol.version"
VERSION = "brokers: the controllers' metadata.version"
IDS = "brokers: static ids"
ALIVE = "brokers: alive"

_FETCH_OF_3_9 = 17  # the highest version of Fetch that 3.9 speaks; 3.8 speaks 16
_PROTOCOL = (3, 4, 0)
_JBOD_PROTOCOL = (3, 7, 2)
_NEWEST = 99  # the IV that a version without one means
_FIRST_LEVELS = {3: 4, 4: 8, 5: 9, 6: 12, 7: 15, 8: 20, 9: 21}
"""The level of the feature metadata.version that 3.3-IV0, 3.4-IV0 and so on are."""
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.\d+)*(?:-IV(\d+))?")


def check_release(findings: Findings) -> Line:
    """Check that every broker runs 3.9, by the requests that it speaks."""
    if isinstance(findings.brokers, NotRead):
        return not_looked_at(RELEASE, findings.brokers)
    versions = {broker.id: broker.fetch_version for broker in findings.brokers.brokers}
    old = {b: f"Fetch version {v}" for b, v in versions.items() if isinstance(v, int) and v < _FETCH_OF_3_9}
    if old:
        return failed(
            RELEASE, f"older than 3.9: {each(old)}", "upgrade these brokers to 3.9, the last bridge to KRaft"
        )
    if unread := first_unread(*versions.values()):
        return not_looked_at(RELEASE, unread)
    return ok(RELEASE, f"3.9: brokers {listed(versions)}")


def check_protocol(findings: Findings) -> Line:
    """Check that `inter.broker.protocol.version` is 3.4 or later; 3.7-IV2 where a broker has several log
    directories."""
    if isinstance(findings.configs, NotRead):
        return not_looked_at(PROTOCOL, findings.configs)
    old: dict[int, str] = {}
    for broker, configs in findings.configs.items():
        if "inter.broker.protocol.version" not in configs:
            if "process.roles" in configs:
                continue  # a KRaft broker has a metadata.version instead
            return not_looked_at(PROTOCOL, NotRead(f"broker {broker} doesn't tell it", "ask as a super user"))
        text = configs["inter.broker.protocol.version"]
        is_jbod = len([name for name in configs.get("log.dirs", "").split(",") if name.strip()]) > 1
        needed = _JBOD_PROTOCOL if is_jbod else _PROTOCOL
        if _protocol(text) < needed:
            old[broker] = f"{text}, needs {'3.7-IV2 (several log directories)' if is_jbod else '3.4'}"
    if old:
        return failed(
            PROTOCOL, each(old), "set inter.broker.protocol.version=3.9 on these brokers and restart them"
        )
    return ok(
        PROTOCOL, f"3.4 or later, several log directories have 3.7-IV2: {len(findings.configs)} brokers"
    )


def _protocol(text: str) -> tuple[int, int, int]:
    """Return a protocol version as numbers: (3, 7, 2) for 3.7-IV2, the newest of 3.7 for 3.7, (0, 0, 0) for other
    text."""
    match = _VERSION.fullmatch(text)
    if match is None:
        return 0, 0, 0
    return int(match[1]), int(match[2]), int(match[3] or _NEWEST)


def check_version(findings: Findings) -> Line:
    """Check that `inter.broker.protocol.version` is the controllers' metadata.version: they refuse other brokers."""
    sides = findings.sides
    if isinstance(sides, NotRead):
        return not_looked_at(VERSION, sides)
    controllers, brokers = sides
    levels = {c.file: c.metadata_version for c in controllers}
    known = {file: level for file, level in levels.items() if isinstance(level, int)}
    name = "inter.broker.protocol.version"
    protocols = {broker: configs[name] for broker, configs in brokers.items() if name in configs}
    for file, level in known.items():
        if other := {b: text for b, text in protocols.items() if level_of(text) != level}:
            return failed(
                VERSION,
                f"{level_name(level)} in the storage of {file}, {name} of {each(other)}",
                f"set {name}={level_name(level)} on these brokers and restart them, or format "
                "the controllers' storage anew with --release-version of the brokers' version",
            )
    if unread := first_unread(*levels.values()):
        return not_looked_at(VERSION, unread)
    return ok(VERSION, f"{listed({level_name(level) for level in known.values()})}, as the brokers' protocol")


def level_of(text: str) -> int | None:
    """Return the level of metadata.version that a protocol version means; None where it is none of 3.3 to 3.9."""
    major, minor, number = _protocol(text)
    first = _FIRST_LEVELS.get(minor) if major == 3 else None
    last = _FIRST_LEVELS.get(minor + 1, _FIRST_LEVELS[9] + 1) - 1
    return None if first is None else min(first + number, last)


def level_name(level: int) -> str:
    """Return the name of a level of metadata.version, such as 3.7-IV2."""
    minor = max((m for m, first in _FIRST_LEVELS.items() if first <= level), default=None)
    return str(level) if minor is None else f"3.{minor}-IV{level - _FIRST_LEVELS[minor]}"


def check_ids(findings: Findings) -> Line:
    """Check that every broker has its id in its properties file: KRaft generates none."""
    if isinstance(findings.configs, NotRead):
        return not_looked_at(IDS, findings.configs)
    generated = [broker for broker, configs in findings.configs.items() if not _has_static_id(configs)]
    if generated:
        return failed(
            IDS,
            f"the id is generated: broker {listed(generated)}",
            "write broker.id=ID, with the id that it has, and broker.id.generation.enable=false into the properties of "
            "each, and restart it",
        )
    return ok(IDS, f"broker.id is set: {listed(findings.configs)}")


def _has_static_id(configs: Mapping[str, str]) -> bool:
    """Return whether a broker's properties have its id; of a broker that runs as KRaft, its node.id."""
    return any(configs.get(name, "").isdecimal() for name in ("broker.id", "node.id"))


def check_alive(findings: Findings) -> Line:
    """Check that every broker that replicas or configs name is alive: the migration waits for each."""
    brokers, zookeeper = findings.brokers, findings.zookeeper
    if isinstance(brokers, NotRead) and isinstance(zookeeper, NotRead):
        return not_looked_at(ALIVE, zookeeper)
    known: set[int] = set()
    alive: set[int] = set()
    if not isinstance(brokers, NotRead):
        known |= brokers.assigned
        alive |= {broker.id for broker in brokers.brokers}
    if not isinstance(zookeeper, NotRead):
        known |= zookeeper.known
        alive |= zookeeper.alive
    if dead := known - alive:
        return failed(
            ALIVE,
            f"not running: broker {listed(dead)}",
            "start it, or move its replicas away and delete its configs: the migration waits for it",
        )
    if unread := first_unread(brokers, zookeeper):
        return not_looked_at(ALIVE, unread)
    return ok(ALIVE, f"brokers {listed(alive)}")
