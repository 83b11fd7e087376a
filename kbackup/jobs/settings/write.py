"""Make the planned changes of settings on a target, and undo them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from kbackup.archive.models import Member, Metadata
from kbackup.archive.reader import open_archive
from kbackup.archive.restores.plan import RestorePlan
from kbackup.errors import RefusedError, UsageError
from kbackup.jobs.capture import capture_settings
from kbackup.jobs.settings.before import SettingsBefore, SettingsCaptures
from kbackup.jobs.settings.plan import (
    Changes,
    ConfigChange,
    QuotaChange,
    SettingsReport,
    TargetNames,
    TargetSettings,
    acl_command,
    config_command,
    entity_words,
    plan_settings,
    quota_command,
    quota_values,
)
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.admin_protocol.session import AdminSession
from kbackup.kafka.security_types import Untold
from kbackup.metadata.entities import LABELS, Acl, MetadataPartName, QuotaKey, Reading, reason_for
from kbackup.store.base import Store

C = TypeVar("C")

_SPECIAL_RESOURCES = {"delegation_token", "user"}
_SPECIAL_OPERATIONS = {"two_phase_commit", "create_tokens", "describe_tokens"}
"""Values of ACLs that confluent-kafka doesn't know."""


_BY_HAND = "; set it by hand: "


@dataclass(frozen=True)
class Outcome:
    """The changes that were made, and in words those that the target refused."""

    done: Changes
    refused: tuple[str, ...]


def write_changes(cluster: Cluster, changes: Changes) -> Outcome:
    """Make each change, and collect the refused ones. Deletions of ACLs come last."""
    with cluster.admin_session() as session:
        acls = _create(cluster, session, changes.acls)
        configs = [_set(cluster, session, change) for change in changes.configs]
        quotas = _set_quotas(session, changes.quotas)
        deleted = _delete(session, changes.deleted_acls)
    servers = cluster.connection.properties["bootstrap.servers"]
    words = [
        *(
            f"ACL {a.words} was not made: {w}{_BY_HAND}{acl_command(servers, a, '--add')}"
            for a, w in zip(changes.acls, acls, strict=True)
            if w
        ),
        *(
            f"config {c.name} of {_owner(c)} was not set: {w}{_BY_HAND}{config_command(servers, c)}"
            for c, w in zip(changes.configs, configs, strict=True)
            if w
        ),
        *(
            f"quota {c.name} of {entity_words(c.entity)} was not set: {w}{_BY_HAND}{quota_command(servers, c)}"
            for c, w in zip(changes.quotas, quotas, strict=True)
            if w
        ),
        *(
            f"ACL {a.words} was not deleted: {w}{_BY_HAND}{acl_command(servers, a, '--remove')}"
            for a, w in zip(changes.deleted_acls, deleted, strict=True)
            if w
        ),
    ]
    done = Changes(
        acls=_accepted(changes.acls, acls),
        deleted_acls=_accepted(changes.deleted_acls, deleted),
        configs=_accepted(changes.configs, configs),
        quotas=_accepted(changes.quotas, quotas),
    )
    return Outcome(done, tuple(dict.fromkeys(words)))


def _accepted(changes: Sequence[C], refusals: Sequence[str]) -> tuple[C, ...]:
    return tuple(each for each, why in zip(changes, refusals, strict=True) if not why)


def _create(cluster: Cluster, session: AdminSession | Untold, acls: Sequence[Acl]) -> list[str]:
    special = [a for a in acls if a.resource in _SPECIAL_RESOURCES or a.operation in _SPECIAL_OPERATIONS]
    refused = cluster.security.create_acls([a for a in acls if a not in set(special)])
    if isinstance(session, Untold):
        refused |= dict.fromkeys(special, session.why)
    elif special:
        refused |= session.write.create_acls(special)
    return [refused[acl] for acl in acls]


def _delete(session: AdminSession | Untold, acls: Sequence[Acl]) -> list[str]:
    if isinstance(session, Untold):
        return [session.why for _ in acls]
    refused = session.write.delete_acls(acls)
    return [refused[acl] for acl in acls]


def _set_quotas(session: AdminSession | Untold, changes: Sequence[QuotaChange]) -> list[str]:
    if isinstance(session, Untold):
        return [session.why for _ in changes]
    by_entity: dict[QuotaKey, dict[str, float | None]] = {}
    for change in changes:
        entity, name = change.key
        by_entity.setdefault(entity, {})[name] = change.after
    refused = session.write.set_quotas(by_entity) if by_entity else {}
    return [refused[change.key[0]] for change in changes]


def _set(cluster: Cluster, session: AdminSession | Untold, change: ConfigChange) -> str:
    """Set a config; return '' or the reason why the target refused it."""
    values = {change.name: change.after}
    if change.kind != "client metrics" and not change.of_all:
        security = cluster.security
        put = security.set_broker_config if change.kind == "broker" else security.set_group_config
        return put(change.owner, change.name, change.after)
    if isinstance(session, Untold):
        return session.why
    if change.of_all:
        return session.write.set_default_broker_configs(values)[change.name]
    return session.write.set_client_metrics(change.owner, values)


def _owner(change: ConfigChange) -> str:
    return "all brokers" if change.of_all else f"{change.kind} {change.owner}"


# `restore --with`: ACLs, dynamic configs, quotas and users, compared with the target's and set there.
#
# ACLs come before the topics are made: no record lies open between its restore and its ACL.


_PARTS: dict[str, MetadataPartName] = {
    "acls": "acls",
    "configs": "broker_configs",
    "quotas": "client_quotas",
    "users": "scram_users",
}


def compare_settings(store: Store, plan: RestorePlan, cluster: Cluster) -> SettingsReport | None:
    """Return the settings of `plan.settings` to set; None if none was selected. `RefusedError` if the restore
    point or the target lacks the settings."""
    if not plan.settings:
        return None
    if not plan.restore_point:
        raise UsageError("a folder of the Java tool holds no settings", "leave out --with")
    archive = open_archive(store)
    point = archive.restore_point(plan.restore_point)
    metadata = archive.metadata(point)
    names = TargetNames(
        topics={t.source: t.target for t in plan.topics},
        skipped_topics={t.name for t in point.topics} - {t.source for t in plan.topics},
        groups={g.source: g.target for g in plan.groups},
    )
    current = capture_settings(cluster, names.groups.values())
    brokers = cluster.security.brokers()
    for part in plan.settings:
        _check_part_known(_PARTS[part], f"restore point {plan.restore_point}", metadata)
        _check_part_known(_PARTS[part], cluster.connection.address, current)
    unused = any(entry.part == "acls" and entry.reason == "not there" for entry in current.not_carried)
    if "acls" in plan.settings and metadata.acls and unused:
        raise RefusedError(
            f"{cluster.connection.address} has no authorizer, so it takes no ACLs", "leave acls out of --with"
        )
    if isinstance(brokers, Untold):
        raise RefusedError(f"{brokers.why}", "leave configs out of --with")
    target = TargetSettings(
        address=cluster.connection.properties["bootstrap.servers"],
        brokers=brokers,
        acls=current.acls or (),
        scram_users=current.scram_users or (),
        broker_configs=current.broker_configs or (),
        group_configs=current.group_configs or (),
        client_quotas=current.client_quotas or (),
        client_metrics=current.client_metrics or (),
    )
    return plan_settings(plan.settings, metadata, names, target)


def _check_part_known(part: MetadataPartName, where: str, source: Metadata | Reading) -> None:
    if getattr(source, part) is None:
        why = reason_for(part, source.not_carried) or "it was made by an older version of kbackup"
        raise RefusedError(
            f"{where} does not tell its {LABELS[part]}: {why}", "grant that right, or leave them out of --with"
        )


def apply_settings(
    cluster: Cluster, captures: SettingsCaptures, cluster_id: str, planned: SettingsReport | None
) -> SettingsReport | None:
    """Apply the planned settings, after the target's own are captured. Refused ones are in `missing`, and the
    restore continues."""
    if planned is None:
        return None
    if planned.changes:
        captures.write("restore", cluster_id, planned.changes)
    outcome = write_changes(cluster, planned.changes)
    return msgspec.structs.replace(
        planned,
        acls=outcome.done.acls,
        configs=outcome.done.configs,
        quotas=outcome.done.quotas,
        missing=(*planned.missing, *outcome.refused),
    )


# Undo the settings that a restore changed. `undo_of` is pure.


class SettingsUndone(Member, frozen=True, kw_only=True):
    """`undone` are the numbers of the captures that were put back, `number` is the number of the capture that was
    stored first (0: nothing was changed). `missing`: what the target refused."""

    restore_id: str
    target_cluster_id: str
    undone: tuple[int, ...]
    number: int
    changes: Changes
    missing: tuple[str, ...] = ()


def undo_of(captures: Sequence[SettingsBefore], now: Reading) -> Changes:
    """Return the changes that turn `now` back into the settings before the first of `captures`."""
    configs: dict[tuple[str, str, str], ConfigChange] = {}
    quotas: dict[object, QuotaChange] = {}
    made = {acl for capture in captures for acl in capture.changes.acls}
    for capture in captures:
        for config in capture.changes.configs:
            configs.setdefault(config.key, config)
        for quota in capture.changes.quotas:
            quotas.setdefault(quota.key, quota)
    has_configs, has_quotas = _configs(now), quota_values(now.client_quotas or ())
    return Changes(
        deleted_acls=tuple(acl for acl in now.acls or () if acl in made),
        configs=tuple(
            ConfigChange(
                kind=c.kind, owner=c.owner, name=c.name, before=has_configs.get(key), after=c.before, of_all=c.of_all
            )
            for key, c in configs.items()
            if has_configs.get(key) != c.before
        ),
        quotas=tuple(
            QuotaChange(entity=q.entity, name=q.name, before=has_quotas.get(q.key), after=q.before)
            for q in quotas.values()
            if has_quotas.get(q.key) != q.before
        ),
    )


def _configs(reading: Reading) -> dict[tuple[str, str, str], str | None]:
    """Return configs by `ConfigChange.key`."""
    values: dict[tuple[str, str, str], str | None] = {}
    for config in reading.broker_configs or ():
        values["broker", "" if config.broker is None else str(config.broker), config.name] = config.value
    for of_group in reading.group_configs or ():
        values["group", of_group.group, of_group.name] = of_group.value
    for metrics in reading.client_metrics or ():
        for name, value in metrics.configs.items():
            values["client metrics", metrics.name, name] = value
    return values


def undo_settings(cluster: Cluster, state: Store, restore_id: str, dry_run: bool) -> SettingsUndone:
    """Put back the settings before the restore; the current ones are captured first. A second undo changes only
    settings that were changed meanwhile."""
    cluster_id, _ = cluster.connect()
    captures = SettingsCaptures(state, restore_id)
    pending = [before for before in captures.every() if before.by == "restore"]
    if not pending:
        raise UsageError(
            f"restore {restore_id} changed no settings",
            "check the restore id, and --state if its files are not in the archive",
        )
    other = next((c.target_cluster_id for c in pending if c.target_cluster_id != cluster_id), "")
    if other:
        raise RefusedError(
            f"restore {restore_id} changed settings of cluster {other}, this is {cluster_id}",
            "name that cluster as the target",
        )
    groups = {c.owner for before in pending for c in before.changes.configs if c.kind == "group"}
    now = capture_settings(cluster, groups, cluster_id)
    _check_known(pending, now, cluster.connection.address)
    changes = undo_of(pending, now)
    undone = tuple(before.number for before in pending)
    if dry_run or not changes:
        return SettingsUndone(
            restore_id=restore_id, target_cluster_id=cluster_id, undone=undone, number=0, changes=changes
        )
    number = captures.write("undo", cluster_id, changes)
    outcome = write_changes(cluster, changes)
    return SettingsUndone(
        restore_id=restore_id,
        target_cluster_id=cluster_id,
        undone=undone,
        number=number,
        changes=outcome.done,
        missing=outcome.refused,
    )


def _check_known(pending: Sequence[SettingsBefore], now: Reading, address: str) -> None:
    """Raise `RefusedError` if the target's current value of a changed setting is not known."""
    changed = [before.changes for before in pending]
    kinds = {config.kind for each in changed for config in each.configs}
    needed: dict[MetadataPartName, bool] = {
        "acls": any(each.acls for each in changed),
        "client_quotas": any(each.quotas for each in changed),
        "broker_configs": "broker" in kinds,
        "group_configs": "group" in kinds,
        "client_metrics": "client metrics" in kinds,
    }
    for part, matters in needed.items():
        if matters and getattr(now, part) is None:
            why = reason_for(part, now.not_carried) or "nobody knows why"
            raise RefusedError(f"{address} does not tell its {LABELS[part]}: {why}", "give that right, and try again")
