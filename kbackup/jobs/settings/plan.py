"""Plan changes of topics' configs, ACLs, users and quotas on a target. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

from msgspec.structs import replace

from kbackup.archive.models import Member, Metadata
from kbackup.archive.secrets import is_sensitive
from kbackup.metadata.entities import Acl, BrokerConfig, ClientQuota, QuotaEntity, QuotaKey, Reading, ScramUser
from kbackup.util.text import kafka_command

ConfigResourceType = Literal["broker", "group", "client metrics"]


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
    def key(self) -> tuple[str, str, str]:
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


def entity_key(entity: QuotaEntity) -> QuotaKey:
    return tuple(sorted(entity.items()))


def entity_words(entity: QuotaEntity) -> str:
    """Return words such as 'user alice, default client-id'."""
    return ", ".join(
        f"default {kind}" if name is None else f"{kind} {name}" for kind, name in sorted(entity.items(), reverse=True)
    )


def quota_values(quotas: Iterable[ClientQuota]) -> dict[tuple[QuotaKey, str], float]:
    return {(entity_key(q.entity), name): value for q in quotas for name, value in q.quotas.items()}


def config_values(reading: Reading) -> dict[tuple[str, str, str], str | None]:
    """Return the configs of brokers, groups and client metrics by `ConfigChange.key`."""
    values: dict[tuple[str, str, str], str | None] = {}
    for config in reading.broker_configs or ():
        values["broker", "" if config.broker is None else str(config.broker), config.name] = config.value
    for of_group in reading.group_configs or ():
        values["group", of_group.group, of_group.name] = of_group.value
    for metrics in reading.client_metrics or ():
        for name, value in metrics.configs.items():
            values["client metrics", metrics.name, name] = value
    return values


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
    acls: list[Acl] = []
    configs: list[ConfigChange] = []
    quotas: list[QuotaChange] = []
    skipped: list[SkippedSetting] = []
    warnings: list[str] = []
    missing: list[str] = []
    if selected:
        for lacking in archived.not_carried:
            if lacking.reason != "not there":
                skipped.append(SkippedSetting(what=lacking.what, why=lacking.why))
    if "acls" in selected:
        mapped, not_restored = map_acls(archived.acls or (), names)
        new = mapped - set(there.acls or ())
        acls = sorted(new, key=_acl_order)
        skipped += not_restored
        if names.renamed:
            warnings += _warn_of_patterns(archived.acls or ())
    if "configs" in selected:
        configs, not_applied = _plan_configs(archived, names, config_values(there), brokers)
        skipped += not_applied
        warnings += _warn_of_brokers(archived, there, configs)
    if "quotas" in selected:
        quotas = _plan_quotas(archived, there)
    if "users" in selected:
        existing = {(user.user, user.mechanism) for user in there.scram_users or ()}
        lacking_users = [user for user in archived.scram_users or () if (user.user, user.mechanism) not in existing]
        missing += [_by_hand(user, address) for user in lacking_users]
        why = "a running cluster takes none from elsewhere; 'kbackup migrate bootstrap' brings tokens into a new one"
        for token in archived.delegation_tokens or ():
            skipped.append(SkippedSetting(what=f"delegation token {token.id} of {token.owner}", why=why))
    return SettingsReport(
        acls=tuple(acls),
        configs=tuple(configs),
        quotas=tuple(quotas),
        not_carried=tuple(skipped),
        warnings=tuple(warnings),
        missing=tuple(missing),
    )


_ACL_FIELDS = attrgetter("resource", "name", "pattern", "principal", "host", "operation")


def _acl_order(acl: Acl) -> tuple[bool, object]:
    """Return what ACLs are sorted by: those that deny come first."""
    return acl.permission != "deny", _ACL_FIELDS(acl)


def _warn_of_patterns(acls: Iterable[Acl]) -> list[str]:
    """Warn of ACLs for patterns of names, where names change."""
    patterns: set[str] = set()
    for acl in acls:
        is_pattern = acl.pattern != "literal" or acl.name == "*"
        if is_pattern and acl.resource in ("topic", "group"):
            kind = "any" if acl.name == "*" else acl.pattern
            patterns.add(f"{acl.resource} {acl.name} ({kind})")
    why = "names change in this restore, but ACLs for patterns stay as they are"
    return [f"{why}: do {pattern} still mean the right ones?" for pattern in sorted(patterns)]


def _warn_of_brokers(archived: Metadata, there: Reading, changes: Iterable[ConfigChange]) -> list[str]:
    """Warn of brokers of the target with a config of their own, where all brokers get another default."""
    own = {(config.broker, config.name) for config in archived.broker_configs or ()}
    defaults = {change.name for change in changes if change.of_all}
    warnings: list[str] = []
    for config in there.broker_configs or ():
        if config.broker is None or config.name not in defaults or (config.broker, config.name) in own:
            continue
        warnings.append(f"broker {config.broker} keeps {config.name}={config.value}, which is not what all brokers get")
    return warnings


def _plan_quotas(archived: Metadata, there: Reading) -> list[QuotaChange]:
    now = quota_values(there.client_quotas or ())
    wanted = quota_values(archived.client_quotas or ())
    changes: list[QuotaChange] = []
    for key in sorted(wanted, key=repr):
        if now.get(key) != wanted[key]:
            entity, name = key
            changes.append(QuotaChange(entity=dict(entity), name=name, before=now.get(key), after=wanted[key]))
    return changes


def _plan_configs(
    archived: Metadata, names: TargetNames, current: Mapping[tuple[str, str, str], str | None], brokers: Sequence[int]
) -> tuple[list[ConfigChange], list[SkippedSetting]]:
    """The default of all brokers comes first."""
    changes: list[ConfigChange] = []
    skipped: list[SkippedSetting] = []

    def plan(kind: ConfigResourceType, owner: str, name: str, value: str | None, of_all: bool = False) -> None:
        before = current.get((kind, owner, name))
        if before != value:
            changes.append(ConfigChange(kind=kind, owner=owner, name=name, before=before, after=value, of_all=of_all))

    def skip(name: str, owner: str, why: str) -> None:
        skipped.append(SkippedSetting(what=f"config {name} of {owner}", why=why))

    for c in sorted(archived.broker_configs or (), key=lambda c: (c.broker is not None, c.broker or 0, c.name)):
        if why := _not_applied(c, brokers):
            skip(c.name, "all brokers" if c.broker is None else f"broker {c.broker}", why)
        else:
            plan("broker", "" if c.broker is None else str(c.broker), c.name, c.value, of_all=c.broker is None)
    for of_group in archived.group_configs or ():
        group = names.groups.get(of_group.group)
        if group is None:
            skip(of_group.name, f"group {of_group.group}", "the group is not restored")
        elif of_group.value is None:
            skip(of_group.name, f"group {of_group.group}", _SENSITIVE)
        else:
            plan("group", group, of_group.name, of_group.value)
    for metrics in archived.client_metrics or ():
        for name, value in sorted(metrics.configs.items()):
            plan("client metrics", metrics.name, name, value)
    return changes, skipped


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
