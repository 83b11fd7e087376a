"""Compare the settings of a restore point with those of a target, and make the planned changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from msgspec.structs import replace

from kbackup.archive.models import Metadata
from kbackup.archive.reader import open_archive
from kbackup.archive.restores.plan import RestorePlan
from kbackup.errors import RefusedError, UsageError
from kbackup.jobs.capture import capture_settings
from kbackup.jobs.settings.documents import SettingsCaptures
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
from kbackup.metadata.entities import LABELS, Acl, MetadataPartName, QuotaKey, Reading, reason_for
from kbackup.store.base import Store
from kbackup.util.text import plural

# Make changes.

C = TypeVar("C")


@dataclass
class _Outcome(Generic[C]):
    """The changes of one kind that the target made, and in words the changes that it refused."""

    made: list[C] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def note(self, change: C, refusal: str, failure: str, command: str) -> None:
        """Note a change: it was made if `refusal` is empty. `failure` says what did not happen, and `command` is one
        that makes the change."""
        if refusal:
            self.refused.append(f"{failure}: {refusal}; set it by hand: {command}")
        else:
            self.made.append(change)


def write_changes(cluster: Cluster, changes: Changes) -> tuple[Changes, tuple[str, ...]]:
    """Make each change; return the changes that were made, and in words the changes that the target refused. Deletions
    of ACLs come last."""
    servers = cluster.connection.properties["bootstrap.servers"]
    created, not_created = _create_acls(cluster, changes.acls, servers)
    configs, not_configured = _set_configs(cluster, changes.configs, servers)
    quotas, no_quotas = _set_quotas(cluster, changes.quotas, servers)
    deleted, not_deleted = _delete_acls(cluster, changes.deleted_acls, servers)
    done = Changes(acls=created, configs=configs, quotas=quotas, deleted_acls=deleted)
    refused = not_created + not_configured + no_quotas + not_deleted
    return done, tuple(dict.fromkeys(refused))


def _create_acls(cluster: Cluster, acls: Sequence[Acl], servers: str) -> tuple[tuple[Acl, ...], list[str]]:
    refusals = cluster.security.create_acls(acls)
    outcome = _Outcome[Acl]()
    for acl in acls:
        outcome.note(acl, refusals[acl], f"ACL {acl.words} was not made", acl_command(servers, acl, "--add"))
    return tuple(outcome.made), outcome.refused


def _delete_acls(cluster: Cluster, acls: Sequence[Acl], servers: str) -> tuple[tuple[Acl, ...], list[str]]:
    refusals = cluster.security.delete_acls(acls)
    outcome = _Outcome[Acl]()
    for acl in acls:
        outcome.note(acl, refusals[acl], f"ACL {acl.words} was not deleted", acl_command(servers, acl, "--remove"))
    return tuple(outcome.made), outcome.refused


def _set_configs(
    cluster: Cluster, changes: Sequence[ConfigChange], servers: str
) -> tuple[tuple[ConfigChange, ...], list[str]]:
    outcome = _Outcome[ConfigChange]()
    for change in changes:
        refusal = _set(cluster, change)
        failure = f"config {change.name} of {change.owner_words} was not set"
        outcome.note(change, refusal, failure, config_command(servers, change))
    return tuple(outcome.made), outcome.refused


def _set_quotas(
    cluster: Cluster, changes: Sequence[QuotaChange], servers: str
) -> tuple[tuple[QuotaChange, ...], list[str]]:
    # One request has all quotas of an entity, and brokers accept or refuse them together.
    by_entity: dict[QuotaKey, dict[str, float | None]] = {}
    for change in changes:
        entity, name = change.key
        by_entity.setdefault(entity, {})[name] = change.after
    refusals = cluster.security.set_quotas(by_entity)
    outcome = _Outcome[QuotaChange]()
    for change in changes:
        entity, _ = change.key
        failure = f"quota {change.name} of {entity_words(change.entity)} was not set"
        outcome.note(change, refusals[entity], failure, quota_command(servers, change))
    return tuple(outcome.made), outcome.refused


def _set(cluster: Cluster, change: ConfigChange) -> str:
    """Set a config; return '' or the reason why the target refused it."""
    configs = cluster.dynamic_configs
    if change.of_all:
        return configs.set_on_all_brokers(change.name, change.after)
    if change.kind == "broker":
        return configs.set_on_broker(int(change.owner), change.name, change.after)
    if change.kind == "group":
        return configs.set_on_group(change.owner, change.name, change.after)
    if change.kind == "topic":
        errors = cluster.topic_admin.alter_configs({change.owner: {change.name: change.after}})
        return errors[change.owner].message if errors else ""
    return configs.set_client_metrics(change.owner, {change.name: change.after})


# `restore --with`: ACLs, dynamic configs, quotas and users, compared with the target's and set there.
#
# ACLs are set before the topics are made, so that no record can be read by anybody between its restore and its ACL.

_PARTS: dict[str, MetadataPartName] = {
    "acls": "acls",
    "configs": "broker_configs",
    "quotas": "client_quotas",
    "users": "scram_users",
}


@dataclass(frozen=True)
class ComparedSettings:
    """The settings to set on a target. `refusal` is the error of selected settings that the target can't take at all:
    the plan is shown first, and nothing is written."""

    report: SettingsReport
    refusal: RefusedError | None = None


def compare_settings(store: Store, plan: RestorePlan, cluster: Cluster) -> ComparedSettings | None:
    """Return the settings of `plan.settings` to set; None if none was selected. `RefusedError` if the restore
    point or the target lacks the settings."""
    if not plan.settings:
        return None
    if not plan.restore_point:
        raise UsageError("a folder of the Java tool holds no settings", "leave out --with")
    archive = open_archive(store)
    point = archive.restore_point(plan.restore_point)
    metadata = archive.metadata(point)
    topics = plan.targets
    groups = {group.source: group.target for group in plan.groups}
    skipped = {topic.name for topic in point.topics} - topics.keys()
    names = TargetNames(topics=topics, skipped_topics=skipped, groups=groups)
    current = capture_settings(cluster, names.groups.values())
    brokers = cluster.members.broker_ids()
    address = cluster.connection.address
    older = "it was made by an older version of kbackup"
    hint = "grant that right, or leave them out of --with"
    for part in plan.settings:
        check_known(_PARTS[part], metadata, f"restore point {plan.restore_point}", older, hint)
        check_known(_PARTS[part], current, address, older, hint)
    if isinstance(brokers, Unavailable):
        raise RefusedError(f"{brokers.why}", "leave configs out of --with")
    selected = plan.settings
    refusal: RefusedError | None = None
    if "acls" in selected and metadata.acls and _has_no_authorizer(current):
        selected = tuple(part for part in selected if part != "acls")
        refusal = _no_authorizer(address, len(metadata.acls), plan.restore_point, selected)
    servers = cluster.connection.properties["bootstrap.servers"]
    report = plan_settings(selected, metadata, names, current, brokers, servers)
    return ComparedSettings(report, refusal)


def _no_authorizer(address: str, acls: int, point: int, others: Sequence[str]) -> RefusedError:
    """Return the error of ACLs for a target that takes none; `others` are the other selected settings."""
    without = f"give --with {','.join(others)}" if others else "leave --with out"
    return RefusedError(
        f"{address} has no authorizer, so it takes no ACLs: {plural(acls, 'ACL')} of restore point {point} can't be "
        "set",
        f"to restore without them, {without}; or set authorizer.class.name on its brokers first",
    )


def _has_no_authorizer(current: Reading) -> bool:
    # A cluster without an authorizer answers that it has no ACLs: the capture notes them as not there.
    return any(lacking.part == "acls" and lacking.reason == "not there" for lacking in current.not_carried)


def check_known(part: MetadataPartName, source: Metadata | Reading, where: str, otherwise: str, hint: str) -> None:
    """Raise `RefusedError` if `source` lacks a part. The error gives the reason that `source` notes, or `otherwise`."""
    if getattr(source, part) is None:
        why = reason_for(part, source.not_carried) or otherwise
        raise RefusedError(f"{where} does not tell its {LABELS[part]}: {why}", hint)


def apply_settings(
    cluster: Cluster, captures: SettingsCaptures, cluster_id: str, planned: SettingsReport | None
) -> SettingsReport | None:
    """Apply the planned settings, after the target's own are captured. Settings that the target refuses are in
    `missing`, and the restore continues."""
    if planned is None:
        return None
    if planned.changes:
        captures.write("restore", cluster_id, changes=planned.changes)
    done, refused = write_changes(cluster, planned.changes)
    missing = (*planned.missing, *refused)
    return replace(planned, acls=done.acls, configs=done.configs, quotas=done.quotas, missing=missing)
