"""Plan changes of topics' configs, ACLs, users and quotas on a target. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from kbackup.archive.models import Member, Metadata
from kbackup.archive.secrets import is_sensitive
from kbackup.metadata.differences import (
    broker_config_values,
    changed_values,
    client_metrics_values,
    entity_key,
    group_config_values,
    quota_values,
)
from kbackup.metadata.entities import Acl, BrokerConfig, ClientQuota, QuotaEntity, QuotaKey, Reading, ScramUser
from kbackup.util.text import kafka_command

ConfigResourceType = Literal["broker", "group", "client metrics"]
ConfigKey = tuple[ConfigResourceType, str, str]
"""The type and the name of what a config is set on, and the config's name."""


class ConfigChange(Member, frozen=True, kw_only=True):
    """`before` is null if nothing was set at run time; `after` is null if the config is removed. `of_all`: the
    default of all brokers, whose `owner` is empty. A subscription to client metrics is the `owner` of its configs."""

    kind: ConfigResourceType
    owner: str
    name: str
    before: str | None
    after: str | None
    of_all: bool = False

    @property
    def key(self) -> ConfigKey:
        return self.kind, self.owner, self.name


class QuotaChange(Member, frozen=True, kw_only=True):
    """A quota of an entity (`ClientQuota`), such as producer_byte_rate; null: none."""

    entity: QuotaEntity
    name: str
    before: float | None
    after: float | None

    @property
    def key(self) -> tuple[QuotaKey, str]:
        return entity_key(self.entity), self.name


def entity_words(entity: QuotaEntity) -> str:
    """Return words such as 'user alice, default client-id'."""
    return ", ".join(
        f"default {kind}" if name is None else f"{kind} {name}" for kind, name in sorted(entity.items(), reverse=True)
    )


def config_values(reading: Reading) -> dict[ConfigKey, str | None]:
    """Return the configs of brokers, groups and client metrics by `ConfigChange.key`."""
    values: dict[ConfigKey, str | None] = {}
    for (broker, name), value in broker_config_values(reading.broker_configs or ()).items():
        values["broker", _broker_owner(broker), name] = value
    for (group, name), value in group_config_values(reading.group_configs or ()).items():
        values["group", group, name] = value
    for (metrics, name), value in client_metrics_values(reading.client_metrics or ()).items():
        values["client metrics", metrics, name] = value
    return values


def _broker_owner(broker: int | None) -> str:
    return "" if broker is None else str(broker)


class Changes(Member, frozen=True, kw_only=True):
    """Changes to make on a target."""

    acls: tuple[Acl, ...] = ()
    deleted_acls: tuple[Acl, ...] = ()
    configs: tuple[ConfigChange, ...] = ()
    quotas: tuple[QuotaChange, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.acls or self.deleted_acls or self.configs or self.quotas)


# ACLs under the names that topics and groups have on a target. Pure.


class SkippedSetting(Member, frozen=True, kw_only=True):
    """A setting that a restore does not apply, and the reason."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class TargetNames:
    """Names of topics and groups on the target, by their archived names. `skipped_topics` are topics that the restore
    point has and that are not restored."""

    topics: Mapping[str, str]
    skipped_topics: Set[str]
    groups: Mapping[str, str]

    @property
    def renamed(self) -> bool:
        return any(old != new for names in (self.topics, self.groups) for old, new in names.items())


def map_acls(acls: Iterable[Acl], names: TargetNames) -> tuple[set[Acl], list[SkippedSetting]]:
    """Return ACLs under the target's names, and the ACLs of topics that are not restored. An ACL of a name that the
    archive doesn't have stays unchanged: its topic may be created later."""
    mapped: set[Acl] = set()
    skipped: list[SkippedSetting] = []
    renames = {"topic": names.topics, "group": names.groups}
    for acl in acls:
        if acl.pattern != "literal" or acl.name == "*" or acl.resource not in renames:
            mapped.add(acl)
        elif acl.resource == "topic" and acl.name in names.skipped_topics:
            skipped.append(SkippedSetting(what=f"ACL: {acl.words}", why="the topic is not restored"))
        else:
            mapped.add(replace(acl, name=renames[acl.resource].get(acl.name, acl.name)))
    return mapped, skipped


# Commands of Kafka's own tools that change a setting, for messages about settings that kbackup could not change.

_ENTITIES = {
    "broker": "brokers",
    "group": "groups",
    "client metrics": "client-metrics",
    "user": "users",
    "client-id": "clients",
    "ip": "ips",
}
_RESOURCES = {"transactional_id": "transactional-id", "delegation_token": "delegation-token", "user": "user-principal"}


def config_command(servers: str, change: ConfigChange) -> str:
    """Return the command that sets a config, or removes it."""
    entity = ("--entity-default",) if change.of_all else ("--entity-name", change.owner)
    return _configs(servers, ("--entity-type", _ENTITIES[change.kind], *entity), change.name, change.after)


def quota_command(servers: str, change: QuotaChange) -> str:
    """Return the command that sets a quota, or removes it."""
    entity: list[str] = []
    for kind, name in sorted(change.entity.items(), reverse=True):
        owner = ["--entity-default"] if name is None else ["--entity-name", name]
        entity += ["--entity-type", _ENTITIES[kind], *owner]
    value = change.after
    text = None if value is None else str(int(value)) if value == int(value) else repr(value)
    return _configs(servers, entity, change.name, text)


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


def _configs(servers: str, entity: Iterable[str], name: str, value: str | None) -> str:
    pair = f"{name}=[{value}]" if value is not None and "," in value else f"{name}={value}"
    change = ("--delete-config", name) if value is None else ("--add-config", pair)
    return kafka_command("kafka-configs", servers, "--alter", *entity, *change)


# Plan which settings of a restore point to set on a target. Pure.
#
# ACLs are only ever added; configs are set, never unset. What belongs to a host is never applied, whatever it says.

HOST_SPECIFIC = re.compile(
    r"""(^|\.)(advertised\.)?listeners?(\.|$)  # also listener.name.<listener>.<any>
      | (^|\.)(ssl|sasl|security|controller|quorum|process|zookeeper|principal)\.
      | (^|\.)(dir|dirs|path|location|file|rack|host|port|node\.id|broker\.id)$
      | (^|\.)(class|classes|class\.name|reporters|providers)$  # code that may not be there
    """,
    re.VERBOSE,
)
"""Configs that name addresses, files, credentials or code of the machine that they were set on."""


class SettingsReport(Member, frozen=True, kw_only=True):
    """Settings of `--with` that were set; in a plan, settings to set. `missing` are those that were selected and are
    not on the target afterwards, `not_carried` those that no restore applies."""

    acls: tuple[Acl, ...] = ()
    configs: tuple[ConfigChange, ...] = ()
    quotas: tuple[QuotaChange, ...] = ()
    not_carried: tuple[SkippedSetting, ...] = ()
    warnings: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def changes(self) -> Changes:
        return Changes(acls=self.acls, configs=self.configs, quotas=self.quotas)


def plan_settings(
    selected: Sequence[str],
    archived: Metadata,
    names: TargetNames,
    there: Reading,
    brokers: Sequence[int],
    address: str,
) -> SettingsReport:
    """Plan the settings of the kinds in `selected`: acls, configs, quotas, users. The target has the settings `there`
    and these `brokers`; its `address` is for commands that users are shown."""
    acls: tuple[Acl, ...] = ()
    configs: tuple[ConfigChange, ...] = ()
    quotas: tuple[QuotaChange, ...] = ()
    skipped: list[SkippedSetting] = []
    warnings: list[str] = []
    missing: list[str] = []
    if selected:
        for lacking in archived.not_carried:
            if lacking.reason != "not there":
                skipped.append(SkippedSetting(what=lacking.what, why=lacking.why))
    if "acls" in selected:
        mapped, not_restored = map_acls(archived.acls or (), names)
        acls = _lacking_acls(there.acls or (), mapped)
        skipped += not_restored
        warnings += _pattern_warnings(archived.acls or (), names)
    if "configs" in selected:
        wanted, not_applied = _wanted_configs(archived, names, brokers)
        configs = _config_changes(config_values(there), wanted)
        skipped += not_applied
        warnings += _kept_configs(archived, there, configs)
    if "quotas" in selected:
        quotas = _quota_changes(there.client_quotas or (), archived.client_quotas or ())
    if "users" in selected:
        existing = {(user.user, user.mechanism) for user in there.scram_users or ()}
        lacking_users = [user for user in archived.scram_users or () if (user.user, user.mechanism) not in existing]
        missing += [_by_hand(user, address) for user in lacking_users]
        why = "a running cluster takes none from elsewhere; 'kbackup migrate bootstrap' brings tokens into a new one"
        for token in archived.delegation_tokens or ():
            skipped.append(SkippedSetting(what=f"delegation token {token.id} of {token.owner}", why=why))
    return SettingsReport(
        acls=acls,
        configs=configs,
        quotas=quotas,
        not_carried=tuple(skipped),
        warnings=tuple(warnings),
        missing=tuple(missing),
    )


def _acl_order(acl: Acl) -> tuple[object, ...]:
    """Return the key to sort ACLs by. What denies comes first: until it is there, what allows
    more would stand alone."""
    return (acl.permission != "deny", acl.resource, acl.name, acl.pattern, acl.principal, acl.host, acl.operation)


def _lacking_acls(there: Iterable[Acl], wanted: Iterable[Acl]) -> tuple[Acl, ...]:
    """Return the ACLs that the target lacks; it keeps those that only it has."""
    changes = changed_values(dict.fromkeys(there), dict.fromkeys(wanted), _acl_order)
    return tuple(change.key for change in changes if change.kind == "appeared")


def _pattern_warnings(acls: Iterable[Acl], names: TargetNames) -> list[str]:
    if not names.renamed:
        return []
    patterns: set[str] = set()
    for acl in acls:
        if acl.resource in ("topic", "group") and (acl.pattern != "literal" or acl.name == "*"):
            pattern = "any" if acl.name == "*" else acl.pattern
            patterns.add(f"{acl.resource} {acl.name} ({pattern})")
    why = "names change in this restore, but ACLs for patterns stay as they are"
    return [f"{why}: do {pattern} still mean the right ones?" for pattern in sorted(patterns)]


def _quota_changes(there: Iterable[ClientQuota], wanted: Iterable[ClientQuota]) -> tuple[QuotaChange, ...]:
    """Return the quotas to set; those that only the target has stay. The default entity has no name, and None sorts
    with no string: the keys are sorted as text."""
    changes = changed_values(quota_values(there), quota_values(wanted), repr)
    found: list[QuotaChange] = []
    for change in changes:
        entity, name = change.key
        if change.kind != "gone":
            found.append(QuotaChange(entity=dict(entity), name=name, before=change.before, after=change.after))
    return tuple(found)


def _config_changes(
    there: Mapping[ConfigKey, str | None], wanted: Mapping[ConfigKey, str | None]
) -> tuple[ConfigChange, ...]:
    """Return the configs to set, in the order of `wanted`; those that only the target has stay."""
    known = {key: there[key] for key in wanted if key in there}
    places = {key: at for at, key in enumerate(wanted)}
    changes: list[ConfigChange] = []
    for change in changed_values(known, wanted, places.__getitem__):
        kind, owner, name = change.key
        of_all = kind == "broker" and not owner
        changes.append(
            ConfigChange(kind=kind, owner=owner, name=name, before=change.before, after=change.after, of_all=of_all)
        )
    return tuple(changes)


def _kept_configs(archived: Metadata, there: Reading, changes: Iterable[ConfigChange]) -> list[str]:
    """Return a warning of each config that a broker has of its own: it hides the default that all brokers get."""
    own = {(config.broker, config.name) for config in archived.broker_configs or ()}
    defaults = {change.name for change in changes if change.of_all}
    return [
        f"broker {config.broker} keeps {config.name}={config.value}, which is not what all brokers get"
        for config in there.broker_configs or ()
        if config.broker is not None and config.name in defaults and (config.broker, config.name) not in own
    ]


def _wanted_configs(
    archived: Metadata, names: TargetNames, brokers: Sequence[int]
) -> tuple[dict[ConfigKey, str | None], list[SkippedSetting]]:
    """Return the configs that the target is to have, in the order in which they are set, and those that are left out.
    The defaults of all brokers come first."""
    wanted: dict[ConfigKey, str | None] = {}
    skipped: list[SkippedSetting] = []

    def skip(name: str, owner: str, why: str) -> None:
        skipped.append(SkippedSetting(what=f"config {name} of {owner}", why=why))

    for config in sorted(archived.broker_configs or (), key=_broker_order):
        if why := _not_applied(config, brokers):
            skip(config.name, "all brokers" if config.broker is None else f"broker {config.broker}", why)
        else:
            wanted["broker", _broker_owner(config.broker), config.name] = config.value
    for of_group in archived.group_configs or ():
        group = names.groups.get(of_group.group)
        if group is None:
            skip(of_group.name, f"group {of_group.group}", "the group is not restored")
        elif of_group.value is None:
            skip(of_group.name, f"group {of_group.group}", _SENSITIVE)
        else:
            wanted["group", group, of_group.name] = of_group.value
    for metrics in archived.client_metrics or ():
        for name, value in sorted(metrics.configs.items()):
            wanted["client metrics", metrics.name, name] = value
    return wanted, skipped


def _broker_order(config: BrokerConfig) -> tuple[bool, int, str]:
    return config.broker is not None, config.broker or 0, config.name


_SENSITIVE = "it is sensitive: brokers never give it"


def _not_applied(config: BrokerConfig, brokers: Sequence[int]) -> str:
    if HOST_SPECIFIC.search(config.name):
        return "it belongs to the host that it was set on"
    if config.value is None:
        return _SENSITIVE
    if is_sensitive(config.name):
        return "it is sensitive: set it by hand"
    if config.broker is not None and config.broker not in brokers:
        return f"the target has no broker {config.broker}"
    return ""


def _by_hand(user: ScramUser, address: str) -> str:
    """Return the message of a user that the target lacks, with the command that creates it but for the password."""
    secret = f"{user.mechanism}=[iterations={user.iterations},password=...]"
    entity = ("--entity-type", "users", "--entity-name", user.user)
    where = "its secret is not in the archive"
    if user.stored_key is not None:
        where = "a running cluster takes no stored keys ('kbackup migrate bootstrap' brings them into a new one)"
    return (
        f"SCRAM user {user.user} ({user.mechanism}, {user.iterations} iterations) is to be made by hand, {where}: "
        + kafka_command("kafka-configs", address, "--alter", *entity, "--add-config", secret)
    )
