"""Check whether a cluster is ready for its migration from ZooKeeper to KRaft."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kbackup.errors import EXIT_LOSS, EXIT_OK, MismatchError
from kbackup.migrate.states import NotRead, ProblemError, UnreadError, need, need_all
from kbackup.migrate.znodes import MigrationFindings
from kbackup.migrate.zookeeper.unreadable import MIGRATION
from kbackup.util.text import join_names, words_of

Status = Literal["ok", "warning", "failed", "not looked at"]
Verdict = Literal["ready", "ready with warnings", "not ready"]

_NAMES_SHOWN = 5  # that a line shows
_ZNODES_SHOWN = 100  # each is to be mended, so each is named
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


Check = Callable[[MigrationFindings], str]
"""Returns the detail of an ok line; `ProblemError` if it is not, `UnreadError` for a source that was not read."""

_CHECKS: dict[str, Check] = {}
"""By the name of the line, in the order of the lines."""


def _check(name: str) -> Callable[[Check], Check]:
    return lambda function: _CHECKS.setdefault(name, function)


def judge(findings: MigrationFindings) -> PreflightReport:
    """Run every check on the findings."""
    lines = tuple(_line(name, check, findings) for name, check in _CHECKS.items())
    statuses = {line.status for line in lines}
    verdict: Verdict = "not ready" if "failed" in statuses else "ready" if statuses <= {"ok"} else "ready with warnings"
    return PreflightReport(verdict, _EXIT_CODES[verdict], lines)


def _line(name: str, check: Check, findings: MigrationFindings) -> Line:
    try:
        return Line(name, "ok", check(findings))
    except ProblemError as problem:
        return Line(name, "warning" if problem.is_warning else "failed", problem.detail, problem.hint)
    except UnreadError as error:
        return Line(name, "not looked at", f"not looked at: {error.unread.why}", error.unread.hint)


def _listed(names: Iterable[object]) -> str:
    """Sorted names, shortened: '1, 2 and 7 more'."""
    by_number = sorted(names, key=lambda name: (name, "") if isinstance(name, int) else (0, str(name)))
    return join_names(list(map(str, by_number)), _NAMES_SHOWN)


def _each(values: Mapping[int, str]) -> str:
    """'broker 1: 3.3, broker 2: 3.2', shortened."""
    return join_names([f"broker {broker}: {text}" for broker, text in sorted(values.items())], _NAMES_SHOWN)


def is_true(properties: Mapping[str, str], name: str) -> bool:
    return properties.get(name, "").strip().lower() == "true"


# The cluster, its brokers and its partitions.


_FETCH_OF_3_9 = 17  # the highest version of Fetch that 3.9 speaks; 3.8 speaks 16
_INTER_BROKER = "inter.broker.protocol.version"
_PROTOCOL = (3, 4, 0)
_JBOD_PROTOCOL = (3, 7, 2)
_NEWEST = 99  # the IV that a version without one means
_FIRST_LEVELS = {3: 4, 4: 8, 5: 9, 6: 12, 7: 15, 8: 20, 9: 21}
"""The level of the feature metadata.version that 3.3-IV0, 3.4-IV0 and so on are."""
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.\d+)*(?:-IV(\d+))?")


@_check("cluster id")
def _cluster_id(findings: MigrationFindings) -> str:
    """Brokers, ZooKeeper and the controllers' formatted storage have the same cluster id."""
    brokers, zookeeper, controllers = findings.brokers, findings.zookeeper, findings.controllers
    ids: dict[str, str | NotRead] = {
        "brokers": brokers if isinstance(brokers, NotRead) else brokers.cluster_id,
        "ZooKeeper": zookeeper if isinstance(zookeeper, NotRead) else zookeeper.cluster_id,
    }
    if isinstance(controllers, NotRead):
        ids["controllers"] = controllers
    else:
        ids |= {controller.file: controller.cluster_id for controller in controllers}
    read = {side: cluster_id for side, cluster_id in ids.items() if isinstance(cluster_id, str)}
    if len(set(read.values())) > 1:
        sides = ", ".join(f"{side} {cluster_id}" for side, cluster_id in read.items())
        raise ProblemError(
            f"not the same: {sides}",
            "format the controllers' storage anew with ZooKeeper's id: kafka-storage.sh format -t ID",
        )
    need_all(*ids.values())
    return f"{next(iter(read.values()))} on every side"


@_check("brokers: alive")
def _alive(findings: MigrationFindings) -> str:
    """Every broker that replicas or configs name is alive: the migration waits for each."""
    brokers, zookeeper = findings.brokers, findings.zookeeper
    known: set[int] = set()
    alive: set[int] = set()
    if not isinstance(brokers, NotRead):
        known |= brokers.assigned
        alive |= {broker.id for broker in brokers.brokers}
    if not isinstance(zookeeper, NotRead):
        known |= zookeeper.known
        alive |= zookeeper.alive
    elif isinstance(brokers, NotRead):
        raise UnreadError(zookeeper)
    if dead := known - alive:
        raise ProblemError(
            f"not running: broker {_listed(dead)}",
            "start it, or move its replicas away and delete its configs: the migration waits for it",
        )
    need_all(brokers, zookeeper)
    return f"brokers {_listed(alive)}"


@_check("brokers: release")
def _release(findings: MigrationFindings) -> str:
    """Every broker runs 3.9, by the requests that it speaks."""
    versions = {broker.id: broker.fetch_version for broker in need(findings.brokers).brokers}
    old = {b: f"Fetch version {v}" for b, v in versions.items() if isinstance(v, int) and v < _FETCH_OF_3_9}
    if old:
        raise ProblemError(f"older than 3.9: {_each(old)}", "upgrade these brokers to 3.9, the last bridge to KRaft")
    need_all(*versions.values())
    return f"3.9: brokers {_listed(versions)}"


@_check("brokers: inter.broker.protocol.version")
def _protocol(findings: MigrationFindings) -> str:
    """`inter.broker.protocol.version` is 3.4 or later; 3.7-IV2 where a broker has several log directories."""
    old: dict[int, str] = {}
    for broker, configs in need(findings.configs).items():
        if _INTER_BROKER not in configs:
            if "process.roles" in configs:
                continue  # a KRaft broker has a metadata.version instead
            raise UnreadError(NotRead(f"broker {broker} doesn't tell it", "ask as a super user"))
        text = configs[_INTER_BROKER]
        is_jbod = len(words_of(configs.get("log.dirs", ""))) > 1
        if _numbers(text) < (_JBOD_PROTOCOL if is_jbod else _PROTOCOL):
            old[broker] = f"{text}, needs {'3.7-IV2 (several log directories)' if is_jbod else '3.4'}"
    if old:
        raise ProblemError(_each(old), f"set {_INTER_BROKER}=3.9 on these brokers and restart them")
    return f"3.4 or later, several log directories have 3.7-IV2: {len(need(findings.configs))} brokers"


def _numbers(text: str) -> tuple[int, int, int]:
    """Return a protocol version as numbers: (3, 7, 2) for 3.7-IV2, the newest of 3.7 for 3.7, (0, 0, 0) for other
    text."""
    match = _VERSION.fullmatch(text)
    return (int(match[1]), int(match[2]), int(match[3] or _NEWEST)) if match else (0, 0, 0)


@_check("brokers: the controllers' metadata.version")
def _metadata_version(findings: MigrationFindings) -> str:
    """`inter.broker.protocol.version` is the controllers' metadata.version: they refuse other brokers."""
    controllers, brokers = findings.sides
    known = {c.file: c.metadata_version for c in controllers if isinstance(c.metadata_version, int)}
    protocols = {broker: configs[_INTER_BROKER] for broker, configs in brokers.items() if _INTER_BROKER in configs}
    for file, level in known.items():
        if other := {b: text for b, text in protocols.items() if level_of(text) != level}:
            raise ProblemError(
                f"{level_name(level)} in the storage of {file}, {_INTER_BROKER} of {_each(other)}",
                f"set {_INTER_BROKER}={level_name(level)} on these brokers and restart them, or format "
                "the controllers' storage anew with --release-version of the brokers' version",
            )
    need_all(*(c.metadata_version for c in controllers))
    return f"{_listed(set(map(level_name, known.values())))}, as the brokers' protocol"


def level_of(text: str) -> int | None:
    """Return the level of metadata.version that a protocol version means; None if it is none of 3.3 to 3.9."""
    major, minor, number = _numbers(text)
    first = _FIRST_LEVELS.get(minor) if major == 3 else None
    last = _FIRST_LEVELS.get(minor + 1, _FIRST_LEVELS[9] + 1) - 1
    return None if first is None else min(first + number, last)


def level_name(level: int) -> str:
    """Return the name of a level of metadata.version, such as 3.7-IV2."""
    minor = max((m for m, first in _FIRST_LEVELS.items() if first <= level), default=None)
    return str(level) if minor is None else f"3.{minor}-IV{level - _FIRST_LEVELS[minor]}"


@_check("brokers: static ids")
def _static_ids(findings: MigrationFindings) -> str:
    """Every broker has its id in its properties file (one that runs as KRaft its node.id): KRaft generates none."""
    configs = need(findings.configs)
    names = ("broker.id", "node.id")
    if generated := [b for b, own in configs.items() if not any(own.get(name, "").isdecimal() for name in names)]:
        raise ProblemError(
            f"the id is generated: broker {_listed(generated)}",
            "write broker.id=ID, with the id that it has, and broker.id.generation.enable=false into the properties of "
            "each, and restart it",
        )
    return f"broker.id is set: {_listed(configs)}"


@_check("partitions: online")
def _online(findings: MigrationFindings) -> str:
    if offline := need(findings.brokers).offline:
        raise ProblemError(
            f"{len(offline)} without a leader: {_listed(offline)}",
            "start the brokers that hold them, then run it again",
        )
    return "each has a leader"


@_check("topics: deletions")
def _deletions(findings: MigrationFindings) -> str:
    """No topic waits for its deletion, by ZooKeeper: brokers don't report this."""
    if deletions := need(findings.zookeeper).deletions:
        raise ProblemError(
            f"{len(deletions)} wait for deletion: {_listed(deletions)}",
            "start every broker that holds a replica of them, and wait until /admin/delete_topics is empty",
        )
    return "none waits for its deletion"


@_check("partitions: reassignments")
def _reassignments(findings: MigrationFindings) -> str:
    """No partition moves to other brokers, by ZooKeeper or else by the brokers."""
    zookeeper, brokers = findings.zookeeper, findings.brokers
    if isinstance(zookeeper, NotRead) and not isinstance(brokers, NotRead):
        moving = need(brokers.reassigning)
    else:
        moving = need(zookeeper).reassigning
    if moving:
        raise ProblemError(
            f"{len(moving)} running: {_listed(moving)}",
            "wait until it is done, or cancel it: kafka-reassign-partitions.sh --cancel",
        )
    return "none is running"


@_check("znodes")
def _znodes(findings: MigrationFindings) -> str:
    """Kafka's migration can read every znode that it copies."""
    unreadable = need(need(findings.zookeeper).unreadable)
    if unreadable:
        hint = "mend or delete them by ZooKeeper's own shell, when nothing needs what they hold"
        if any(text.startswith(f"{MIGRATION} ") for text in unreadable):
            hint += f"; delete {MIGRATION} before the controllers start, unless a migration has begun"
        raise ProblemError(
            f"{len(unreadable)} that Kafka's migration can't read: {join_names(unreadable, _ZNODES_SHOWN)}", hint
        )
    return "each can be read"


# The controllers' properties files: dedicated, with the migration enabled, beside the same ZooKeeper.


FLAG = "zookeeper.metadata.migration.enable"


@_check("controllers: dedicated")
def _dedicated(findings: MigrationFindings) -> str:
    """Each controller is nothing but a controller, under an id that no broker and no other controller has."""
    controllers = need(findings.controllers)
    if mixed := [c.file for c in controllers if words_of(c.properties.get("process.roles", "")) != ["controller"]]:
        raise ProblemError(
            f"process.roles is not controller alone: {_listed(mixed)}",
            "set process.roles=controller: a migration needs controllers of their own",
        )
    ids = [c.properties.get("node.id", c.properties.get("broker.id", "")).strip() for c in controllers]
    if wrong := [c.file for c, node in zip(controllers, ids, strict=True) if not node.isdecimal()]:
        raise ProblemError(f"no node.id: {_listed(wrong)}", "set node.id to a number that no node has")
    if twice := [node for node, count in Counter(ids).items() if count > 1]:
        raise ProblemError(f"node.id {_listed(twice)} twice", "give each controller a node.id of its own")
    brokers = need(findings.brokers)
    if clash := {*map(str, brokers.assigned), *(str(b.id) for b in brokers.brokers)} & set(ids):
        raise ProblemError(f"node.id {_listed(clash)} is a broker's id", "give the controller another node.id")
    return f"node ids {', '.join(sorted(ids))}"


@_check("controllers: migration enabled")
def _enabled(findings: MigrationFindings) -> str:
    if off := [c.file for c in need(findings.controllers) if not is_true(c.properties, FLAG)]:
        raise ProblemError(
            f"{FLAG} is not true: {_listed(off)}",
            f"set {FLAG}=true before the first start: a quorum that began without it never migrates",
        )
    return f"{FLAG}=true"


@_check("brokers: migration enabled")
def _brokers_enabled(findings: MigrationFindings) -> str:
    """On each broker; on none as long as the controllers don't run."""
    configs = need(findings.configs)
    off = [broker for broker, own in configs.items() if not (own.get("process.roles") or is_true(own, FLAG))]
    if off and len(off) == len(configs):
        raise ProblemError(
            "no broker has it yet",
            f"set {FLAG}=true and restart the brokers when the controllers run: this starts the migration",
            is_warning=True,
        )
    if off:
        raise ProblemError(
            f"some brokers have it, broker {_listed(off)} not",
            f"set {FLAG}=true on each of them and restart it: the migration waits for every broker",
        )
    return f"{FLAG}=true"


@_check("controllers: zookeeper.connect")
def _zookeeper(findings: MigrationFindings) -> str:
    """The controllers use the ZooKeeper of the brokers: hosts that brokers name, below the same chroot."""
    addresses = {c.file: c.properties.get("zookeeper.connect", "").strip() for c in need(findings.controllers)}
    if unset := [file for file, address in addresses.items() if not address]:
        raise ProblemError(f"not set: {_listed(unset)}", "set zookeeper.connect to the value that the brokers have")
    of_brokers = [c["zookeeper.connect"] for c in need(findings.configs).values() if c.get("zookeeper.connect")]
    if not of_brokers:
        raise UnreadError(NotRead("no broker tells its own", "ask as a super user"))
    hint = "set zookeeper.connect to the value that the brokers have, chroot included"
    hosts, chroots = {h for text in of_brokers for h in _hosts(text)}, set(map(_chroot, of_brokers))
    if other := [file for file, address in addresses.items() if _chroot(address) not in chroots]:
        raise ProblemError(f"another chroot than the brokers' '{_listed(chroots)}': {_listed(other)}", hint)
    if other := [file for file, address in addresses.items() if not _hosts(address) <= hosts]:
        raise ProblemError(f"other hosts than the brokers' {_listed(hosts)}: {_listed(other)}", hint)
    return "the same hosts and chroot as the brokers'"


def _chroot(connect: str) -> str:
    _, slash, path = connect.partition("/")
    return (slash + path).rstrip("/")


def _hosts(connect: str) -> set[str]:
    """Return the servers of a `zookeeper.connect`, each as host:port."""
    servers = words_of(connect.partition("/")[0].lower())
    return {server if ":" in server else f"{server}:2181" for server in servers}


# Listeners: brokers and controllers find each other, each listener with the same security protocol.


_MAP = "listener.security.protocol.map"
_NAMES = "controller.listener.names"
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_SECURED = {"SSL", "SASL_PLAINTEXT", "SASL_SSL"}


@_check("listeners: mapped")
def _listeners(findings: MigrationFindings) -> str:
    """Every listener that a node uses has a security protocol, and the other side has the same."""
    controllers = need(findings.controllers)
    for controller in controllers:
        for problem, hint in _controller_problems(controller.properties):
            raise ProblemError(f"{controller.file}: {problem}", hint)
    for broker, configs in sorted(need(findings.configs).items()):
        for controller in controllers:
            for problem, hint in _pair_problems(configs, controller.properties, controller.file):
                raise ProblemError(f"broker {broker}: {problem}", hint)
    return "brokers and controllers map each other's listeners"


def _controller_problems(properties: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    protocols, names = protocols_of(properties), _upper(properties, _NAMES)
    if not names:
        yield f"{_NAMES} is not set", f"set {_NAMES} to the name of the controller's listener"
    for name in names:
        if name not in _listening(properties):
            yield f"{name} is not among listeners", f"add {name}://:PORT to listeners"
    for name in [*names, inter_broker_name(properties)]:
        if name not in protocols:
            yield f"{name} has no security protocol", f"add {name}:PROTOCOL to {_MAP}"


def _pair_problems(broker: Mapping[str, str], controller: Mapping[str, str], file: str) -> Iterator[tuple[str, str]]:
    of_broker, of_controller = protocols_of(broker), protocols_of(controller)
    if not broker.get("process.roles"):  # a controller sends requests to brokers in ZooKeeper mode
        name, theirs = inter_broker_name(broker), inter_broker_name(controller)
        if theirs != name:
            yield (
                f"its inter-broker listener is {name}, in {file} {theirs}",
                f"set inter.broker.listener.name={name} on the controllers, and map it",
            )
        if of_broker.get(name) != of_controller.get(name):
            yield (
                f"{name} is {of_broker.get(name)}, in {file} {of_controller.get(name)}",
                f"map {name}:{of_broker.get(name)} in {_MAP} of the controllers",
            )
    for name in _upper(broker, _NAMES):
        if name not in of_broker:
            yield f"{name} has no security protocol", f"add {name}:PROTOCOL to {_MAP} of the broker"
        if name not in _upper(controller, _NAMES):
            yield f"{_NAMES} {name} is not in {file}", f"give brokers and controllers the same {_NAMES}"
        if of_broker.get(name) != of_controller.get(name):
            yield (
                f"{name} is {of_broker.get(name)}, in {file} {of_controller.get(name)}",
                f"map {name} to the same security protocol on both sides",
            )


def inter_broker_name(properties: Mapping[str, str]) -> str:
    """Return the listener over which brokers talk to each other."""
    names = ("inter.broker.listener.name", "security.inter.broker.protocol")
    return next((properties[name] for name in names if properties.get(name)), "PLAINTEXT").strip().upper()


def protocols_of(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the security protocol of each listener name. As Kafka does, a KRaft node without a map of its own has its
    controller listeners as PLAINTEXT, unless one of its listeners is secured."""
    default = {name: name for name in _PROTOCOLS}
    pairs = (word.partition(":") for word in _upper(properties, _MAP))
    mapped = {name.strip(): protocol.strip() for name, _, protocol in pairs} or default
    names = {*_upper(properties, _NAMES)}
    if mapped == default and properties.get("process.roles") and not _SECURED & (names | _listening(properties)):
        return {**mapped, **dict.fromkeys(names - mapped.keys(), "PLAINTEXT")}
    return mapped


def _listening(properties: Mapping[str, str]) -> set[str]:
    return {word.partition("://")[0] for word in _upper(properties, "listeners")}


def _upper(properties: Mapping[str, str], name: str) -> list[str]:
    return words_of(properties.get(name, "").upper())


# What controllers must share with the brokers before they rule them: rights, secrets, logins, addresses.


_AUTHORIZER = "authorizer.class.name"
_SECRET = "password.encoder.secret"  # noqa: S105  # the name of a property
_TOKEN_KEYS = ("delegation.token.secret.key", "delegation.token.master.key")
_STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_OF_ZOOKEEPER = {"kafka.security.authorizer.AclAuthorizer", "kafka.security.auth.SimpleAclAuthorizer"}
_ANONYMOUS = "User:ANONYMOUS"
_HASHES = {f"PBKDF2WithHmacSHA{bits}": f"sha{bits}" for bits in ("1", "256", "384", "512")}
_USERNAME = re.compile(r"""\busername\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s;"']+))""")


@_check("controllers: authorizer")
def _authorizer(findings: MigrationFindings) -> str:
    """Controllers have an authorizer where brokers have one: else everybody may do everything there."""
    controllers, brokers = findings.sides
    classes = {c.file: c.properties.get(_AUTHORIZER, "").strip() for c in controllers}
    if old := [file for file, name in classes.items() if name in _OF_ZOOKEEPER]:
        raise ProblemError(f"keeps its ACLs in ZooKeeper: {_listed(old)}", f"set {_AUTHORIZER}={_STANDARD}")
    guarded = [broker for broker, configs in brokers.items() if configs.get(_AUTHORIZER)]
    without = [file for file, name in classes.items() if not name]
    if guarded and without:
        raise ProblemError(
            f"brokers {_listed(guarded)} have one, not {_listed(without)}",
            f"set {_AUTHORIZER}={_STANDARD}: without it every user may do everything by the controllers",
        )
    return f"on {len(classes)} controllers" if guarded else "neither side has one"


@_check("controllers: super.users")
def _super_users(findings: MigrationFindings) -> str:
    """The controllers' own principal is in their `super.users`: ACLs count only after the quorum has a leader, which
    needs their own requests."""
    unknown: list[str] = []
    for controller in need(findings.controllers):
        properties = controller.properties
        if not properties.get(_AUTHORIZER, "").strip():
            continue
        users = [user.strip() for user in properties.get("super.users", "").split(";") if user.strip()]
        principal = principal_of(properties)
        if principal is None and not set(users) - {_ANONYMOUS}:
            principal = "the principal by which controllers log in to each other"
        if principal is None:
            unknown.append(controller.file)
        elif principal not in users:
            raise ProblemError(
                f"{controller.file} lacks {principal}, the controllers' own",
                "add to super.users the principals of controllers and brokers, with semicolons between",
            )
    if unknown:
        why = f"the principal of the controllers can't be told from {_listed(unknown)}"
        raise UnreadError(NotRead(why, "compare it with super.users by hand"))
    return "the controllers' own principal is there, where they have an authorizer"


def principal_of(properties: Mapping[str, str]) -> str | None:
    """Return the principal by which controllers with these properties log in to each other; None if the file doesn't
    have it."""
    name = properties.get(_NAMES, "").partition(",")[0].strip()
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


@_check("controllers: password.encoder.secret")
def _encoder(findings: MigrationFindings) -> str:
    """Controllers have the secret by which brokers encrypt sensitive configs in ZooKeeper."""
    configs, zookeeper = findings.configs, findings.zookeeper
    secrets = {c.file: c.properties.get(_SECRET, "") for c in need(findings.controllers)}
    encrypted = {} if isinstance(zookeeper, NotRead) else zookeeper.encrypted
    having = [] if isinstance(configs, NotRead) else [b for b, c in configs.items() if _SECRET in c]
    hint = (
        f"set {_SECRET} to the value that the brokers have: without it sensitive configs stay encrypted for ever, and "
        "later ones get into ZooKeeper in plain text"
    )
    if (without := [file for file, secret in secrets.items() if not secret]) and (encrypted or having):
        has = f"encrypted: {_listed(encrypted)}" if encrypted else f"brokers {_listed(having)} have one"
        raise ProblemError(f"not set in {_listed(without)}; {has}", hint)
    for file, secret in secrets.items():
        opaque = [n for n, v in encrypted.items() if "${" not in secret and can_decrypt(v, secret) is False]
        if opaque:
            raise ProblemError(f"the one in {file} doesn't decrypt {_listed(opaque)}", hint)
    need_all(zookeeper, configs)
    return f"{len(encrypted)} encrypted configs in ZooKeeper"


def can_decrypt(value: str, secret: str) -> bool | None:
    """Return whether `secret` decrypts a value; None if the value uses an algorithm that is not known here. Kafka's
    own check is the length of the password, which stands beside it."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes  # slow to load, rarely needed
    from cryptography.hazmat.primitives.padding import PKCS7

    fields = dict(field.partition(":")[::2] for field in value.split(","))
    digest = _HASHES.get(fields.get("keyFactoryAlgorithm", ""))
    if digest is None or fields.get("cipherAlgorithm") != "AES/CBC/PKCS5Padding":
        return None
    try:
        key = hashlib.pbkdf2_hmac(
            digest,
            secret.encode(),
            base64.b64decode(fields["salt"]),
            int(fields["iterations"]),
            int(fields["keyLength"]) // 8,
        )
        vector = base64.b64decode(fields["initializationVector"])
        decryptor = Cipher(algorithms.AES(key), modes.CBC(vector)).decryptor()
        padded = decryptor.update(base64.b64decode(fields["encryptedPassword"])) + decryptor.finalize()
        unpadder = PKCS7(128).unpadder()
        password = unpadder.update(padded) + unpadder.finalize()
        return len(password.decode().encode("utf-16-le")) // 2 == int(fields["passwordLength"])
    except (KeyError, ValueError):
        return False


@_check("controllers: delegation.token.secret.key")
def _tokens(findings: MigrationFindings) -> str:
    controllers, brokers = findings.sides
    having = [b for b, configs in brokers.items() if any(key in configs for key in _TOKEN_KEYS)]
    without = [c.file for c in controllers if not any(c.properties.get(key) for key in _TOKEN_KEYS)]
    if having and without:
        raise ProblemError(
            f"brokers {_listed(having)} have it, not {_listed(without)}",
            f"set {_TOKEN_KEYS[0]} to the value that the brokers have",
        )
    return "on both sides" if having else "brokers have none"


@_check("controllers: zookeeper.set.acl")
def _znode_acls(findings: MigrationFindings) -> str:
    controllers, brokers = findings.sides
    protecting = [broker for broker, configs in brokers.items() if is_true(configs, "zookeeper.set.acl")]
    without = [c.file for c in controllers if not is_true(c.properties, "zookeeper.set.acl")]
    if protecting and without:
        raise ProblemError(
            f"true on brokers {_listed(protecting)}, not in {_listed(without)}",
            "set zookeeper.set.acl=true: else everybody may change what the controllers write to ZooKeeper",
        )
    return "true on both sides" if protecting else "brokers don't protect znodes"


@_check("controllers: login to the brokers")
def _login(findings: MigrationFindings) -> str:
    """Controllers can log in at the brokers' inter-broker listener where it wants SASL."""
    controllers, brokers = findings.sides
    unknown: NotRead | None = None
    for broker, configs in sorted(brokers.items()):
        name = inter_broker_name(configs)
        if not protocols_of(configs).get(name, "").startswith("SASL_"):
            continue
        mechanism = _mechanism(configs)
        key = f"listener.name.{name.lower()}.{mechanism.lower()}.sasl.jaas.config"
        for controller in controllers:
            if (other := _mechanism(controller.properties)) != mechanism:
                raise ProblemError(
                    f"broker {broker} wants {mechanism}, {controller.file} logs in by {other}",
                    f"set sasl.mechanism.inter.broker.protocol={mechanism} on the controllers",
                )
            if controller.properties.get(key):
                continue
            if key in configs:
                raise ProblemError(f"{controller.file} has no {key}", "copy it from the brokers")
            unknown = NotRead(
                f"neither broker {broker} nor {controller.file} has {key}",
                "set it on the controllers, or give their JVM a JAAS file with KafkaServer as the brokers' JVM has",
            )
    need_all(unknown)
    return "the controllers have what it takes"


def _mechanism(properties: Mapping[str, str]) -> str:
    return properties.get("sasl.mechanism.inter.broker.protocol", "").strip() or "GSSAPI"


@_check("controllers: quorum addresses")
def _quorum(findings: MigrationFindings) -> str:
    quorum = need(findings.quorum)
    if not quorum:
        raise ProblemError("none is set", "set controller.quorum.bootstrap.servers on controllers")
    if dead := [address for address, sign in quorum.items() if sign != "answers"]:
        raise ProblemError(
            f"nobody answers at {_listed(dead)}",
            "start the controllers, which wait for the brokers, or correct controller.quorum.bootstrap.servers",
        )
    return f"{_listed(quorum)} answer"


_MAX_AGE = 3600.0  # s
_CLOCK_SKEW = 60.0  # s that the archive's time may lie ahead of this machine's


@_check("archive: whole metadata")
def _archive(findings: MigrationFindings) -> str:
    """The archive holds the whole metadata of this cluster, not older than an hour."""
    archive, again = need(findings.archive), "run 'kbackup migrate archive'"
    if archive is None:
        raise ProblemError("there is no restore point", again)
    name = f"restore point {archive.restore_point}"
    ids = {part.cluster_id for part in (findings.brokers, findings.zookeeper) if not isinstance(part, NotRead)}
    if ids and archive.cluster_id not in ids:
        raise ProblemError(f"{name} is of cluster {archive.cluster_id}", "name the archive of this cluster")
    if archive.missing:
        raise ProblemError(
            f"{name} lacks {_listed(archive.missing)}",
            "name ZooKeeper in [source], use an encrypted archive, and run 'kbackup migrate archive'",
        )
    age = findings.now - archive.captured_at
    if age > _MAX_AGE:
        raise ProblemError(f"{name} is {age / 3600:.1f} hours old", again)
    if age < -_CLOCK_SKEW:
        raise ProblemError(f"{name} is {-age:.0f} s in the future", f"set the clocks, then {again}")
    return f"{name}, {max(age, 0) / 60:.0f} minutes old"
