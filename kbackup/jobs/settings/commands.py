"""Commands of Kafka's own tools that change a setting, for messages about settings that kbackup could not change."""

from __future__ import annotations

from kbackup.jobs.settings.changes import ConfigChange, QuotaChange
from kbackup.metadata.entities import Acl, ScramUser
from kbackup.util.commands import kafka_command

_ENTITIES = {
    "broker": "brokers",
    "group": "groups",
    "client metrics": "client-metrics",
    "user": "users",
    "client-id": "clients",
    "ip": "ips",
}
_RESOURCES = {
    "transactional_id": "transactional-id",
    "delegation_token": "delegation-token",
    "user": "user-principal",
}


def config_command(servers: str, change: ConfigChange) -> str:
    """Return the command that sets a config, or removes it."""
    entity = ("--entity-default",) if change.of_all else ("--entity-name", change.owner)
    return _configs(servers, ("--entity-type", _ENTITIES[change.kind], *entity), change.name, change.after)


def quota_command(servers: str, change: QuotaChange) -> str:
    """Return the command that sets a quota, or removes it."""
    entity: list[str] = []
    for kind, name in sorted(change.entity.items(), reverse=True):
        entity += [
            "--entity-type",
            _ENTITIES[kind],
            *(["--entity-default"] if name is None else ["--entity-name", name]),
        ]
    return _configs(servers, entity, change.name, None if change.after is None else _number(change.after))


def user_command(servers: str, user: ScramUser) -> str:
    """Return the command that creates a SCRAM user, with dots for the password."""
    secret = f"{user.mechanism}=[iterations={user.iterations},password=...]"
    entity = ("--entity-type", "users", "--entity-name", user.user)
    return kafka_command("kafka-configs", servers, "--alter", *entity, "--add-config", secret)


def acl_command(servers: str, acl: Acl, action: str) -> str:
    """Return the command that creates an ACL (`--add`) or deletes it (`--remove`)."""
    side = acl.permission.lower()
    resource = f"--{_RESOURCES.get(acl.resource, acl.resource)}"
    return kafka_command(
        "kafka-acls",
        servers,
        action,
        *(f"--{side}-principal", acl.principal, f"--{side}-host", acl.host),
        *("--operation", "".join(part.capitalize() for part in acl.operation.split("_"))),
        *((resource,) if acl.resource == "cluster" else (resource, acl.name)),
        *("--resource-pattern-type", acl.pattern),
    )


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _configs(servers: str, entity: tuple[str, ...] | list[str], name: str, value: str | None) -> str:
    pair = f"{name}=[{value}]" if value is not None and "," in value else f"{name}={value}"
    change = ("--delete-config", name) if value is None else ("--add-config", pair)
    return kafka_command("kafka-configs", servers, "--alter", *entity, *change)
