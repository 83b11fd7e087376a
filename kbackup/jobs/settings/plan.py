"""Plan changes of topics' configs, ACLs, users and quotas on a target. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from kbackup.archive.models import Member, Metadata
from kbackup.archive.secrets import is_sensitive
from kbackup.metadata.entities import (
    Acl,
    BrokerConfig,
    ClientMetrics,
    ClientQuota,
    DelegationToken,
    GroupConfig,
    QuotaEntity,
    QuotaKey,
    ScramUser,
)
from kbackup.util.text import kafka_command

Kind = Literal["broker", "group", "client metrics"]


class ConfigChange(Member, frozen=True, kw_only=True):
    """`before` is null if nothing was set at run time; `after` is null if the config is removed. `of_all`: the
    default of all brokers, whose `owner` is empty. A subscription to client metrics is the `owner` of its configs."""

    kind: Kind
    owner: str
    name: str
    before: str | None
    after: str | None
    of_all: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        """Return the owner and name of the setting."""
        return self.kind, self.owner, self.name


class QuotaChange(Member, frozen=True, kw_only=True):
    """A quota of an entity (`ClientQuota`), such as producer_byte_rate; null: none."""

    entity: QuotaEntity
    name: str
    before: float | None
    after: float | None

    @property
    def key(self) -> tuple[QuotaKey, str]:
        """Return the owner and name of the setting."""
        return entity_key(self.entity), self.name


def entity_key(entity: QuotaEntity) -> QuotaKey:
    return tuple(sorted(entity.items()))


def entity_words(entity: QuotaEntity) -> str:
    """Return words such as 'user alice, default client-id'."""
    return ", ".join(
        f"default {kind}" if name is None else f"{kind} {name}" for kind, name in sorted(entity.items(), reverse=True)
    )


def quota_values(quotas: Iterable[ClientQuota]) -> dict[tuple[QuotaKey, str], float]:
    return {(entity_key(q.entity), name): value for q in quotas for name, value in q.quotas.items()}


def quota_changes(archived: Iterable[ClientQuota], there: Iterable[ClientQuota]) -> tuple[QuotaChange, ...]:
    """Return the changes that set the quotas of `archived`; other quotas stay."""
    now = quota_values(there)
    return tuple(
        QuotaChange(entity=dict(entity), name=name, before=now.get((entity, name)), after=value)
        for (entity, name), value in sorted(quota_values(archived).items(), key=lambda item: repr(item[0]))
        if now.get((entity, name)) != value
    )


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
    for acl in acls:
        if acl.pattern != "literal" or acl.name == "*":
            mapped.add(acl)
        elif acl.resource == "topic" and acl.name in names.skipped_topics:
            skipped.append(SkippedSetting(what=f"ACL: {acl.words}", why="the topic is not restored"))
        elif acl.resource == "topic":
            mapped.add(replace(acl, name=names.topics.get(acl.name, acl.name)))
        elif acl.resource == "group":
            mapped.add(replace(acl, name=names.groups.get(acl.name, acl.name)))
        else:
            mapped.add(acl)
    return mapped, skipped


def denials_first(acl: Acl) -> tuple[object, ...]:
    fields = (acl.resource, acl.name, acl.pattern, acl.principal, acl.host, acl.operation)
    return acl.permission != "deny", fields


def pattern_warnings(acls: Iterable[Acl], names: TargetNames) -> list[str]:
    """Return a warning for each pattern of ACLs that stays unchanged though names change."""
    if not names.renamed:
        return []
    patterns = sorted(
        {
            f"{acl.resource} {acl.name} ({'any' if acl.name == '*' else acl.pattern})"
            for acl in acls
            if acl.resource in ("topic", "group") and (acl.pattern != "literal" or acl.name == "*")
        }
    )
    return [
        f"names change in this restore, but ACLs for patterns stay as they are: do {pattern} still mean the right ones?"
        for pattern in patterns
    ]


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


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """The settings of the target, its brokers, and its address for commands that users are shown."""

    address: str
    brokers: Sequence[int]
    acls: Iterable[Acl] = ()
    scram_users: Iterable[ScramUser] = ()
    broker_configs: Iterable[BrokerConfig] = ()
    group_configs: Iterable[GroupConfig] = ()
    client_quotas: Iterable[ClientQuota] = ()
    client_metrics: Iterable[ClientMetrics] = ()


def plan_settings(
    selected: Sequence[str], archived: Metadata, names: TargetNames, target: TargetSettings
) -> SettingsReport:
    """Plan the settings of the kinds in `selected`: acls, configs, quotas, users."""
    acls: tuple[Acl, ...] = ()
    configs: tuple[ConfigChange, ...] = ()
    quotas: tuple[QuotaChange, ...] = ()
    skipped = [
        SkippedSetting(what=n.what, why=n.why) for n in archived.not_carried if selected and n.reason != "not there"
    ]
    warnings: list[str] = []
    missing: list[str] = []
    if "acls" in selected:
        mapped, not_restored = map_acls(archived.acls or (), names)
        acls = tuple(sorted(mapped - {*target.acls}, key=denials_first))
        skipped += not_restored
        warnings += pattern_warnings(archived.acls or (), names)
    if "configs" in selected:
        brokers, of_hosts = _broker_configs(archived.broker_configs or (), target)
        groups, others = _group_configs(archived.group_configs or (), names, target)
        metrics = _client_metrics(archived.client_metrics or (), target)
        configs = (*brokers, *groups, *metrics)
        skipped += [*of_hosts, *others]
        warnings += _overridden(brokers, archived.broker_configs or (), target)
    if "quotas" in selected:
        quotas = quota_changes(archived.client_quotas or (), target.client_quotas)
    if "users" in selected:
        missing += _users(archived.scram_users or (), target)
        skipped += _tokens(archived.delegation_tokens or ())
    return SettingsReport(
        acls=acls,
        configs=configs,
        quotas=quotas,
        not_carried=tuple(skipped),
        warnings=tuple(warnings),
        missing=tuple(missing),
    )


def _broker_configs(
    archived: Sequence[BrokerConfig], target: TargetSettings
) -> tuple[list[ConfigChange], list[SkippedSetting]]:
    """The default of all brokers comes first."""
    current = {(c.broker, c.name): c.value for c in target.broker_configs}
    changes: list[ConfigChange] = []
    skipped: list[SkippedSetting] = []
    for config in sorted(archived, key=lambda c: (c.broker is not None, c.broker or 0, c.name)):
        key = config.broker, config.name
        why = _not_applied(config, target.brokers)
        if why or config.value is None:
            of = "all brokers" if config.broker is None else f"broker {config.broker}"
            skipped.append(SkippedSetting(what=f"config {config.name} of {of}", why=why))
        elif current.get(key) != config.value:
            changes.append(
                ConfigChange(
                    kind="broker",
                    owner="" if config.broker is None else str(config.broker),
                    name=config.name,
                    before=current.get(key),
                    after=config.value,
                    of_all=config.broker is None,
                )
            )
    return changes, skipped


def _not_applied(config: BrokerConfig, brokers: Sequence[int]) -> str:
    if HOST_SPECIFIC.search(config.name):
        return "it belongs to the host that it was set on"
    if config.value is None:
        return "it is sensitive: brokers never give it"
    if is_sensitive(config.name):
        return "it is sensitive: set it by hand"
    if config.broker is not None and config.broker not in brokers:
        return f"the target has no broker {config.broker}"
    return ""


def _overridden(
    changes: Iterable[ConfigChange], archived: Iterable[BrokerConfig], target: TargetSettings
) -> Iterator[str]:
    """Brokers of the target that keep a value of their own in spite of the new default."""
    own = {(c.broker, c.name) for c in archived}
    defaults = {c.name for c in changes if c.of_all}
    for config in target.broker_configs:
        if config.broker is not None and config.name in defaults and (config.broker, config.name) not in own:
            yield f"broker {config.broker} keeps {config.name}={config.value}, which is not what all brokers get"


def _client_metrics(archived: Iterable[ClientMetrics], target: TargetSettings) -> list[ConfigChange]:
    current = {(m.name, name): value for m in target.client_metrics for name, value in m.configs.items()}
    return [
        ConfigChange(
            kind="client metrics", owner=metrics.name, name=name, before=current.get((metrics.name, name)), after=value
        )
        for metrics in archived
        for name, value in sorted(metrics.configs.items())
        if current.get((metrics.name, name)) != value
    ]


def _tokens(archived: Iterable[DelegationToken]) -> Iterator[SkippedSetting]:
    for token in archived:
        yield SkippedSetting(
            what=f"delegation token {token.id} of {token.owner}",
            why="a running cluster takes none from elsewhere; 'kbackup migrate bootstrap' brings tokens into a new one",
        )


def _group_configs(
    archived: Iterable[GroupConfig], names: TargetNames, target: TargetSettings
) -> tuple[list[ConfigChange], list[SkippedSetting]]:
    current = {(c.group, c.name): c.value for c in target.group_configs}
    changes: list[ConfigChange] = []
    skipped: list[SkippedSetting] = []
    for config in archived:
        group = names.groups.get(config.group)
        if group is None or config.value is None:
            why = "the group is not restored" if group is None else "it is sensitive: brokers never give it"
            skipped.append(SkippedSetting(what=f"config {config.name} of group {config.group}", why=why))
            continue
        before = current.get((group, config.name))
        if before != config.value:
            changes.append(ConfigChange(kind="group", owner=group, name=config.name, before=before, after=config.value))
    return changes, skipped


def _users(archived: Iterable[ScramUser], target: TargetSettings) -> Iterator[str]:
    """Yield the users that the target lacks, each with the command that creates it."""
    there = {(u.user, u.mechanism) for u in target.scram_users}
    for user in archived:
        if (user.user, user.mechanism) not in there:
            where = (
                "a running cluster takes no stored keys ('kbackup migrate bootstrap' brings them into a new one)"
                if user.stored_key is not None
                else "its secret is not in the archive"
            )
            yield (
                f"SCRAM user {user.user} ({user.mechanism}, {user.iterations} iterations) is to be made by hand, "
                f"{where}: {user_command(target.address, user)}"
            )
