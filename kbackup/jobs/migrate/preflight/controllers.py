"""Checks of the controllers' properties files: dedicated, with the migration enabled, beside the same ZooKeeper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from kbackup.jobs.migrate.preflight.findings import Controller, Findings
from kbackup.jobs.migrate.preflight.line import Line, failed, listed, not_looked_at, ok, warning
from kbackup.jobs.migrate.unread import NotRead

DEDICATED = "controllers: dedicated"
ENABLED = "controllers: migration enabled"
BROKERS_ENABLED = "brokers: migration enabled"
ZOOKEEPER = "controllers: zookeeper.connect"

FLAG = "zookeeper.metadata.migration.enable"


def check_dedicated(findings: Findings) -> Line:
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
        return failed(
            DEDICATED, f"node.id {listed(twice)} twice", "give each controller a node.id of its own"
        )
    if isinstance(brokers, NotRead):
        return not_looked_at(DEDICATED, brokers)
    taken = {str(b.id) for b in brokers.brokers} | {str(b) for b in brokers.assigned}
    if clash := taken & set(ids):
        return failed(
            DEDICATED, f"node.id {listed(clash)} is a broker's id", "give the controller another node.id"
        )
    return ok(DEDICATED, f"node ids {', '.join(sorted(ids))}")


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def is_enabled(properties: Mapping[str, str]) -> bool:
    return properties.get(FLAG, "").strip().lower() == "true"


def check_enabled(findings: Findings) -> Line:
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


def check_brokers_enabled(findings: Findings) -> Line:
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


def check_zookeeper(findings: Findings) -> Line:
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
        return failed(
            ZOOKEEPER, f"another chroot than the brokers' '{listed(chroots)}': {listed(other)}", hint
        )
    if other := [file for file, address in addresses.items() if not _hosts(address) <= hosts]:
        return failed(ZOOKEEPER, f"other hosts than the brokers' {listed(hosts)}: {listed(other)}", hint)
    return ok(ZOOKEEPER, "the same hosts and chroot as the brokers'")


def _chroot(connect: str) -> str:
    """The chroot of a `zookeeper.connect`: '' or such as /kafka."""
    _, slash, path = connect.partition("/")
    return (slash + path).rstrip("/")


def _hosts(connect: str) -> set[str]:
    """The servers of a `zookeeper.connect`, each as host:port."""
    servers = (server.strip().lower() for server in connect.partition("/")[0].split(","))
    return {server if ":" in server else f"{server}:2181" for server in servers if server}


def storage_ids(controllers: tuple[Controller, ...]) -> dict[str, str | NotRead]:
    """The cluster id of each controller's formatted storage."""
    return {controller.file: controller.cluster_id for controller in controllers}
