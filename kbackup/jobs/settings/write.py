"""Store the settings of a target, and make the planned changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

from msgspec.structs import replace

from kbackup.archive.models import Document, Metadata
from kbackup.archive.reader import open_archive
from kbackup.archive.restores.journal import NumberedCaptures
from kbackup.archive.restores.plan import RestorePlan
from kbackup.errors import RefusedError, UsageError
from kbackup.jobs.capture import capture_settings
from kbackup.jobs.settings.plan import (
    Changes,
    ConfigChange,
    QuotaChange,
    SettingsReport,
    TargetNames,
    acl_command,
    config_command,
    entity_words,
    plan_settings,
    quota_command,
)
from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.control.unavailable import Unavailable
from kbackup.metadata.entities import LABELS, MetadataPartName, QuotaKey, Reading, reason_for
from kbackup.store.base import Store

# The settings of a target before they are changed: restores/<id>/settings-before-<n>.json.
#
# Stored before each change, so that it can be undone; numbered from 1, created and never replaced. It holds no secret:
# sensitive configs are never changed.


class SettingsBefore(Document, frozen=True, kw_only=True):
    """restores/<id>/settings-before-<number>.json: `changes` were about to be made; each has the value `before`. ACLs
    that were to be made were not there, those that were to be deleted were."""

    format: Literal["kbackup-settings-before"] = "kbackup-settings-before"
    restore_id: str
    number: int
    by: Literal["restore", "undo"]
    captured_at: str
    target_cluster_id: str
    changes: Changes


class SettingsCaptures(NumberedCaptures[SettingsBefore]):
    kind, name = SettingsBefore, "settings-before"


# Make changes.

C = TypeVar("C")


def write_changes(cluster: Cluster, changes: Changes) -> tuple[Changes, tuple[str, ...]]:
    """Make each change; return those that were made, and in words those that the target refused. Deletions of ACLs
    come last."""
    created = cluster.security.create_acls(changes.acls)
    acls = [created[acl] for acl in changes.acls]
    configs = [_set(cluster, change) for change in changes.configs]
    quotas = _set_quotas(cluster, changes.quotas)
    failed = cluster.security.delete_acls(changes.deleted_acls)
    deleted = [failed[acl] for acl in changes.deleted_acls]
    servers = cluster.connection.properties["bootstrap.servers"]
    words: list[str] = []

    def accepted(asked: Sequence[C], refusals: Sequence[str], told: Callable[[C], tuple[str, str]]) -> tuple[C, ...]:
        """Return the changes that were made. `told`: what was not, and the command that makes the change."""
        for change, why in zip(asked, refusals, strict=True):
            if why:
                what, command = told(change)
                words.append(f"{what}: {why}; set it by hand: {command}")
        return tuple(change for change, why in zip(asked, refusals, strict=True) if not why)

    def config_words(c: ConfigChange) -> tuple[str, str]:
        owner = "all brokers" if c.of_all else f"{c.kind} {c.owner}"
        return f"config {c.name} of {owner} was not set", config_command(servers, c)

    done = Changes(
        acls=accepted(changes.acls, acls, lambda a: (f"ACL {a.words} was not made", acl_command(servers, a, "--add"))),
        configs=accepted(changes.configs, configs, config_words),
        quotas=accepted(
            changes.quotas,
            quotas,
            lambda q: (f"quota {q.name} of {entity_words(q.entity)} was not set", quota_command(servers, q)),
        ),
        deleted_acls=accepted(
            changes.deleted_acls,
            deleted,
            lambda a: (f"ACL {a.words} was not deleted", acl_command(servers, a, "--remove")),
        ),
    )
    return done, tuple(dict.fromkeys(words))


def _set_quotas(cluster: Cluster, changes: Sequence[QuotaChange]) -> list[str]:
    """Set quotas; return for each '' or the reason why the target refused it."""
    by_entity: dict[QuotaKey, dict[str, float | None]] = {}
    for change in changes:
        entity, name = change.key
        by_entity.setdefault(entity, {})[name] = change.after
    refused = cluster.security.set_quotas(by_entity)
    return [refused[change.key[0]] for change in changes]


def _set(cluster: Cluster, change: ConfigChange) -> str:
    """Set a config; return '' or the reason why the target refused it."""
    configs = cluster.dynamic_configs
    if change.of_all:
        return configs.set_on_all_brokers(change.name, change.after)
    if change.kind == "broker":
        return configs.set_on_broker(int(change.owner), change.name, change.after)
    if change.kind == "group":
        return configs.set_on_group(change.owner, change.name, change.after)
    return configs.set_client_metrics(change.owner, {change.name: change.after})


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
    topics = {topic.source: topic.target for topic in plan.topics}
    groups = {group.source: group.target for group in plan.groups}
    skipped = {topic.name for topic in point.topics} - topics.keys()
    names = TargetNames(topics=topics, skipped_topics=skipped, groups=groups)
    current = capture_settings(cluster, names.groups.values())
    brokers = cluster.members.broker_ids()
    address, older = cluster.connection.address, "it was made by an older version of kbackup"
    hint = "grant that right, or leave them out of --with"
    for part in plan.settings:
        check_known(_PARTS[part], metadata, f"restore point {plan.restore_point}", older, hint)
        check_known(_PARTS[part], current, address, older, hint)
    unused = any(entry.part == "acls" and entry.reason == "not there" for entry in current.not_carried)
    if "acls" in plan.settings and metadata.acls and unused:
        raise RefusedError(f"{address} has no authorizer, so it takes no ACLs", "leave acls out of --with")
    if isinstance(brokers, Unavailable):
        raise RefusedError(f"{brokers.why}", "leave configs out of --with")
    servers = cluster.connection.properties["bootstrap.servers"]
    return plan_settings(plan.settings, metadata, names, current, brokers, servers)


def check_known(part: MetadataPartName, source: Metadata | Reading, where: str, otherwise: str, hint: str) -> None:
    """Raise `RefusedError` if `source` lacks a part; `otherwise` is the reason if it has none itself."""
    if getattr(source, part) is None:
        why = reason_for(part, source.not_carried) or otherwise
        raise RefusedError(f"{where} does not tell its {LABELS[part]}: {why}", hint)


def apply_settings(
    cluster: Cluster, captures: SettingsCaptures, cluster_id: str, planned: SettingsReport | None
) -> SettingsReport | None:
    """Apply the planned settings, after the target's own are captured. Refused ones are in `missing`, and the
    restore continues."""
    if planned is None:
        return None
    if planned.changes:
        captures.write("restore", cluster_id, changes=planned.changes)
    done, refused = write_changes(cluster, planned.changes)
    missing = (*planned.missing, *refused)
    return replace(planned, acls=done.acls, configs=done.configs, quotas=done.quotas, missing=missing)
