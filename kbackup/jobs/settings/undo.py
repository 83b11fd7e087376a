"""Undo the settings that a restore changed. `undo_of` is pure."""

from __future__ import annotations

from collections.abc import Sequence

from kbackup.archive.models import Member
from kbackup.errors import RefusedError, UsageError
from kbackup.jobs.capture.settings import capture_settings
from kbackup.jobs.settings.before import SettingsBefore, SettingsCaptures
from kbackup.jobs.settings.changes import Changes, ConfigChange, QuotaChange, quota_values
from kbackup.jobs.settings.write import write_changes
from kbackup.kafka.admin.cluster import Cluster
from kbackup.metadata.entities import MetadataPartName
from kbackup.metadata.parts import LABELS, reason_for
from kbackup.metadata.reading import Reading
from kbackup.store.base import Store


class SettingsUndone(Member, frozen=True, kw_only=True):
    """`undone` are the numbers of the captures that were put back, `number` is that of the capture which was stored
    before (0: nothing was changed). `missing`: what the target refused."""

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
                kind=c.kind,
                owner=c.owner,
                name=c.name,
                before=has_configs.get(key),
                after=c.before,
                of_all=c.of_all,
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
    """Raise `RefusedError` where the target's current value of a changed setting is not known."""
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
            raise RefusedError(
                f"{address} does not tell its {LABELS[part]}: {why}", "give that right, and try again"
            )
