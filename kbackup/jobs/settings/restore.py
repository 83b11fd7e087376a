"""`restore --with`: ACLs, dynamic configs, quotas and users, compared with the target's and set there.

ACLs come before the topics are made: no record lies open between its restore and its ACL.
"""

from __future__ import annotations

import msgspec

from kbackup.archive.models import Metadata
from kbackup.archive.reader import open_archive
from kbackup.archive.restores.plan import RestorePlan
from kbackup.errors import RefusedError, UsageError
from kbackup.jobs.capture.settings import capture_settings
from kbackup.jobs.settings.acls import Names
from kbackup.jobs.settings.before import SettingsCaptures
from kbackup.jobs.settings.plan import SettingsReport, Target, plan_settings
from kbackup.jobs.settings.write import write_changes
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.admin.security_types import Untold
from kbackup.metadata.entities import MetadataPartName
from kbackup.metadata.parts import LABELS, reason_for
from kbackup.metadata.reading import Reading
from kbackup.store.base import Store

_PARTS: dict[str, MetadataPartName] = {
    "acls": "acls",
    "configs": "broker_configs",
    "quotas": "client_quotas",
    "users": "scram_users",
}


def compare_settings(store: Store, plan: RestorePlan, cluster: Cluster) -> SettingsReport | None:
    """Return the settings of `plan.settings` to set; None where none was selected. `RefusedError` where the restore
    point or the target lacks the settings."""
    if not plan.settings:
        return None
    if not plan.restore_point:
        raise UsageError("a folder of the Java tool holds no settings", "leave out --with")
    archive = open_archive(store)
    point = archive.restore_point(plan.restore_point)
    metadata = archive.metadata(point)
    names = Names(
        topics={t.source: t.target for t in plan.topics},
        skipped_topics={t.name for t in point.topics} - {t.source for t in plan.topics},
        groups={g.source: g.target for g in plan.groups},
    )
    current = capture_settings(cluster, names.groups.values())
    brokers = cluster.security.brokers()
    for part in plan.settings:
        _check_known(_PARTS[part], f"restore point {plan.restore_point}", metadata)
        _check_known(_PARTS[part], cluster.connection.address, current)
    unused = any(entry.part == "acls" and entry.reason == "not there" for entry in current.not_carried)
    if "acls" in plan.settings and metadata.acls and unused:
        raise RefusedError(
            f"{cluster.connection.address} has no authorizer, so it takes no ACLs", "leave acls out of --with"
        )
    if isinstance(brokers, Untold):
        raise RefusedError(f"{brokers.why}", "leave configs out of --with")
    target = Target(
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


def _check_known(part: MetadataPartName, where: str, source: Metadata | Reading) -> None:
    if getattr(source, part) is None:
        why = reason_for(part, source.not_carried) or "it was made by an older version of kbackup"
        raise RefusedError(
            f"{where} does not tell its {LABELS[part]}: {why}",
            "grant that right, or leave them out of --with",
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
