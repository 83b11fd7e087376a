"""Check whether a cluster is ready for its migration from ZooKeeper to KRaft."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kbackup.errors import EXIT_LOSS, EXIT_OK, MismatchError
from kbackup.jobs.migrate.states import NotRead, first_unread
from kbackup.jobs.migrate.znodes import Controller, MigrationFindings
from kbackup.metadata.encoder import can_decrypt
from kbackup.util.text import join_names

# One line of the preflight, and the outcome of all lines.


Status = Literal["ok", "warning", "failed", "not looked at"]
Verdict = Literal["ready", "ready with warnings", "not ready"]

_NAMES_SHOWN = 5  # that a line shows
_EXIT_CODES: dict[Verdict, int] = {
    "ready": EXIT_OK,
    "ready with warnings": EXIT_LOSS,
    "not ready": MismatchError.exit_code,
}


@dataclass(frozen=True, slots=True)
class Line:
    """The outcome of one check. `hint` is the action for the user, and is '' if `status` is ok."""

    name: str
    status: Status
    detail: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """`exit_code` is 0 if the cluster is ready, 3 with warnings, 10 where it is not ready."""

    verdict: Verdict
    exit_code: int
    lines: tuple[Line, ...]

    @classmethod
    def of(cls, lines: tuple[Line, ...]) -> PreflightReport:
        statuses = {line.status for line in lines}
        verdict: Verdict = (
            "not ready" if "failed" in statuses else "ready" if statuses <= {"ok"} else "ready with warnings"
        )
        return cls(verdict, _EXIT_CODES[verdict], lines)


def ok(name: str, detail: str) -> Line:
    return Line(name, "ok", detail)


def failed(name: str, detail: str, hint: str) -> Line:
    return Line(name, "failed", detail, hint)


def warning(name: str, detail: str, hint: str) -> Line:
    return Line(name, "warning", detail, hint)


def not_looked_at(name: str, unread: NotRead) -> Line:
    return Line(name, "not looked at", f"not looked at: {unread.why}", unread.hint)


def listed(names: Iterable[object]) -> str:
    """Sorted names, shortened: '1, 2 and 7 more'."""
    return join_names([str(name) for name in sorted(names, key=_by_number)], _NAMES_SHOWN)


def _by_number(name: object) -> tuple[int, str]:
    return (name, "") if isinstance(name, int) else (0, str(name))


def each(values: Mapping[int, str]) -> str:
    """'broker 1: 3.3, broker 2: 3.2', shortened."""
    return join_names([f"broker {broker}: {text}" for broker, text in sorted(values.items())], _NAMES_SHOWN)


# Checks of the controllers' properties files: dedicated, with the migration enabled, beside the same ZooKeeper.


DEDICATED = "controllers: dedicated"
ENABLED = "controllers: migration enabled"
BROKERS_ENABLED = "brokers: migration enabled"
ZOOKEEPER = "controllers: zookeeper.connect"

FLAG = "zookeeper.metadata.migration.enable"


def check_dedicated(findings: MigrationFindings) -> Line:
    """Check that each controller is nothing but a controller, under an id that no broker and no other controller
    has."""
    controllers, brokers = findings.controllers, findings.brokers
    if isinstance(controllers, NotRead):
        return not_looked_at(DEDICATED, controllers)
    mixed = [c.file for c in controllers if _words(c.properties.get("process.roles", "")) != ["controller"]]
    if mixed:
        return failed(
            DEDICATED,
            f"process.roles is not controller alone: {listed(mixed)}",
            "set process.roles=controller: a migration needs controllers of their own",
        )
    ids = [c.properties.get("node.id", c.properties.get("broker.id", "")).strip() for c in controllers]
    if wrong := [c.file for c, node in zip(controllers, ids, strict=True) if not node.isdecimal()]:
        return failed(DEDICATED, f"no node.id: {listed(wrong)}", "set node.id to a number that no node has")
    if twice := [node for node, count in Counter(ids).items() if count > 1]:
        return failed(DEDICATED, f"node.id {listed(twice)} twice", "give each controller a node.id of its own")
    if isinstance(brokers, NotRead):
        return not_looked_at(DEDICATED, brokers)
    taken = {str(b.id) for b in brokers.brokers} | {str(b) for b in brokers.assigned}
    if clash := taken & set(ids):
        return failed(DEDICATED, f"node.id {listed(clash)} is a broker's id", "give the controller another node.id")
    return ok(DEDICATED, f"node ids {', '.join(sorted(ids))}")


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def is_enabled(properties: Mapping[str, str]) -> bool:
    return properties.get(FLAG, "").strip().lower() == "true"


def check_enabled(findings: MigrationFindings) -> Line:
    """Check that `zookeeper.metadata.migration.enable` is true in each controller's properties."""
    if isinstance(findings.controllers, NotRead):
        return not_looked_at(ENABLED, findings.controllers)
    if off := [c.file for c in findings.controllers if not is_enabled(c.properties)]:
        return failed(
            ENABLED,
            f"{FLAG} is not true: {listed(off)}",
            f"set {FLAG}=true before the first start: a quorum that began without it never migrates",
        )
    return ok(ENABLED, f"{FLAG}=true")


def check_brokers_enabled(findings: MigrationFindings) -> Line:
    """Check that `zookeeper.metadata.migration.enable` is true on each broker; on none as long as the controllers don't
    run."""
    if isinstance(findings.configs, NotRead):
        return not_looked_at(BROKERS_ENABLED, findings.configs)
    zookeeper_brokers = {b: c for b, c in findings.configs.items() if not c.get("process.roles")}
    off = [broker for broker, configs in zookeeper_brokers.items() if not is_enabled(configs)]
    if not off:
        return ok(BROKERS_ENABLED, f"{FLAG}=true")
    if len(off) == len(findings.configs):
        return warning(
            BROKERS_ENABLED,
            "no broker has it yet",
            f"set {FLAG}=true and restart the brokers when the controllers run: this starts the migration",
        )
    return failed(
        BROKERS_ENABLED,
        f"some brokers have it, broker {listed(off)} not",
        f"set {FLAG}=true on each of them and restart it: the migration waits for every broker",
    )


def check_zookeeper(findings: MigrationFindings) -> Line:
    """Check that the controllers use the ZooKeeper of the brokers: hosts that brokers name, below the same chroot."""
    if isinstance(findings.controllers, NotRead):
        return not_looked_at(ZOOKEEPER, findings.controllers)
    addresses = {c.file: c.properties.get("zookeeper.connect", "").strip() for c in findings.controllers}
    if unset := [file for file, address in addresses.items() if not address]:
        return failed(
            ZOOKEEPER, f"not set: {listed(unset)}", "set zookeeper.connect to the value that the brokers have"
        )
    if isinstance(findings.configs, NotRead):
        return not_looked_at(ZOOKEEPER, findings.configs)
    of_brokers = [c["zookeeper.connect"] for c in findings.configs.values() if c.get("zookeeper.connect")]
    if not of_brokers:
        return not_looked_at(ZOOKEEPER, NotRead("no broker tells its own", "ask as a super user"))
    hint = "set zookeeper.connect to the value that the brokers have, chroot included"
    hosts, chroots = {h for text in of_brokers for h in _hosts(text)}, set(map(_chroot, of_brokers))
    if other := [file for file, address in addresses.items() if _chroot(address) not in chroots]:
        return failed(ZOOKEEPER, f"another chroot than the brokers' '{listed(chroots)}': {listed(other)}", hint)
    if other := [file for file, address in addresses.items() if not _hosts(address) <= hosts]:
        return failed(ZOOKEEPER, f"other hosts than the brokers' {listed(hosts)}: {listed(other)}", hint)
    return ok(ZOOKEEPER, "the same hosts and chroot as the brokers'")


def _chroot(connect: str) -> str:
    """Return the chroot of a `zookeeper.connect`: '' or such as /kafka."""
    _, slash, path = connect.partition("/")
    return (slash + path).rstrip("/")


def _hosts(connect: str) -> set[str]:
    """Return the servers of a `zookeeper.connect`, each as host:port."""
    servers = (server.strip().lower() for server in connect.partition("/")[0].split(","))
    return {server if ":" in server else f"{server}:2181" for server in servers if server}


def storage_ids(controllers: tuple[Controller, ...]) -> dict[str, str | NotRead]:
    """Return the cluster id of each controller's formatted storage."""
    return {controller.file: controller.cluster_id for controller in controllers}


# Checks of the brokers: release, protocol, ids, and that all are alive.


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


def check_release(findings: MigrationFindings) -> Line:
    """Check that every broker runs 3.9, by the requests that it speaks."""
    if isinstance(findings.brokers, NotRead):
        return not_looked_at(RELEASE, findings.brokers)
    versions = {broker.id: broker.fetch_version for broker in findings.brokers.brokers}
    old = {b: f"Fetch version {v}" for b, v in versions.items() if isinstance(v, int) and v < _FETCH_OF_3_9}
    if old:
        return failed(RELEASE, f"older than 3.9: {each(old)}", "upgrade these brokers to 3.9, the last bridge to KRaft")
    if unread := first_unread(*versions.values()):
        return not_looked_at(RELEASE, unread)
    return ok(RELEASE, f"3.9: brokers {listed(versions)}")


def check_protocol(findings: MigrationFindings) -> Line:
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
        return failed(PROTOCOL, each(old), "set inter.broker.protocol.version=3.9 on these brokers and restart them")
    return ok(PROTOCOL, f"3.4 or later, several log directories have 3.7-IV2: {len(findings.configs)} brokers")


def _protocol(text: str) -> tuple[int, int, int]:
    """Return a protocol version as numbers: (3, 7, 2) for 3.7-IV2, the newest of 3.7 for 3.7, (0, 0, 0) for other
    text."""
    match = _VERSION.fullmatch(text)
    if match is None:
        return 0, 0, 0
    return int(match[1]), int(match[2]), int(match[3] or _NEWEST)


def check_version(findings: MigrationFindings) -> Line:
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
    """Return the level of metadata.version that a protocol version means; None if it is none of 3.3 to 3.9."""
    major, minor, number = _protocol(text)
    first = _FIRST_LEVELS.get(minor) if major == 3 else None
    last = _FIRST_LEVELS.get(minor + 1, _FIRST_LEVELS[9] + 1) - 1
    return None if first is None else min(first + number, last)


def level_name(level: int) -> str:
    """Return the name of a level of metadata.version, such as 3.7-IV2."""
    minor = max((m for m, first in _FIRST_LEVELS.items() if first <= level), default=None)
    return str(level) if minor is None else f"3.{minor}-IV{level - _FIRST_LEVELS[minor]}"


def check_ids(findings: MigrationFindings) -> Line:
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


def check_alive(findings: MigrationFindings) -> Line:
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


# The checks of the cluster id and of the archive.


CLUSTER_ID = "cluster id"
ARCHIVE = "archive: whole metadata"

_MAX_AGE = 3600.0  # s
_CLOCK_SKEW = 60.0  # s that the archive's time may lie ahead of this machine's


def check_cluster_id(findings: MigrationFindings) -> Line:
    """Check that brokers, ZooKeeper and the controllers' formatted storage have the same cluster id."""
    brokers, zookeeper, controllers = findings.brokers, findings.zookeeper, findings.controllers
    ids: dict[str, str | NotRead] = {
        "brokers": brokers if isinstance(brokers, NotRead) else brokers.cluster_id,
        "ZooKeeper": zookeeper if isinstance(zookeeper, NotRead) else zookeeper.cluster_id,
    }
    ids |= {"controllers": controllers} if isinstance(controllers, NotRead) else storage_ids(controllers)
    read = {side: cluster_id for side, cluster_id in ids.items() if isinstance(cluster_id, str)}
    if len(set(read.values())) > 1:
        sides = ", ".join(f"{side} {cluster_id}" for side, cluster_id in read.items())
        return failed(
            CLUSTER_ID,
            f"not the same: {sides}",
            "format the controllers' storage anew with ZooKeeper's id: kafka-storage.sh format -t ID",
        )
    if unread := first_unread(*ids.values()):
        return not_looked_at(CLUSTER_ID, unread)
    return ok(CLUSTER_ID, f"{next(iter(read.values()))} on every side")


def check_archive(findings: MigrationFindings) -> Line:
    """Check that the archive holds the whole metadata of this cluster, not older than an hour."""
    archive = findings.archive
    if isinstance(archive, NotRead):
        return not_looked_at(ARCHIVE, archive)
    again = "run 'kbackup migrate archive'"
    if archive is None:
        return failed(ARCHIVE, "there is no restore point", again)
    name = f"restore point {archive.restore_point}"
    ids = {part.cluster_id for part in (findings.brokers, findings.zookeeper) if not isinstance(part, NotRead)}
    if ids and archive.cluster_id not in ids:
        return failed(ARCHIVE, f"{name} is of cluster {archive.cluster_id}", "name the archive of this cluster")
    if archive.missing:
        return failed(
            ARCHIVE,
            f"{name} lacks {listed(archive.missing)}",
            "name ZooKeeper in [source], use an encrypted archive, and run 'kbackup migrate archive'",
        )
    age = findings.now - archive.captured_at
    if age > _MAX_AGE:
        return failed(ARCHIVE, f"{name} is {age / 3600:.1f} hours old", again)
    if age < -_CLOCK_SKEW:
        return failed(ARCHIVE, f"{name} is {-age:.0f} s in the future", f"set the clocks, then {again}")
    return ok(ARCHIVE, f"{name}, {max(age, 0) / 60:.0f} minutes old")


# The check of listeners: brokers and controllers find each other, each listener with the same security protocol.


LISTENERS = "listeners: mapped"

_MAP = "listener.security.protocol.map"
_NAMES = "controller.listener.names"
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_SECURED = {"SSL", "SASL_PLAINTEXT", "SASL_SSL"}


def check_listeners(findings: MigrationFindings) -> Line:
    """Check that every listener that a node uses has a security protocol, and that the other side has the same."""
    if isinstance(findings.controllers, NotRead):
        return not_looked_at(LISTENERS, findings.controllers)
    for controller in findings.controllers:
        if problem := _controller_problem(controller.properties):
            return failed(LISTENERS, f"{controller.file}: {problem[0]}", problem[1])
    if isinstance(findings.configs, NotRead):
        return not_looked_at(LISTENERS, findings.configs)
    for broker, configs in sorted(findings.configs.items()):
        for controller in findings.controllers:
            if problem := _pair_problem(configs, controller.properties, controller.file):
                return failed(LISTENERS, f"broker {broker}: {problem[0]}", problem[1])
    return ok(LISTENERS, "brokers and controllers map each other's listeners")


def _controller_problem(properties: Mapping[str, str]) -> tuple[str, str] | None:
    """Return (what is wrong, hint) of a controller's own listeners."""
    protocols = protocols_of(properties)
    names = _upper_words(properties.get(_NAMES, ""))
    if not names:
        return f"{_NAMES} is not set", f"set {_NAMES} to the name of the controller's listener"
    listening = [word.partition("://")[0].upper() for word in _upper_words(properties.get("listeners", ""))]
    for name in names:
        if name not in listening:
            return f"{name} is not among listeners", f"add {name}://:PORT to listeners"
    for name in [*names, inter_broker_name(properties)]:
        if name not in protocols:
            return f"{name} has no security protocol", f"add {name}:PROTOCOL to {_MAP}"
    return None


def _pair_problem(broker: Mapping[str, str], controller: Mapping[str, str], file: str) -> tuple[str, str] | None:
    """Return (what is wrong, hint) between a broker and a controller."""
    of_broker, of_controller = protocols_of(broker), protocols_of(controller)
    if not broker.get("process.roles"):  # a controller sends requests to brokers in ZooKeeper mode
        name = inter_broker_name(broker)
        if inter_broker_name(controller) != name:
            return (
                f"its inter-broker listener is {name}, in {file} {inter_broker_name(controller)}",
                f"set inter.broker.listener.name={name} on the controllers, and map it",
            )
        if of_broker.get(name) != of_controller.get(name):
            return (
                f"{name} is {of_broker.get(name)}, in {file} {of_controller.get(name)}",
                f"map {name}:{of_broker.get(name)} in {_MAP} of the controllers",
            )
    for name in _upper_words(broker.get(_NAMES, "")):
        if name not in of_broker:
            return f"{name} has no security protocol", f"add {name}:PROTOCOL to {_MAP} of the broker"
        if name not in _upper_words(controller.get(_NAMES, "")):
            return f"{_NAMES} {name} is not in {file}", f"give brokers and controllers the same {_NAMES}"
        if of_broker[name] != of_controller.get(name):
            return (
                f"{name} is {of_broker[name]}, in {file} {of_controller.get(name)}",
                f"map {name} to the same security protocol on both sides",
            )
    return None


def inter_broker_name(properties: Mapping[str, str]) -> str:
    """Return the listener over which brokers talk to each other."""
    return (
        (
            properties.get("inter.broker.listener.name")
            or properties.get("security.inter.broker.protocol")
            or "PLAINTEXT"
        )
        .strip()
        .upper()
    )


def protocols_of(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the security protocol of each listener name. As Kafka does, a KRaft node without a map of its own has its
    controller listeners as PLAINTEXT, unless one of its listeners is secured."""
    default = {name: name for name in _PROTOCOLS}
    if text := properties.get(_MAP, "").strip():
        pairs = (word.partition(":") for word in _upper_words(text))
        mapped = {name.strip(): protocol.strip() for name, _, protocol in pairs}
        is_default = mapped == default
    else:
        mapped, is_default = default, True
    names = {*_upper_words(properties.get(_NAMES, ""))}
    listening = {word.partition("://")[0].upper() for word in _upper_words(properties.get("listeners", ""))}
    if is_default and properties.get("process.roles") and not _SECURED & (names | listening):
        return {**mapped, **dict.fromkeys(names - mapped.keys(), "PLAINTEXT")}
    return mapped


def _upper_words(text: str) -> list[str]:
    return [word.strip().upper() for word in text.split(",") if word.strip()]


# Checks of topics and partitions: nothing is offline, deleted or moved at the moment.


OFFLINE = "partitions: online"
DELETIONS = "topics: deletions"
REASSIGNMENTS = "partitions: reassignments"


def check_offline(findings: MigrationFindings) -> Line:
    """Check that every partition has a leader."""
    if isinstance(findings.brokers, NotRead):
        return not_looked_at(OFFLINE, findings.brokers)
    if offline := findings.brokers.offline:
        return failed(
            OFFLINE,
            f"{len(offline)} without a leader: {listed(offline)}",
            "start the brokers that hold them, then run it again",
        )
    return ok(OFFLINE, "each has a leader")


def check_deletions(findings: MigrationFindings) -> Line:
    """Check that no topic waits for its deletion, by ZooKeeper: brokers don't report this."""
    if isinstance(findings.zookeeper, NotRead):
        return not_looked_at(DELETIONS, findings.zookeeper)
    if deletions := findings.zookeeper.deletions:
        return failed(
            DELETIONS,
            f"{len(deletions)} wait for deletion: {listed(deletions)}",
            "start every broker that holds a replica of them, and wait until /admin/delete_topics is empty",
        )
    return ok(DELETIONS, "none waits for its deletion")


def check_reassignments(findings: MigrationFindings) -> Line:
    """Check that no partition moves to other brokers, by ZooKeeper or else by the brokers."""
    zookeeper, brokers = findings.zookeeper, findings.brokers
    moving: tuple[str, ...] | NotRead
    if not isinstance(zookeeper, NotRead):
        moving = zookeeper.reassigning
    elif not isinstance(brokers, NotRead):
        moving = brokers.reassigning
    else:
        moving = zookeeper
    if isinstance(moving, NotRead):
        return not_looked_at(REASSIGNMENTS, moving)
    if moving:
        return failed(
            REASSIGNMENTS,
            f"{len(moving)} running: {listed(moving)}",
            "wait until it is done, or cancel it: kafka-reassign-partitions.sh --cancel",
        )
    return ok(REASSIGNMENTS, "none is running")


# Checks of what controllers must share with the brokers before they rule them: rights, secrets, logins, addresses.


AUTHORIZER = "controllers: authorizer"
SUPER_USERS = "controllers: super.users"
ENCODER = "controllers: password.encoder.secret"
TOKENS = "controllers: delegation.token.secret.key"
ZNODE_ACLS = "controllers: zookeeper.set.acl"
LOGIN = "controllers: login to the brokers"
QUORUM = "controllers: quorum addresses"

_AUTHORIZER = "authorizer.class.name"
_SECRET = "password.encoder.secret"  # noqa: S105  # the name of a property
_TOKEN_KEYS = ("delegation.token.secret.key", "delegation.token.master.key")
_STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_OF_ZOOKEEPER = {"kafka.security.authorizer.AclAuthorizer", "kafka.security.auth.SimpleAclAuthorizer"}
_ANONYMOUS = "User:ANONYMOUS"
_USERNAME = re.compile(r"""\busername\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s;"']+))""")


def check_authorizer(findings: MigrationFindings) -> Line:
    """Check that controllers have an authorizer where brokers have one: else everybody may do everything there."""
    sides = findings.sides
    if isinstance(sides, NotRead):
        return not_looked_at(AUTHORIZER, sides)
    controllers, brokers = sides
    classes = {c.file: c.properties.get(_AUTHORIZER, "").strip() for c in controllers}
    if old := [file for file, name in classes.items() if name in _OF_ZOOKEEPER]:
        return failed(AUTHORIZER, f"keeps its ACLs in ZooKeeper: {listed(old)}", f"set {_AUTHORIZER}={_STANDARD}")
    guarded = [broker for broker, configs in brokers.items() if configs.get(_AUTHORIZER)]
    without = [file for file, name in classes.items() if not name]
    if guarded and without:
        return failed(
            AUTHORIZER,
            f"brokers {listed(guarded)} have one, not {listed(without)}",
            f"set {_AUTHORIZER}={_STANDARD}: without it every user may do everything by the controllers",
        )
    return ok(AUTHORIZER, f"on {len(classes)} controllers" if guarded else "neither side has one")


def check_super_users(findings: MigrationFindings) -> Line:
    """Check that the controllers' own principal is in their `super.users`: ACLs count only after the quorum has a
    leader, which needs their own requests."""
    if isinstance(findings.controllers, NotRead):
        return not_looked_at(SUPER_USERS, findings.controllers)
    unknown: list[str] = []
    for controller in findings.controllers:
        properties = controller.properties
        if not properties.get(_AUTHORIZER, "").strip():
            continue
        users = [user.strip() for user in properties.get("super.users", "").split(";") if user.strip()]
        principal = principal_of(properties)
        if principal is None and not set(users) - {_ANONYMOUS}:
            principal = "the principal by which controllers log in to each other"
        if principal is not None and principal not in users:
            return failed(
                SUPER_USERS,
                f"{controller.file} lacks {principal}, the controllers' own",
                "add to super.users the principals of controllers and brokers, with semicolons between",
            )
        if principal is None:
            unknown.append(controller.file)
    if unknown:
        why = f"the principal of the controllers can't be told from {listed(unknown)}"
        return not_looked_at(SUPER_USERS, NotRead(why, "compare it with super.users by hand"))
    return ok(SUPER_USERS, "the controllers' own principal is there, where they have an authorizer")


def principal_of(properties: Mapping[str, str]) -> str | None:
    """Return the principal by which controllers with these properties log in to each other; None if the file doesn't
    have it."""
    name = properties.get("controller.listener.names", "").partition(",")[0].strip()
    prefix = f"listener.name.{name.lower()}."

    def own(key: str) -> str:
        return (properties.get(prefix + key) or properties.get(key) or "").strip()

    protocol = protocols_of(properties).get(name.upper(), "")
    if own("principal.builder.class"):
        return None
    if protocol == "PLAINTEXT" or (protocol == "SSL" and own("ssl.client.auth") in ("", "none")):
        return _ANONYMOUS
    if protocol == "SSL":
        return None if own("ssl.principal.mapping.rules") not in ("", "DEFAULT") else _of_certificate(own)
    mechanism = properties.get("sasl.mechanism.controller.protocol", "GSSAPI").strip().lower()
    login = _USERNAME.search(properties.get(f"{prefix}{mechanism}.sasl.jaas.config", ""))
    user = next((text for text in login.groups() if text is not None), "") if login else ""
    return f"User:{user}" if user and "${" not in user else None


def _of_certificate(own: Callable[[str], str]) -> str | None:
    """Return the principal of the certificate in a keystore of the types PEM or PKCS12. None for other types, and for
    names with attributes that Java writes as numbers."""
    from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12
    from cryptography.x509 import load_pem_x509_certificate

    chain, password = own("ssl.keystore.certificate.chain").encode(), own("ssl.keystore.password").encode()
    try:
        data = chain or Path(own("ssl.keystore.location")).read_bytes()
        if b"-----BEGIN CERTIFICATE-----" in data:
            certificate = load_pem_x509_certificate(data[data.index(b"-----BEGIN CERTIFICATE-----") :])
        elif (entry := load_pkcs12(data, password or None).cert) is not None:
            certificate = entry.certificate
        else:
            return None
    except (OSError, ValueError):
        return None
    name = certificate.subject.rfc4514_string()
    return None if re.search(r"(^|[,+])[\d.]+=", name) else f"User:{name}"


def check_encoder(findings: MigrationFindings) -> Line:
    """Check that controllers have the secret by which brokers encrypt sensitive configs in ZooKeeper."""
    if isinstance(findings.controllers, NotRead):
        return not_looked_at(ENCODER, findings.controllers)
    configs, zookeeper = findings.configs, findings.zookeeper
    encrypted = {} if isinstance(zookeeper, NotRead) else zookeeper.encrypted
    having = [] if isinstance(configs, NotRead) else [b for b, c in configs.items() if _SECRET in c]
    secrets = {c.file: c.properties.get(_SECRET, "") for c in findings.controllers}
    hint = (
        f"set {_SECRET} to the value that the brokers have: without it sensitive configs stay encrypted for ever, and "
        "later ones get into ZooKeeper in plain text"
    )
    if (without := [file for file, secret in secrets.items() if not secret]) and (encrypted or having):
        has = f"encrypted: {listed(encrypted)}" if encrypted else f"brokers {listed(having)} have one"
        return failed(ENCODER, f"not set in {listed(without)}; {has}", hint)
    for file, secret in secrets.items():
        opaque = [n for n, v in encrypted.items() if "${" not in secret and can_decrypt(v, secret) is False]
        if opaque:
            return failed(ENCODER, f"the one in {file} doesn't decrypt {listed(opaque)}", hint)
    if unread := first_unread(zookeeper, configs):
        return not_looked_at(ENCODER, unread)
    return ok(ENCODER, f"{len(encrypted)} encrypted configs in ZooKeeper")


def check_tokens(findings: MigrationFindings) -> Line:
    """Check that controllers have the key of delegation tokens where brokers have it."""
    sides = findings.sides
    if isinstance(sides, NotRead):
        return not_looked_at(TOKENS, sides)
    controllers, brokers = sides
    having = [b for b, configs in brokers.items() if any(key in configs for key in _TOKEN_KEYS)]
    without = [c.file for c in controllers if not any(c.properties.get(key) for key in _TOKEN_KEYS)]
    if having and without:
        return failed(
            TOKENS,
            f"brokers {listed(having)} have it, not {listed(without)}",
            f"set {_TOKEN_KEYS[0]} to the value that the brokers have",
        )
    return ok(TOKENS, "on both sides" if having else "brokers have none")


def check_znode_acls(findings: MigrationFindings) -> Line:
    """Check that controllers protect znodes where brokers do."""
    sides = findings.sides
    if isinstance(sides, NotRead):
        return not_looked_at(ZNODE_ACLS, sides)
    controllers, brokers = sides
    protecting = [broker for broker, configs in brokers.items() if _protects(configs)]
    without = [c.file for c in controllers if not _protects(c.properties)]
    if protecting and without:
        return failed(
            ZNODE_ACLS,
            f"true on brokers {listed(protecting)}, not in {listed(without)}",
            "set zookeeper.set.acl=true: else everybody may change what the controllers write to ZooKeeper",
        )
    return ok(ZNODE_ACLS, "true on both sides" if protecting else "brokers don't protect znodes")


def _protects(properties: Mapping[str, str]) -> bool:
    return properties.get("zookeeper.set.acl", "").strip().lower() == "true"


def check_login(findings: MigrationFindings) -> Line:
    """Check that controllers can log in at the brokers' inter-broker listener where it wants SASL."""
    sides = findings.sides
    if isinstance(sides, NotRead):
        return not_looked_at(LOGIN, sides)
    unknown: NotRead | None = None
    for broker, configs in sorted(sides[1].items()):
        name = inter_broker_name(configs)
        if not protocols_of(configs).get(name, "").startswith("SASL_"):
            continue
        mechanism = _mechanism(configs)
        key = f"listener.name.{name.lower()}.{mechanism.lower()}.sasl.jaas.config"
        for controller in sides[0]:
            if (other := _mechanism(controller.properties)) != mechanism:
                return failed(
                    LOGIN,
                    f"broker {broker} wants {mechanism}, {controller.file} logs in by {other}",
                    f"set sasl.mechanism.inter.broker.protocol={mechanism} on the controllers",
                )
            if controller.properties.get(key):
                continue
            if key in configs:
                return failed(LOGIN, f"{controller.file} has no {key}", "copy it from the brokers")
            unknown = NotRead(
                f"neither broker {broker} nor {controller.file} has {key}",
                "set it on the controllers, or give their JVM a JAAS file with KafkaServer as the brokers' JVM has",
            )
    return not_looked_at(LOGIN, unknown) if unknown else ok(LOGIN, "the controllers have what it takes")


def _mechanism(properties: Mapping[str, str]) -> str:
    return properties.get("sasl.mechanism.inter.broker.protocol", "").strip() or "GSSAPI"


def check_quorum(findings: MigrationFindings) -> Line:
    """Check that somebody answers at every address of the quorum."""
    if isinstance(findings.quorum, NotRead):
        return not_looked_at(QUORUM, findings.quorum)
    if not findings.quorum:
        return failed(QUORUM, "none is set", "set controller.quorum.bootstrap.servers on controllers")
    if dead := [address for address, sign in findings.quorum.items() if sign != "answers"]:
        return failed(
            QUORUM,
            f"nobody answers at {listed(dead)}",
            "start the controllers, which wait for the brokers, or correct controller.quorum.bootstrap.servers",
        )
    return ok(QUORUM, f"{listed(findings.quorum)} answer")


# All checks of the preflight, in the order of their lines.


CHECKS: tuple[Callable[[MigrationFindings], Line], ...] = (
    check_cluster_id,
    check_alive,
    check_release,
    check_protocol,
    check_version,
    check_ids,
    check_offline,
    check_deletions,
    check_reassignments,
    check_dedicated,
    check_enabled,
    check_brokers_enabled,
    check_zookeeper,
    check_listeners,
    check_authorizer,
    check_super_users,
    check_encoder,
    check_tokens,
    check_znode_acls,
    check_login,
    check_quorum,
    check_archive,
)


def judge(findings: MigrationFindings) -> PreflightReport:
    """Run every check on the findings."""
    return PreflightReport.of(tuple(check(findings) for check in CHECKS))
