"""Checks of the controllers' properties files: dedicated, with the migration enabled, beside the same ZooKeeper, and
with listeners by which brokers and controllers find each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from kbackup.migrate.checks.base import MIGRATION_FLAG, Check, is_true, listed, upper_words
from kbackup.migrate.checks.cluster import brokers_enabled
from kbackup.migrate.states import NotRead, ProblemError, UnreadError, need
from kbackup.migrate.znodes import MigrationFindings
from kbackup.util.text import words_of


def dedicated(findings: MigrationFindings) -> str:
    """Each controller is nothing but a controller, under an id that no broker and no other controller has."""
    controllers = need(findings.controllers)
    mixed: list[str] = []
    ids: dict[str, str] = {}
    for controller in controllers:
        properties = controller.properties
        if words_of(properties.get("process.roles", "")) != ["controller"]:
            mixed.append(controller.file)
        ids[controller.file] = properties.get("node.id", properties.get("broker.id", "")).strip()
    if mixed:
        raise ProblemError(
            f"process.roles is not controller alone: {listed(mixed)}",
            "set process.roles=controller: a migration needs controllers of their own",
        )
    without = [file for file, node in ids.items() if not node.isdecimal()]
    if without:
        raise ProblemError(f"no node.id: {listed(without)}", "set node.id to a number that no node has")
    twice = [node for node, count in Counter(ids.values()).items() if count > 1]
    if twice:
        raise ProblemError(f"node.id {listed(twice)} twice", "give each controller a node.id of its own")

    brokers = need(findings.brokers)
    # A broker that is down keeps its id as long as replicas are assigned to it.
    taken = {str(broker) for broker in brokers.assigned}
    taken |= {str(broker.id) for broker in brokers.brokers}
    clash = taken & set(ids.values())
    if clash:
        raise ProblemError(f"node.id {listed(clash)} is a broker's id", "give the controller another node.id")
    return f"node ids {', '.join(sorted(ids.values()))}"


def enabled(findings: MigrationFindings) -> str:
    """Every controller has the migration enabled from its first start on."""
    off = [each.file for each in need(findings.controllers) if not is_true(each.properties, MIGRATION_FLAG)]
    if off:
        raise ProblemError(
            f"{MIGRATION_FLAG} is not true: {listed(off)}",
            f"set {MIGRATION_FLAG}=true before the first start: a quorum that began without it never migrates",
        )
    return f"{MIGRATION_FLAG}=true"


def zookeeper_connect(findings: MigrationFindings) -> str:
    """The controllers use the ZooKeeper of the brokers: hosts that brokers name, below the same chroot."""
    addresses: dict[str, str] = {}
    for controller in need(findings.controllers):
        addresses[controller.file] = controller.properties.get("zookeeper.connect", "").strip()
    unset = [file for file, address in addresses.items() if not address]
    if unset:
        raise ProblemError(f"not set: {listed(unset)}", "set zookeeper.connect to the value that the brokers have")

    # Brokers may name different servers of one ensemble, so a controller may name any of them.
    hosts = set[str]()
    chroots = set[str]()
    for configs in need(findings.configs).values():
        address = configs.get("zookeeper.connect")
        if address:
            hosts |= _hosts(address)
            chroots.add(_chroot(address))
    if not chroots:
        raise UnreadError(NotRead("no broker tells its own", "ask as a super user"))

    hint = "set zookeeper.connect to the value that the brokers have, chroot included"
    elsewhere = [file for file, address in addresses.items() if _chroot(address) not in chroots]
    if elsewhere:
        raise ProblemError(f"another chroot than the brokers' '{listed(chroots)}': {listed(elsewhere)}", hint)
    others = [file for file, address in addresses.items() if not _hosts(address) <= hosts]
    if others:
        raise ProblemError(f"other hosts than the brokers' {listed(hosts)}: {listed(others)}", hint)
    return "the same hosts and chroot as the brokers'"


def _chroot(connect: str) -> str:
    _, slash, path = connect.partition("/")
    return (slash + path).rstrip("/")


def _hosts(connect: str) -> set[str]:
    """Return the servers of a `zookeeper.connect`, each as host:port."""
    servers, _, _ = connect.lower().partition("/")
    hosts = set[str]()
    for server in words_of(servers):
        # ZooKeeper's clients take its usual port where none is named.
        has_port = ":" in server
        hosts.add(server if has_port else f"{server}:2181")
    return hosts


# Listeners: brokers and controllers find each other, each listener with the same security protocol.


LISTENER_NAMES = "controller.listener.names"
_MAP = "listener.security.protocol.map"
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_SECURED = {"SSL", "SASL_PLAINTEXT", "SASL_SSL"}


def listeners(findings: MigrationFindings) -> str:
    """Every listener that a node uses has a security protocol, and the other side has the same."""
    controllers = need(findings.controllers)
    # The first problem is reported alone: what follows from it would only hide it. A file's own come before the pairs.
    for controller in controllers:
        for problem, hint in _controller_problems(controller.properties):
            raise ProblemError(f"{controller.file}: {problem}", hint)
    for broker, configs in sorted(need(findings.configs).items()):
        for controller in controllers:
            for problem, hint in _pair_problems(configs, controller.properties, controller.file):
                raise ProblemError(f"broker {broker}: {problem}", hint)
    return "brokers and controllers map each other's listeners"


def _controller_problems(properties: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the listeners of a controller, and the action for the user."""
    protocols = protocols_of(properties)
    names = upper_words(properties, LISTENER_NAMES)
    if not names:
        yield f"{LISTENER_NAMES} is not set", f"set {LISTENER_NAMES} to the name of the controller's listener"
    for name in names:
        if name not in _listening(properties):
            yield f"{name} is not among listeners", f"add {name}://:PORT to listeners"
    # Also the brokers' listener, over which an active controller sends requests to them.
    for name in [*names, inter_broker_name(properties)]:
        if name not in protocols:
            yield f"{name} has no security protocol", f"add {name}:PROTOCOL to {_MAP}"


def _pair_problems(broker: Mapping[str, str], controller: Mapping[str, str], file: str) -> Iterator[tuple[str, str]]:
    """Yield what a broker and the controller of `file` map differently, and the action for the user."""
    of_broker, of_controller = protocols_of(broker), protocols_of(controller)
    # During a migration the active controller sends requests to brokers in ZooKeeper mode, by their own listener. KRaft
    # brokers ask the controller instead.
    if not broker.get("process.roles"):
        name = inter_broker_name(broker)
        of_file = inter_broker_name(controller)
        if of_file != name:
            yield (
                f"its inter-broker listener is {name}, in {file} {of_file}",
                f"set inter.broker.listener.name={name} on the controllers, and map it",
            )
        if of_broker.get(name) != of_controller.get(name):
            yield (
                f"{name} is {of_broker.get(name)}, in {file} {of_controller.get(name)}",
                f"map {name}:{of_broker.get(name)} in {_MAP} of the controllers",
            )
    names_of_controller = upper_words(controller, LISTENER_NAMES)
    for name in upper_words(broker, LISTENER_NAMES):
        if name not in of_broker:
            yield f"{name} has no security protocol", f"add {name}:PROTOCOL to {_MAP} of the broker"
        if name not in names_of_controller:
            yield (
                f"{LISTENER_NAMES} {name} is not in {file}",
                f"give brokers and controllers the same {LISTENER_NAMES}",
            )
        if of_broker.get(name) != of_controller.get(name):
            yield (
                f"{name} is {of_broker.get(name)}, in {file} {of_controller.get(name)}",
                f"map {name} to the same security protocol on both sides",
            )


def inter_broker_name(properties: Mapping[str, str]) -> str:
    """Return the listener over which brokers talk to each other."""
    name = properties.get("inter.broker.listener.name") or properties.get("security.inter.broker.protocol")
    return (name or "PLAINTEXT").strip().upper()


def protocols_of(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the security protocol of each listener name. As Kafka does, a KRaft node without a map of its own has its
    controller listeners as PLAINTEXT, unless one of its listeners is secured."""
    default = {name: name for name in _PROTOCOLS}
    mapped: dict[str, str] = {}
    for entry in upper_words(properties, _MAP):
        name, _, protocol = entry.partition(":")
        mapped[name.strip()] = protocol.strip()
    if not mapped:
        mapped = dict(default)
    if mapped != default or not properties.get("process.roles"):
        return mapped
    names = set(upper_words(properties, LISTENER_NAMES))
    is_secured = bool(_SECURED & (names | _listening(properties)))
    if not is_secured:
        for name in names:
            mapped.setdefault(name, "PLAINTEXT")
    return mapped


def _listening(properties: Mapping[str, str]) -> set[str]:
    """Return the names of the listeners that a node opens."""
    return {word.partition("://")[0] for word in upper_words(properties, "listeners")}


CHECKS = (
    Check("controllers: dedicated", dedicated),
    Check("controllers: migration enabled", enabled),
    Check("brokers: migration enabled", brokers_enabled),
    Check("controllers: zookeeper.connect", zookeeper_connect),
    Check("listeners: mapped", listeners),
)
"""In the order of their lines."""
