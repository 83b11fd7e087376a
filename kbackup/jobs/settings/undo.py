"""Undo the settings that a restore changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from kbackup.archive.models import Member
from kbackup.archive.restores.journal import RestoreJournal
from kbackup.archive.restores.plan import RestorePlan, check_same_target
from kbackup.errors import RefusedError, UsageError
from kbackup.jobs.capture import capture_settings
from kbackup.jobs.settings.documents import SettingsBefore, SettingsCaptures
from kbackup.jobs.settings.plan import (
    Changes,
    ConfigChange,
    ConfigKey,
    ConfigResourceType,
    QuotaChange,
    config_values,
    entity_words,
)
from kbackup.jobs.settings.while_filled import settling_changes, topics_to_settle
from kbackup.jobs.settings.write import check_known, write_changes
from kbackup.kafka.control.cluster import Cluster
from kbackup.metadata.differences import quota_values
from kbackup.metadata.entities import Acl, MetadataPartName, QuotaKey, Reading
from kbackup.util.text import join_names


class SettingsUndone(Member, frozen=True, kw_only=True):
    """`undone` are the numbers of the captures that were put back, `number` is the number of the capture that was
    stored first (0: nothing was changed). `missing`: changes that the target refused, and settings that are no longer
    as the restore left them, which stay. Unless `confirmed`, it is a plan, and nothing was written. `unproven` are
    documents of which nothing proves that the restore wrote them."""

    restore_id: str
    target_cluster_id: str
    undone: tuple[int, ...]
    number: int
    changes: Changes
    missing: tuple[str, ...] = ()
    confirmed: bool = True
    unproven: tuple[str, ...] = ()


def undo_of(captures: Sequence[SettingsBefore], now: Reading) -> tuple[Changes, list[str]]:
    """Return the changes that turn `now` back into the settings before the first of `captures`, and in words the
    settings that are no longer as the last of them left them. Pure."""
    captured = [capture.changes for capture in captures]
    configs, other_configs = _undo_configs(captured, now)
    quotas, other_quotas = _undo_quotas(captured, now)
    made: set[Acl] = set()
    for changes in captured:
        made.update(changes.acls)
    acls = tuple(acl for acl in now.acls or () if acl in made)
    return Changes(deleted_acls=acls, configs=configs, quotas=quotas), other_configs + other_quotas


# A restore that was resumed has captured settings more than once. A setting goes back to the value in its first
# capture, and its last capture tells whether it is still as the restore left it.


def _undo_configs(captured: Sequence[Changes], now: Reading) -> tuple[tuple[ConfigChange, ...], list[str]]:
    first: dict[ConfigKey, ConfigChange] = {}
    last: dict[ConfigKey, str | None] = {}
    for changes in captured:
        for config in changes.configs:
            first.setdefault(config.key, config)
            last[config.key] = config.after
    current = config_values(now)
    undone: list[ConfigChange] = []
    left: list[str] = []
    for key, config in first.items():
        value = current.get(key)
        if value == config.before:
            continue
        if value == last[key]:
            undone.append(replace(config, before=value, after=config.before))
        else:
            name = f"config {config.name} of {config.owner_words}"
            left.append(f"{name} stays: it is {value} now, the restore set {last[key]}")
    return tuple(undone), left


def _undo_quotas(captured: Sequence[Changes], now: Reading) -> tuple[tuple[QuotaChange, ...], list[str]]:
    first: dict[tuple[QuotaKey, str], QuotaChange] = {}
    last: dict[tuple[QuotaKey, str], float | None] = {}
    for changes in captured:
        for quota in changes.quotas:
            first.setdefault(quota.key, quota)
            last[quota.key] = quota.after
    current = quota_values(now.client_quotas or ())
    undone: list[QuotaChange] = []
    left: list[str] = []
    for key, quota in first.items():
        value = current.get(key)
        if value == quota.before:
            continue
        if value == last[key]:
            undone.append(replace(quota, before=value, after=quota.before))
        else:
            name = f"quota {quota.name} of {entity_words(quota.entity)}"
            left.append(f"{name} stays: it is {value} now, the restore set {last[key]}")
    return tuple(undone), left


@dataclass(frozen=True)
class PlannedSettingsUndo:
    """The captures to put back, the changes that do it, and in words the settings that stay."""

    cluster_id: str
    captures: Sequence[SettingsBefore]
    changes: Changes
    left: Sequence[str]


@dataclass(frozen=True)
class SettingsUndo:
    """Puts back the settings that the target had before a restore (an `UndoSteps`). A second undo changes nothing."""

    cluster: Cluster
    journal: RestoreJournal

    def plan(self) -> PlannedSettingsUndo:
        """Plan the changes. `RefusedError` for captures of another cluster, and for captures that the restore's own
        plan does not bear out."""
        cluster_id, _ = self.cluster.connect()
        restore_id = self.journal.restore_id
        # What an undo captured before its own changes is for reading, not for a second undo.
        captures = [before for before in SettingsCaptures(self.journal).every() if before.by == "restore"]
        begun = self.journal.begun()
        filled = begun is not None and bool(topics_to_settle(begun))
        if not captures and not filled:
            raise UsageError(
                f"restore {restore_id} changed no settings",
                "check the restore id, and --state if its files are not in the archive",
            )
        for before in captures:
            if before.target_cluster_id != cluster_id:
                target = before.target_cluster_id
                raise RefusedError(
                    f"restore {restore_id} changed settings of cluster {target}, this is {cluster_id}",
                    "name that cluster as the target",
                )
        changed = [before.changes for before in captures]
        check_planned(begun, changed, restore_id)
        now = self._settings_now(changed, cluster_id)
        changes, left = undo_of(captures, now)
        if begun is not None and filled:
            check_same_target(begun, cluster_id)
            settled = settling_changes(self.cluster, begun)
            changes = replace(changes, configs=(*changes.configs, *settled))
        return PlannedSettingsUndo(cluster_id, captures, changes, left)

    def _settings_now(self, changed: Sequence[Changes], cluster_id: str) -> Reading:
        """Return the settings that the target has now. `RefusedError` if the target doesn't tell settings of a kind
        that was changed."""
        kinds: set[ConfigResourceType] = set()
        groups: set[str] = set()
        has_acls = has_quotas = False
        for changes in changed:
            has_acls = has_acls or bool(changes.acls)
            has_quotas = has_quotas or bool(changes.quotas)
            for config in changes.configs:
                kinds.add(config.kind)
                if config.kind == "group":
                    groups.add(config.owner)
        now = capture_settings(self.cluster, groups, cluster_id)
        needed: dict[MetadataPartName, bool] = {
            "acls": has_acls,
            "client_quotas": has_quotas,
            "broker_configs": "broker" in kinds,
            "group_configs": "group" in kinds,
            "client_metrics": "client metrics" in kinds,
        }
        address = self.cluster.connection.address
        for part, is_needed in needed.items():
            if is_needed:
                check_known(part, now, address, "nobody knows why", "give that right, and try again")
        return now

    def planned_report(self, planned: PlannedSettingsUndo) -> SettingsUndone:
        return self._report(planned, number=0, changes=planned.changes, refused=(), confirmed=False)

    def carry_out(self, planned: PlannedSettingsUndo) -> SettingsUndone:
        """Make the planned changes, after what they change is captured."""
        if not planned.changes:
            return self._report(planned, number=0, changes=planned.changes, refused=(), confirmed=True)
        captures = SettingsCaptures(self.journal)
        number = captures.write("undo", planned.cluster_id, changes=planned.changes)
        done, refused = write_changes(self.cluster, planned.changes)
        return self._report(planned, number=number, changes=done, refused=refused, confirmed=True)

    def _report(
        self, planned: PlannedSettingsUndo, *, number: int, changes: Changes, refused: Sequence[str], confirmed: bool
    ) -> SettingsUndone:
        return SettingsUndone(
            restore_id=self.journal.restore_id,
            target_cluster_id=planned.cluster_id,
            undone=tuple(before.number for before in planned.captures),
            number=number,
            changes=changes,
            missing=(*planned.left, *refused),
            confirmed=confirmed,
        )


def check_planned(plan: RestorePlan | None, changed: Sequence[Changes], restore_id: str) -> None:
    """Raise `RefusedError` if settings were captured of a kind that the plan of the restore does not set: somebody else
    has written that capture. The restore wrote its plan before its first capture."""
    planned = set(plan.settings) if plan is not None else set()
    for changes in changed:
        captured = {
            "acls": bool(changes.acls or changes.deleted_acls),
            "configs": bool(changes.configs),
            "quotas": bool(changes.quotas),
        }
        foreign = [kind for kind, has_changes in captured.items() if has_changes and kind not in planned]
        if foreign:
            raise RefusedError(
                f"a capture of restore {restore_id} names {join_names(foreign, 3)}, which the restore's plan does not",
                "find out who wrote it; the restore's plan is plan.json beside it",
            )
