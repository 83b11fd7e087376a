"""What of a restore point's settings is to be set on a target that has others. Pure.

ACLs are only ever added; configs are set, never unset. What belongs to a host is never applied, whatever it says.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from kbackup.archive.models import Metadata, Part
from kbackup.jobs.settings_acls import LeftOut, Names, denials_first, kept_patterns, map_acls
from kbackup.metadata.entities import Acl, BrokerConfig, GroupConfig, ScramUser

HOST_SPECIFIC = re.compile(
    r"""(^|\.)(advertised\.)?listeners?(\.|$)  # also listener.name.<listener>.<any>
      | (^|\.)(ssl|sasl|security|controller|quorum|process|zookeeper|principal)\.
      | (^|\.)(dir|dirs|path|location|file|rack|host|port|node\.id|broker\.id)$
      | (^|\.)(class|classes|class\.name|reporters|providers)$  # code that may not be there
    """,
    re.VERBOSE,
)
"""Configs that name addresses, files, credentials or code of the machine that they were set on."""


class ConfigChange(Part, frozen=True, kw_only=True):
    """`before` is null where it is not set at run time; the broker's own default or its file then counts. `of_all`: it
    was the default of all brokers."""

    kind: Literal["broker", "group"]
    owner: str
    name: str
    before: str | None
    after: str
    of_all: bool = False


class SettingsReport(Part, frozen=True, kw_only=True):
    """What was done of `--with`; in a plan, what is to be done. `missing` are those that were asked for and are not
    there afterwards, `not_carried` those that no restore applies."""

    acls: tuple[Acl, ...] = ()
    configs: tuple[ConfigChange, ...] = ()
    not_carried: tuple[LeftOut, ...] = ()
    warnings: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """The settings of the target, its brokers, and its address for commands that people are told."""

    address: str
    brokers: Sequence[int]
    acls: Iterable[Acl] = ()
    scram_users: Iterable[ScramUser] = ()
    broker_configs: Iterable[BrokerConfig] = ()
    group_configs: Iterable[GroupConfig] = ()


def plan_settings(wanted: Sequence[str], archived: Metadata, names: Names, target: Target) -> SettingsReport:
    """`wanted` are of acls, configs, users."""
    acls: tuple[Acl, ...] = ()
    configs: tuple[ConfigChange, ...] = ()
    left = [
        LeftOut(what=n.what, why=n.why) for n in archived.not_carried if wanted and n.reason != "not there"
    ]
    warnings: list[str] = []
    missing: list[str] = []
    if "acls" in wanted:
        mapped, not_restored = map_acls(archived.acls or (), names)
        acls = tuple(sorted(mapped - {*target.acls}, key=denials_first))
        left += not_restored
        warnings += kept_patterns(archived.acls or (), names)
    if "configs" in wanted:
        brokers, of_hosts = _broker_configs(archived.broker_configs or (), target)
        groups, others = _group_configs(archived.group_configs or (), names, target)
        configs = (*brokers, *groups)
        left += [*of_hosts, *others]
        warnings += _defaults(brokers)
    if "users" in wanted:
        missing += _users(archived.scram_users or (), target)
    return SettingsReport(
        acls=acls, configs=configs, not_carried=tuple(left), warnings=tuple(warnings), missing=tuple(missing)
    )


def _broker_configs(
    archived: Sequence[BrokerConfig], target: Target
) -> tuple[list[ConfigChange], list[LeftOut]]:
    """The client library can't set the cluster-wide default: it is set on each broker that had no other value."""
    there = {(c.broker, c.name): c.value for c in target.broker_configs}
    own = {(c.broker, c.name) for c in archived}
    wanted: dict[tuple[int, str], tuple[str, bool]] = {}
    left: list[LeftOut] = []
    for config in archived:
        why = _not_applied(config, target.brokers)
        if why or config.value is None:
            of = "all brokers" if config.broker is None else f"broker {config.broker}"
            left.append(LeftOut(what=f"config {config.name} of {of}", why=why))
        elif config.broker is not None:
            wanted[config.broker, config.name] = config.value, False
        else:
            for broker in target.brokers:
                if (broker, config.name) not in own:
                    wanted[broker, config.name] = config.value, True
    changes = [
        ConfigChange(kind="broker", owner=str(broker), name=name, before=before, after=value, of_all=of_all)
        for (broker, name), (value, of_all) in sorted(wanted.items())
        for before in [there.get((broker, name), there.get((None, name)))]
        if before != value
    ]
    return changes, left


def _not_applied(config: BrokerConfig, brokers: Sequence[int]) -> str:
    if HOST_SPECIFIC.search(config.name):
        return "it belongs to the host that it was set on"
    if config.value is None:
        return "it is sensitive: brokers never give it"
    if config.broker is not None and config.broker not in brokers:
        return f"the target has no broker {config.broker}"
    return ""


def default_command(address: str, name: str, value: str) -> str:
    """What sets a default of all brokers."""
    pair = f"{name}=[{value}]" if "," in value else f"{name}={value}"
    return (
        f"kafka-configs.sh --bootstrap-server {shlex.quote(address)} --alter --entity-type brokers --entity-default "
        f"--add-config {shlex.quote(pair)}"
    )


def _defaults(changes: Iterable[ConfigChange]) -> Iterator[str]:
    names = sorted({c.name for c in changes if c.of_all})
    if names:
        yield (
            f"defaults of all brokers are set on each broker there is, for want of a call for it: {', '.join(names)}; "
            "'kafka-configs.sh --entity-type brokers --entity-default' sets them for brokers to come"
        )


def _group_configs(
    archived: Iterable[GroupConfig], names: Names, target: Target
) -> tuple[list[ConfigChange], list[LeftOut]]:
    there = {(c.group, c.name): c.value for c in target.group_configs}
    changes: list[ConfigChange] = []
    left: list[LeftOut] = []
    for config in archived:
        group = names.groups.get(config.group)
        if group is None or config.value is None:
            why = "the group is not restored" if group is None else "it is sensitive: brokers never give it"
            left.append(LeftOut(what=f"config {config.name} of group {config.group}", why=why))
            continue
        before = there.get((group, config.name))
        if before != config.value:
            changes.append(
                ConfigChange(kind="group", owner=group, name=config.name, before=before, after=config.value)
            )
    return changes, left


def _users(archived: Iterable[ScramUser], target: Target) -> Iterator[str]:
    """Those that the target doesn't have, each with the command that makes it."""
    there = {(u.user, u.mechanism) for u in target.scram_users}
    for user in archived:
        if (user.user, user.mechanism) not in there:
            secret = f"{user.mechanism}=[iterations={user.iterations},password=...]"
            yield (
                f"SCRAM user {user.user} ({user.mechanism}, {user.iterations} iterations) is to be made by hand, its "
                f"secret is in no backup: kafka-configs.sh --bootstrap-server {shlex.quote(target.address)} --alter "
                f"--entity-type users --entity-name {shlex.quote(user.user)} --add-config {shlex.quote(secret)}"
            )
