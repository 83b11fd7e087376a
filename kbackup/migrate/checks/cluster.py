"""Checks of the cluster as it runs: its brokers, its partitions, and what ZooKeeper holds."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kbackup.migrate.checks.base import MIGRATION_FLAG, Check, each_broker, is_true, listed
from kbackup.migrate.states import NotRead, ProblemError, UnreadError, need, need_all
from kbackup.migrate.znodes import MigrationFindings
from kbackup.migrate.zookeeper.unreadable import MIGRATION
from kbackup.util.text import join_names, words_of

_ZNODES_SHOWN = 100  # each is to be mended, so each is named

_FETCH_OF_3_9 = 17  # the highest version of Fetch that 3.9 speaks; 3.8 speaks 16
_INTER_BROKER = "inter.broker.protocol.version"
_PROTOCOL = (3, 4, 0)
_JBOD_PROTOCOL = (3, 7, 2)
_NEWEST = 99  # the IV that a version without one means
_FIRST_LEVELS = {3: 4, 4: 8, 5: 9, 6: 12, 7: 15, 8: 20, 9: 21}
"""The level of the feature metadata.version that 3.3-IV0, 3.4-IV0 and so on are."""
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.\d+)*(?:-IV(\d+))?")


def cluster_id(findings: MigrationFindings) -> str:
    """Brokers, ZooKeeper and the controllers' formatted storage have the same cluster id."""
    ids: dict[str, str | NotRead] = {}
    brokers = findings.brokers
    ids["brokers"] = brokers if isinstance(brokers, NotRead) else brokers.cluster_id
    zookeeper = findings.zookeeper
    ids["ZooKeeper"] = zookeeper if isinstance(zookeeper, NotRead) else zookeeper.cluster_id
    if isinstance(findings.controllers, NotRead):
        ids["controllers"] = findings.controllers
    else:
        for controller in findings.controllers:
            ids[controller.file] = controller.cluster_id

    # Two sides that differ are a problem even where a third one was not read.
    known = {side: found for side, found in ids.items() if isinstance(found, str)}
    distinct = set(known.values())
    if len(distinct) > 1:
        sides = ", ".join(f"{side} {found}" for side, found in known.items())
        raise ProblemError(
            f"not the same: {sides}",
            "format the controllers' storage anew with ZooKeeper's id: kafka-storage.sh format -t ID",
        )
    need_all(*ids.values())
    return f"{distinct.pop()} on every side"


def alive(findings: MigrationFindings) -> str:
    """Every broker that replicas or configs name is alive: the migration waits for each."""
    brokers, zookeeper = findings.brokers, findings.zookeeper
    if isinstance(brokers, NotRead) and isinstance(zookeeper, NotRead):
        raise UnreadError(zookeeper)
    # Both sides count: a broker without replicas is known to ZooKeeper alone, by its configs.
    known = set[int]()
    running = set[int]()
    if not isinstance(brokers, NotRead):
        known |= brokers.assigned
        running |= {broker.id for broker in brokers.brokers}
    if not isinstance(zookeeper, NotRead):
        known |= zookeeper.known
        running |= zookeeper.alive
    dead = known - running
    if dead:
        raise ProblemError(
            f"not running: broker {listed(dead)}",
            "start it, or move its replicas away and delete its configs: the migration waits for it",
        )
    need_all(brokers, zookeeper)
    return f"brokers {listed(running)}"


def release(findings: MigrationFindings) -> str:
    """Every broker runs 3.9, by the requests that it speaks: no request tells the release itself."""
    versions = {broker.id: broker.fetch_version for broker in need(findings.brokers).brokers}
    old: dict[int, str] = {}
    for broker, version in versions.items():
        if isinstance(version, int) and version < _FETCH_OF_3_9:
            old[broker] = f"Fetch version {version}"
    if old:
        brokers = each_broker(old)
        raise ProblemError(f"older than 3.9: {brokers}", "upgrade these brokers to 3.9, the last bridge to KRaft")
    need_all(*versions.values())
    return f"3.9: brokers {listed(versions)}"


def protocol(findings: MigrationFindings) -> str:
    """`inter.broker.protocol.version` is 3.4 or later; 3.7-IV2 where a broker has several log directories."""
    brokers = need(findings.configs)
    old: dict[int, str] = {}
    for broker, configs in brokers.items():
        if _INTER_BROKER not in configs:
            if "process.roles" in configs:
                continue  # a KRaft broker has a metadata.version instead
            # Every broker with ZooKeeper has a value, if only the default: this one is not shown to our user.
            raise UnreadError(NotRead(f"broker {broker} doesn't tell it", "ask as a super user"))
        text = configs[_INTER_BROKER]
        directories = words_of(configs.get("log.dirs", ""))
        if len(directories) > 1:
            least, words = _JBOD_PROTOCOL, "3.7-IV2 (several log directories)"
        else:
            least, words = _PROTOCOL, "3.4"
        if _numbers(text) < least:
            old[broker] = f"{text}, needs {words}"
    if old:
        raise ProblemError(each_broker(old), f"set {_INTER_BROKER}=3.9 on these brokers and restart them")
    return f"3.4 or later, several log directories have 3.7-IV2: {len(brokers)} brokers"


def _numbers(text: str) -> tuple[int, int, int]:
    """Return a protocol version as numbers: (3, 7, 2) for 3.7-IV2, the newest of 3.7 for 3.7, (0, 0, 0) for other
    text."""
    match = _VERSION.fullmatch(text)
    if match is None:
        return (0, 0, 0)
    major, minor, number = match.groups()
    return (int(major), int(minor), int(number or _NEWEST))


def metadata_version(findings: MigrationFindings) -> str:
    """`inter.broker.protocol.version` is the controllers' metadata.version: they refuse other brokers."""
    controllers, brokers = findings.sides
    protocols = {broker: configs[_INTER_BROKER] for broker, configs in brokers.items() if _INTER_BROKER in configs}
    names = set[str]()
    for controller in controllers:
        level = controller.metadata_version
        if not isinstance(level, int):
            continue
        name = level_name(level)
        names.add(name)
        others = {broker: text for broker, text in protocols.items() if level_of(text) != level}
        if others:
            raise ProblemError(
                f"{name} in the storage of {controller.file}, {_INTER_BROKER} of {each_broker(others)}",
                f"set {_INTER_BROKER}={name} on these brokers and restart them, or format "
                "the controllers' storage anew with --release-version of the brokers' version",
            )
    need_all(*(controller.metadata_version for controller in controllers))
    return f"{listed(names)}, as the brokers' protocol"


def level_of(text: str) -> int | None:
    """Return the level of metadata.version that a protocol version means; None if it is none of 3.3 to 3.9."""
    major, minor, number = _numbers(text)
    if major != 3 or minor not in _FIRST_LEVELS:
        return None
    # A version without an IV means the last level before the next minor version begins.
    next_first = _FIRST_LEVELS.get(minor + 1, _FIRST_LEVELS[9] + 1)
    return min(_FIRST_LEVELS[minor] + number, next_first - 1)


def level_name(level: int) -> str:
    """Return the name of a level of metadata.version, such as 3.7-IV2."""
    begun = [minor for minor, first in _FIRST_LEVELS.items() if first <= level]
    if not begun:
        return str(level)
    minor = max(begun)
    return f"3.{minor}-IV{level - _FIRST_LEVELS[minor]}"


def static_ids(findings: MigrationFindings) -> str:
    """Every broker has its id in its properties file (one that runs as KRaft its node.id): KRaft generates none."""
    brokers = need(findings.configs)
    generated = [broker for broker, configs in brokers.items() if not _has_static_id(configs)]
    if generated:
        raise ProblemError(
            f"the id is generated: broker {listed(generated)}",
            "write broker.id=ID, with the id that it has, and broker.id.generation.enable=false into the properties of "
            "each, and restart it",
        )
    return f"broker.id is set: {listed(brokers)}"


def _has_static_id(configs: Mapping[str, str]) -> bool:
    # A generated id leaves broker.id at -1, which is no decimal number.
    return configs.get("broker.id", "").isdecimal() or configs.get("node.id", "").isdecimal()


def online(findings: MigrationFindings) -> str:
    """Every partition has a leader."""
    offline = need(findings.brokers).offline
    if offline:
        raise ProblemError(
            f"{len(offline)} without a leader: {listed(offline)}", "start the brokers that hold them, then run it again"
        )
    return "each has a leader"


def deletions(findings: MigrationFindings) -> str:
    """No topic waits for its deletion, by ZooKeeper: brokers don't report this."""
    waiting = need(findings.zookeeper).deletions
    if waiting:
        raise ProblemError(
            f"{len(waiting)} wait for deletion: {listed(waiting)}",
            "start every broker that holds a replica of them, and wait until /admin/delete_topics is empty",
        )
    return "none waits for its deletion"


def reassignments(findings: MigrationFindings) -> str:
    """No partition moves to other brokers, by ZooKeeper or else by the brokers."""
    zookeeper, brokers = findings.zookeeper, findings.brokers
    if isinstance(zookeeper, NotRead) and not isinstance(brokers, NotRead):
        moving = need(brokers.reassigning)
    else:
        moving = need(zookeeper).reassigning
    if moving:
        raise ProblemError(
            f"{len(moving)} running: {listed(moving)}",
            "wait until it is done, or cancel it: kafka-reassign-partitions.sh --cancel",
        )
    return "none is running"


def readable_znodes(findings: MigrationFindings) -> str:
    """Kafka's migration can read every znode that it copies: it stops at the first one that it can't."""
    unreadable = need(need(findings.zookeeper).unreadable)
    if not unreadable:
        return "each can be read"
    hint = "mend or delete them by ZooKeeper's own shell, when nothing needs what they hold"
    if any(text.startswith(f"{MIGRATION} ") for text in unreadable):
        hint += f"; delete {MIGRATION} before the controllers start, unless a migration has begun"
    names = join_names(unreadable, _ZNODES_SHOWN)
    raise ProblemError(f"{len(unreadable)} that Kafka's migration can't read: {names}", hint)


def brokers_enabled(findings: MigrationFindings) -> str:
    """On each broker; on none as long as the controllers don't run."""
    brokers = need(findings.configs)
    off: list[int] = []
    for broker, configs in brokers.items():
        is_kraft = bool(configs.get("process.roles"))
        if not is_kraft and not is_true(configs, MIGRATION_FLAG):
            off.append(broker)
    if off and len(off) == len(brokers):
        raise ProblemError(
            "no broker has it yet",
            f"set {MIGRATION_FLAG}=true and restart the brokers when the controllers run: this starts the migration",
            is_warning=True,
        )
    if off:
        raise ProblemError(
            f"some brokers have it, broker {listed(off)} not",
            f"set {MIGRATION_FLAG}=true on each of them and restart it: the migration waits for every broker",
        )
    return f"{MIGRATION_FLAG}=true"


CHECKS = (
    Check("cluster id", cluster_id),
    Check("brokers: alive", alive),
    Check("brokers: release", release),
    Check("brokers: inter.broker.protocol.version", protocol),
    Check("brokers: the controllers' metadata.version", metadata_version),
    Check("brokers: static ids", static_ids),
    Check("partitions: online", online),
    Check("topics: deletions", deletions),
    Check("partitions: reassignments", reassignments),
    Check("znodes", readable_znodes),
)
"""In the order of their lines. `brokers_enabled` stands among those of the controllers, which must run before it."""
