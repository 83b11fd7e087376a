"""The check of listeners: brokers and controllers find each other, each listener with the same security protocol."""

from __future__ import annotations

from collections.abc import Mapping

from kbackup.jobs.migrate.preflight.findings import Findings
from kbackup.jobs.migrate.preflight.line import Line, failed, not_looked_at, ok
from kbackup.jobs.migrate.unread import NotRead

LISTENERS = "listeners: mapped"

_MAP = "listener.security.protocol.map"
_NAMES = "controller.listener.names"
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_SECURED = {"SSL", "SASL_PLAINTEXT", "SASL_SSL"}


def check_listeners(findings: Findings) -> Line:
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
    """(what is wrong, hint) of a controller's own listeners."""
    protocols = protocols_of(properties)
    names = _words(properties.get(_NAMES, ""))
    if not names:
        return f"{_NAMES} is not set", f"set {_NAMES} to the name of the controller's listener"
    listening = [word.partition("://")[0].upper() for word in _words(properties.get("listeners", ""))]
    for name in names:
        if name not in listening:
            return f"{name} is not among listeners", f"add {name}://:PORT to listeners"
    for name in [*names, inter_broker_name(properties)]:
        if name not in protocols:
            return f"{name} has no security protocol", f"add {name}:PROTOCOL to {_MAP}"
    return None


def _pair_problem(
    broker: Mapping[str, str], controller: Mapping[str, str], file: str
) -> tuple[str, str] | None:
    """(what is wrong, hint) between a broker and a controller."""
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
    for name in _words(broker.get(_NAMES, "")):
        if name not in of_broker:
            return f"{name} has no security protocol", f"add {name}:PROTOCOL to {_MAP} of the broker"
        if name not in _words(controller.get(_NAMES, "")):
            return f"{_NAMES} {name} is not in {file}", f"give brokers and controllers the same {_NAMES}"
        if of_broker[name] != of_controller.get(name):
            return (
                f"{name} is {of_broker[name]}, in {file} {of_controller.get(name)}",
                f"map {name} to the same security protocol on both sides",
            )
    return None


def inter_broker_name(properties: Mapping[str, str]) -> str:
    """The listener over which brokers talk to each other."""
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
    """The security protocol of each listener name. As Kafka does, a KRaft node without a map of its own has its
    controller listeners as PLAINTEXT, unless one of its listeners is secured."""
    default = {name: name for name in _PROTOCOLS}
    if text := properties.get(_MAP, "").strip():
        pairs = (word.partition(":") for word in _words(text))
        mapped = {name.strip(): protocol.strip() for name, _, protocol in pairs}
        is_default = mapped == default
    else:
        mapped, is_default = default, True
    names = {*_words(properties.get(_NAMES, ""))}
    listening = {word.partition("://")[0].upper() for word in _words(properties.get("listeners", ""))}
    if is_default and properties.get("process.roles") and not _SECURED & (names | listening):
        return {**mapped, **dict.fromkeys(names - mapped.keys(), "PLAINTEXT")}
    return mapped


def _words(text: str) -> list[str]:
    return [word.strip().upper() for word in text.split(",") if word.strip()]
