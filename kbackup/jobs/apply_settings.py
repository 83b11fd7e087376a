"""`restore --with`: ACLs, dynamic configs and users, compared with the target's and set there.

ACLs come before the topics are made: no record lies open between its restore and its ACL.
"""

from __future__ import annotations

from kbackup.archive.models import Metadata
from kbackup.archive.reader import open_archive
from kbackup.errors import RefusedError, UsageError
from kbackup.jobs.capture_settings import ACLS, BROKER_CONFIGS, USERS, Settings, capture_settings
from kbackup.jobs.restore_plan import RestorePlan
from kbackup.jobs.settings_acls import Names, acl_words
from kbackup.jobs.settings_plan import (
    ConfigChange,
    SettingsReport,
    Target,
    default_command,
    plan_settings,
)
from kbackup.kafka.admin import Cluster
from kbackup.kafka.security_types import AclRule, Untold
from kbackup.metadata.entities import NotCarried
from kbackup.store.base import Store

_ACLS_AT_ONCE = 500
_PARTS = {"acls": ACLS, "configs": BROKER_CONFIGS, "users": USERS}


def compare_settings(store: Store, plan: RestorePlan, cluster: Cluster) -> SettingsReport | None:
    """What is to be set of `plan.settings`; None where nothing was asked for. `RefusedError` where the restore point
    or the target can't tell what it has."""
    if not plan.settings:
        return None
    if not plan.restore_point:
        raise UsageError("a folder of the Java tool holds no settings", "leave out --with")
    archive = open_archive(store)
    point = archive.restore_point(plan.restore_point)
    metadata = archive.metadata(point)
    names = Names(
        topics={t.source: t.target for t in plan.topics},
        left_out={t.name for t in point.topics} - {t.source for t in plan.topics},
        groups={g.source: g.target for g in plan.groups},
    )
    there = capture_settings(cluster.security, names.groups.values())
    brokers = cluster.security.brokers()
    for part in plan.settings:
        _check_known(_PARTS[part], f"restore point {plan.restore_point}", metadata)
        _check_known(_PARTS[part], cluster.connection.address, there)
    if "acls" in plan.settings and metadata.acls and any(n.what == ACLS for n in there.not_carried):
        raise RefusedError(
            f"{cluster.connection.address} has no authorizer, so it takes no ACLs", "leave acls out of --with"
        )
    if isinstance(brokers, Untold):
        raise RefusedError(f"{brokers.why}", "leave configs out of --with")
    target = Target(
        address=cluster.connection.properties["bootstrap.servers"],
        brokers=brokers,
        acls=there.acls or (),
        scram_users=there.scram_users or (),
        broker_configs=there.broker_configs or (),
        group_configs=there.group_configs or (),
    )
    return plan_settings(plan.settings, metadata, names, target)


def _check_known(what: str, where: str, told: Metadata | Settings) -> None:
    known = {ACLS: told.acls, BROKER_CONFIGS: told.broker_configs, USERS: told.scram_users}
    if known[what] is None:
        reasons: tuple[NotCarried, ...] = told.not_carried
        why = next((n.why for n in reasons if n.what == what), "it was made by an older version of kbackup")
        raise RefusedError(f"{where} does not tell its {what}: {why}", "leave them out of --with")


def apply_settings(cluster: Cluster, planned: SettingsReport | None) -> SettingsReport | None:
    """Set what is planned; what the target refuses is in `missing`, and the restore goes on."""
    if planned is None:
        return None
    security = cluster.security
    rules = {AclRule(*(getattr(acl, f) for f in AclRule._fields)): acl for acl in planned.acls}
    refused: dict[AclRule, str] = {}
    waiting = list(rules)
    for at in range(0, len(waiting), _ACLS_AT_ONCE):
        refused |= security.create_acls(waiting[at : at + _ACLS_AT_ONCE])
    missing = [f"ACL {acl_words(rules[rule])} was not made: {why}" for rule, why in refused.items() if why]
    said = {change: _set(cluster, change) for change in planned.configs}
    return SettingsReport(
        acls=tuple(acl for rule, acl in rules.items() if not refused[rule]),
        configs=tuple(change for change, why in said.items() if not why),
        not_carried=planned.not_carried,
        warnings=planned.warnings,
        missing=(*planned.missing, *missing, *dict.fromkeys(filter(None, said.values()))),
    )


def _set(cluster: Cluster, change: ConfigChange) -> str:
    """'' or what is to be told: once for what all brokers refuse."""
    put = cluster.security.set_broker_config if change.kind == "broker" else cluster.security.set_group_config
    why = put(change.owner, change.name, change.after)
    if not why:
        return ""
    if change.of_all:
        command = default_command(
            cluster.connection.properties["bootstrap.servers"], change.name, change.after
        )
        return f"config {change.name} of all brokers is to be set by hand, brokers refuse it: {command}"
    return f"config {change.name} of {change.kind} {change.owner} was not set: {why}"
