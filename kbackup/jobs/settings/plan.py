"""Plan which settings of a restore point to set on a target. Pure.

ACLs are only ever added; configs are set, never unset. What belongs to a host is never applied, whatever it says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kbackup.archive.models import Member, Metadata
from kbackup.archive.secrets import is_sensitive
from kbackup.jobs.settings.acls import Names, SkippedSetting, denials_first, map_acls, pattern_warnings
from kbackup.jobs.settings.changes import Changes, ConfigChange, QuotaChange, quota_changes
from kbackup.jobs.settings.commands import user_command
from kbackup.metadata.entities import (
    Acl,
    BrokerConfig,
    ClientMetrics,
    ClientQuota,
    DelegationToken,
    GroupConfig,
    ScramUser,
)

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
class Target:
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
    selected: Sequence[str], archived: Metadata, names: Names, target: Target
) -> SettingsReport:
    """Plan the settings of the kinds in `selected`: acls, configs, quotas, users."""
    acls: tuple[Acl, ...] = ()
    configs: tuple[ConfigChange, ...] = ()
    quotas: tuple[QuotaChange, ...] = ()
    skipped = [
        SkippedSetting(what=n.what, why=n.why)
        for n in archived.not_carried
        if selected and n.reason != "not there"
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
    archived: Sequence[BrokerConfig], target: Target
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
    changes: Iterable[ConfigChange], archived: Iterable[BrokerConfig], target: Target
) -> Iterator[str]:
    """Brokers of the target that keep a value of their own in spite of the new default."""
    own = {(c.broker, c.name) for c in archived}
    defaults = {c.name for c in changes if c.of_all}
    for config in target.broker_configs:
        if config.broker is not None and config.name in defaults and (config.broker, config.name) not in own:
            yield f"broker {config.broker} keeps {config.name}={config.value}, which is not what all brokers get"


def _client_metrics(archived: Iterable[ClientMetrics], target: Target) -> list[ConfigChange]:
    current = {(m.name, name): value for m in target.client_metrics for name, value in m.configs.items()}
    return [
        ConfigChange(
            kind="client metrics",
            owner=metrics.name,
            name=name,
            before=current.get((metrics.name, name)),
            after=value,
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
    archived: Iterable[GroupConfig], names: Names, target: Target
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
            changes.append(
                ConfigChange(kind="group", owner=group, name=config.name, before=before, after=config.value)
            )
    return changes, skipped


def _users(archived: Iterable[ScramUser], target: Target) -> Iterator[str]:
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
