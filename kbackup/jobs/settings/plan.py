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

ConfigResourceType = Literal["broker", "group", "client metrics", "topic"]
ConfigKey = tuple[ConfigResourceType, str, str]
"""The type and the name of what a config is set on, and the config's name."""


class ConfigChange(Member, frozen=True, kw_only=True):
    """`before` is null if nothing was set at run time; `after` is null if the config is removed. `of_all`: the
    default of all brokers, whose `owner` is empty. A subscription to client metrics is the `owner` of its configs.
    Those of a topic change only where the restore has set others as long as it fills logs."""

    kind: ConfigResourceType
    owner: str
    name: str
    before: str | None
    after: str | None
    of_all: bool = False

    @property
    def key(self) -> ConfigKey:
        return self.kind, self.owner, self.name

    @property
    def owner_words(self) -> str:
        return "all brokers" if self.of_all else f"{self.kind} {self.owner}"


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
    words: list[str] = []
    # In reverse, the user comes before the client id, as in Kafka's own /config/users/<user>/clients/<client-id>.
    for kind, name in sorted(entity.items(), reverse=True):
        words.append(f"default {kind}" if name is None else f"{kind} {name}")
    return ", ".join(words)


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
        """Return whether a topic or a group gets another name on the target."""
        new_names = [*self.topics.items(), *self.groups.items()]
        return any(old != new for old, new in new_names)


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
    "topic": "topics",
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
        entity += ["--entity-type", _ENTITIES[kind]]
        entity += ["--entity-default"] if name is None else ["--entity-name", name]
    value = change.after
    text = None if value is None else _quota_text(value)
    return _configs(servers, entity, change.name, text)


def _quota_text(value: float) -> str:
    """Return a quota as Kafka's tools write numbers: whole ones without a fraction."""
    return str(int(value)) if value == int(value) else repr(value)


def acl_command(servers: str, acl: Acl, action: str) -> str:
    """Return the command that creates an ACL (`--add`) or deletes it (`--remove`)."""
    side = acl.permission.lower()
    who = [f"--{side}-principal", acl.principal, f"--{side}-host", acl.host]
    # The archive names operations as the protocol does (describe_configs), the tool wants DescribeConfigs.
    operation = "".join(part.capitalize() for part in acl.operation.split("_"))
    resource = [f"--{_RESOURCES.get(acl.resource, acl.resource)}"]
    if acl.resource != "cluster":  # there is only one, and the tool takes no name for it
        resource.append(acl.name)
    words = [*who, "--operation", operation, *resource, "--resource-pattern-type", acl.pattern]
    return kafka_command("kafka-acls", servers, action, *words)


def _configs(servers: str, entity: Iterable[str], name: str, value: str | None) -> str:
    """Return a command of kafka-configs that sets `name` to a value, or removes it if the value is None."""
    if value is None:
        change = ["--delete-config", name]
    elif "," in value:
        # A comma separates configs, unless brackets surround the value.
        change = ["--add-config", f"{name}=[{value}]"]
    else:
        change = ["--add-config", f"{name}={value}"]
    return kafka_command("kafka-configs", servers, "--alter", *entity, *change)


# Plan which settings of a restore point to set on a target. Pure.
#
# ACLs are only ever added; configs are set, never unset. A config that belongs to a host is never applied, whatever its
# value.

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
    """Settings of `--with` that were set; in a plan, settings to set. `missing` are selected settings that are not on
    the target afterwards, `not_carried` are settings that no restore applies."""

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
        skipped += _not_captured(archived)
    if "acls" in selected:
        archived_acls = archived.acls or ()
        mapped, not_restored = map_acls(archived_acls, names)
        acls = _lacking_acls(there.acls or (), mapped)
        skipped += not_restored
        warnings += _pattern_warnings(archived_acls, names)
    if "configs" in selected:
        wanted, not_applied = _wanted_configs(archived, names, brokers)
        configs = _config_changes(config_values(there), wanted)
        skipped += not_applied
        warnings += _kept_configs(archived, there, configs)
    if "quotas" in selected:
        quotas = _quota_changes(there.client_quotas or (), archived.client_quotas or ())
    if "users" in selected:
        missing += _lacking_users(archived, there, address)
        skipped += _tokens(archived)
    return SettingsReport(
        acls=acls,
        configs=configs,
        quotas=quotas,
        not_carried=tuple(skipped),
        warnings=tuple(warnings),
        missing=tuple(missing),
    )


def _not_captured(archived: Metadata) -> list[SkippedSetting]:
    """Return the settings that the capture could not read. A setting that the source did not have is no loss."""
    skipped: list[SkippedSetting] = []
    for lacking in archived.not_carried:
        if lacking.reason != "not there":
            skipped.append(SkippedSetting(what=lacking.what, why=lacking.why))
    return skipped


def _lacking_users(archived: Metadata, there: Reading, address: str) -> list[str]:
    """Return for each SCRAM user that the target lacks how to create the user by hand."""
    existing = {(user.user, user.mechanism) for user in there.scram_users or ()}
    lacking: list[str] = []
    for user in archived.scram_users or ():
        if (user.user, user.mechanism) not in existing:
            lacking.append(_by_hand(user, address))
    return lacking


def _tokens(archived: Metadata) -> list[SkippedSetting]:
    why = "a running cluster takes none from elsewhere; 'kbackup migrate bootstrap' brings tokens into a new one"
    skipped: list[SkippedSetting] = []
    for token in archived.delegation_tokens or ():
        skipped.append(SkippedSetting(what=f"delegation token {token.id} of {token.owner}", why=why))
    return skipped


def _acl_order(acl: Acl) -> tuple[object, ...]:
    """Return the key to sort ACLs by. ACLs that deny come first: until they are there, ACLs that allow would allow more
    than they did."""
    return (acl.permission != "deny", acl.resource, acl.name, acl.pattern, acl.principal, acl.host, acl.operation)


def _lacking_acls(there: Iterable[Acl], wanted: Iterable[Acl]) -> tuple[Acl, ...]:
    """Return the ACLs that the target lacks; it keeps the ACLs that only it has."""
    changes = changed_values(dict.fromkeys(there), dict.fromkeys(wanted), _acl_order)
    return tuple(change.key for change in changes if change.kind == "appeared")


def _pattern_warnings(acls: Iterable[Acl], names: TargetNames) -> list[str]:
    """Return a warning of each ACL for a pattern, if names change: only its author knows which names it is to match."""
    if not names.renamed:
        return []
    patterns: set[str] = set()
    for acl in acls:
        if acl.resource not in ("topic", "group"):
            continue
        if acl.name == "*":
            patterns.add(f"{acl.resource} {acl.name} (any)")
        elif acl.pattern != "literal":
            patterns.add(f"{acl.resource} {acl.name} ({acl.pattern})")
    why = "names change in this restore, but ACLs for patterns stay as they are"
    return [f"{why}: do {pattern} still mean the right ones?" for pattern in sorted(patterns)]


def _quota_changes(there: Iterable[ClientQuota], wanted: Iterable[ClientQuota]) -> tuple[QuotaChange, ...]:
    """Return the quotas to set. Quotas that only the target has stay."""
    # The default entity has no name, and None can't be compared with strings: the keys are sorted as text.
    changes = changed_values(quota_values(there), quota_values(wanted), repr)
    to_set: list[QuotaChange] = []
    for change in changes:
        entity, name = change.key
        if change.kind != "gone":
            to_set.append(QuotaChange(entity=dict(entity), name=name, before=change.before, after=change.after))
    return tuple(to_set)


def _config_changes(
    there: Mapping[ConfigKey, str | None], wanted: Mapping[ConfigKey, str | None]
) -> tuple[ConfigChange, ...]:
    """Return the configs to set, in the order of `wanted`. Configs that only the target has stay."""
    known = {key: there[key] for key in wanted if key in there}
    positions = {key: position for position, key in enumerate(wanted)}
    changes: list[ConfigChange] = []
    for change in changed_values(known, wanted, positions.__getitem__):
        kind, owner, name = change.key
        of_all = kind == "broker" and not owner
        to_set = ConfigChange(
            kind=kind, owner=owner, name=name, before=change.before, after=change.after, of_all=of_all
        )
        changes.append(to_set)
    return tuple(changes)


def _kept_configs(archived: Metadata, there: Reading, changes: Iterable[ConfigChange]) -> list[str]:
    """Return a warning of each config that a broker has of its own: it hides the default that all brokers get."""
    archived_own = {(config.broker, config.name) for config in archived.broker_configs or ()}
    defaults = {change.name for change in changes if change.of_all}
    warnings: list[str] = []
    for config in there.broker_configs or ():
        if config.broker is None or config.name not in defaults:
            continue
        # Where the archive has a config of this broker too, the broker gets that one: nothing of the target stays.
        if (config.broker, config.name) not in archived_own:
            warnings.append(
                f"broker {config.broker} keeps {config.name}={config.value}, which is not what all brokers get"
            )
    return warnings


def _wanted_configs(
    archived: Metadata, names: TargetNames, brokers: Sequence[int]
) -> tuple[dict[ConfigKey, str | None], list[SkippedSetting]]:
    """Return the configs that the target is to have, in the order in which they are set, and the configs that are left
    out. The defaults of all brokers come first."""
    wanted: dict[ConfigKey, str | None] = {}
    skipped: list[SkippedSetting] = []
    for config in sorted(archived.broker_configs or (), key=_broker_order):
        why = _not_applied(config, brokers)
        if why:
            owner = "all brokers" if config.broker is None else f"broker {config.broker}"
            skipped.append(_skipped_config(config.name, owner, why))
        else:
            wanted["broker", _broker_owner(config.broker), config.name] = config.value
    for of_group in archived.group_configs or ():
        owner = f"group {of_group.group}"
        group = names.groups.get(of_group.group)
        if group is None:
            skipped.append(_skipped_config(of_group.name, owner, "the group is not restored"))
        elif of_group.value is None:
            skipped.append(_skipped_config(of_group.name, owner, _SENSITIVE))
        else:
            wanted["group", group, of_group.name] = of_group.value
    for metrics in archived.client_metrics or ():
        for name, value in sorted(metrics.configs.items()):
            wanted["client metrics", metrics.name, name] = value
    return wanted, skipped


def _skipped_config(name: str, owner: str, why: str) -> SkippedSetting:
    return SkippedSetting(what=f"config {name} of {owner}", why=why)


def _broker_order(config: BrokerConfig) -> tuple[bool, int, str]:
    return config.broker is not None, config.broker or 0, config.name


_SENSITIVE = "it is sensitive: brokers never give it"


def _not_applied(config: BrokerConfig, brokers: Sequence[int]) -> str:
    """Return why a config of brokers is not set on the target, '' if it is."""
    if HOST_SPECIFIC.search(config.name):
        return "it belongs to the host that it was set on"
    if config.value is None:
        return _SENSITIVE
    # Brokers give no such value, but an encrypted archive has those that ZooKeeper or a metadata log gave.
    if is_sensitive(config.name):
        return "it is sensitive: set it by hand"
    if config.broker is not None and config.broker not in brokers:
        return f"the target has no broker {config.broker}"
    return ""


def _by_hand(user: ScramUser, address: str) -> str:
    """Return the message of a user that the target lacks, with the command that creates it but for the password."""
    if user.stored_key is None:
        where = "its secret is not in the archive"
    else:
        where = "a running cluster takes no stored keys ('kbackup migrate bootstrap' brings them into a new one)"
    secret = f"{user.mechanism}=[iterations={user.iterations},password=...]"
    entity = ("--entity-type", "users", "--entity-name", user.user)
    command = kafka_command("kafka-configs", address, "--alter", *entity, "--add-config", secret)
    name = f"SCRAM user {user.user} ({user.mechanism}, {user.iterations} iterations)"
    return f"{name} is to be made by hand, {where}: {command}"
