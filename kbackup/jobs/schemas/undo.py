"""Undo what a restore wrote to a schema registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from kbackup.archive.models import Member
from kbackup.archive.restores.journal import RestoreJournal
from kbackup.archive.schemas import Place
from kbackup.errors import RefusedError, UsageError
from kbackup.jobs.schemas.documents import SchemaMap, begun_plan, schema_map
from kbackup.jobs.schemas.plan import SchemaPlan, Subjects, locate, numbered, read_subjects, text_digest
from kbackup.schemas.base import SchemaVersion, SubjectSettings

if TYPE_CHECKING:
    from kbackup.kafka.schema_registry import SchemaRegistry  # it needs an extra


class SchemasUndone(Member, frozen=True, kw_only=True):
    """`deleted` are versions, `settings` subjects whose settings were put back; `left` says what is not undone, and
    why. Unless `confirmed`, it is a plan, and nothing was written. `unproven` are documents of which nothing proves
    that the restore wrote them."""

    restore_id: str
    registry: str
    deleted: tuple[str, ...]
    settings: tuple[str, ...]
    left: tuple[str, ...]
    confirmed: bool = True
    unproven: tuple[str, ...] = ()


class BegunSchemas(NamedTuple):
    """The schemas of a restore: what it was about to write, and the map that it noted at its end (None: it did not come
    to its end)."""

    plan: SchemaPlan
    done: SchemaMap | None


def undo_schemas(registry: SchemaRegistry, restore_id: str, begun: BegunSchemas, confirm: bool) -> SchemasUndone:
    """Undo what a restore has written to the registry; without `confirm` write nothing."""
    plan, done = begun
    settings, left = _put_settings_back(registry, plan, done is None, confirm)
    there = read_subjects(registry, [step.schema for step in plan.steps])
    found = _restored(registry, plan, done, there)
    ours = {(at.subject, at.version) for at in found.values()}
    others: dict[str, list[SchemaVersion]] = {}
    for subject, versions in there.items():
        before = plan.versions.get(subject, ())
        others[subject] = [v for n, v in versions.items() if (subject, n) not in ours and n not in before]
    if done is None:
        left += _unclear(restore_id, plan, found, others)
    deleted = dict[str, None]()
    for step in reversed(plan.created):
        at = found.get((step.schema.subject, step.schema.version))
        if at is None:
            continue
        name = f"{at.subject} version {at.version}"
        was_there = at.version in plan.versions.get(at.subject, ())
        if name in deleted or (at.state != "active" if step.action == "undelete" else was_there):
            continue
        if not _is_as_made(registry, step.schema, at, found):
            left.append(f"{name} is left: it is not the schema that the restore registered")
            continue
        if newer := [v.version for v in others[at.subject] if v.version > at.version and v.state == "active"]:
            left.append(f"{name} is left: others have registered version {min(newer)} since")
            continue
        try:
            if confirm:
                _delete(registry, at, permanent=step.action == "create")
            deleted[name] = None
        except RefusedError as error:
            left.append(f"{name} is left: {error.message}")
    return SchemasUndone(
        restore_id=restore_id,
        registry=plan.registry,
        deleted=tuple(deleted),
        settings=tuple(settings),
        left=tuple(left),
        confirmed=confirm,
    )


def _unclear(
    restore_id: str,
    plan: SchemaPlan,
    found: Mapping[Place, SchemaVersion],
    others: Mapping[str, Sequence[SchemaVersion]],
) -> list[str]:
    """Return what may be of a restore that has not ended, but differs from its plan."""
    lost = [step.schema for step in plan.created if (step.schema.subject, step.schema.version) not in found]
    texts = {(v.subject, text_digest(v)) for v in lost}
    unclear: list[str] = []
    for versions in others.values():
        for v in versions:
            if (v.subject, text_digest(v)) in texts:
                unclear.append(
                    f"{v.subject} version {v.version} is left: it may be of this restore, with metadata or rules of "
                    f"the registry's own; end the restore with --restore-id {restore_id}, then undo it"
                )
    return unclear


def _is_as_made(
    registry: SchemaRegistry, planned: SchemaVersion, at: SchemaVersion, found: Mapping[Place, SchemaVersion]
) -> bool:
    """Return whether the registry has at a place the schema that was planned there. It may tell a text in a form of its
    own: then it is asked where it has the planned one."""
    if text_digest(planned) == text_digest(at):
        return True
    asked = numbered(planned, found)
    known = registry.lookup(asked) if asked is not None else None
    return known is not None and known.version == at.version


def _delete(registry: SchemaRegistry, at: SchemaVersion, permanent: bool) -> None:
    """Delete a version; `permanent` also where it is deleted already, which comes first."""
    if at.state == "active":
        registry.delete(at.subject, at.version)
    if permanent:
        registry.delete(at.subject, at.version, permanent=True)


def _restored(
    registry: SchemaRegistry, plan: SchemaPlan, done: SchemaMap | None, there: Subjects
) -> dict[Place, SchemaVersion]:
    """Return what the target has of a restore. If that did not end, it is found by its content, or in `same` also by
    its ids: the registry may have added something to it."""
    if done is not None:
        found, ids = {}, [(s.subject, s.version, s.target_version, s.id) for s in done.schemas]
    else:
        wanted = [step.schema for step in plan.steps]
        found = locate(registry, wanted, "map", there)
        ids = [(v.subject, v.version, v.version, v.id) for v in wanted] if plan.mode == "same" else []
    for subject, version, number, schema_id in ids:
        at = there[subject].get(number)
        if at is not None and at.id == schema_id:
            found[subject, version] = at
    return found


def _put_settings_back(
    registry: SchemaRegistry, plan: SchemaPlan, is_open: bool, confirm: bool
) -> tuple[list[str], list[str]]:
    """Put back what is still as the restore set it; return the subjects, and what is not put back. `is_open`: the
    restore did not end, so what it sets for a while may be there. Without `confirm` nothing is written."""
    after = {s.subject: s for s in plan.after}
    touched = {"", *after, *(step.schema.subject for step in plan.created)}
    settings, left = list[str](), list[str]()
    for before in (s for s in reversed(plan.before) if s.subject in touched):
        at, ours, name = registry.settings(before.subject), after.get(before.subject, before), before.subject or "all"
        is_unchecked = is_open and before.subject in unchecked_subjects(plan) and at.config == UNCHECKED
        is_importing = is_open and plan.mode == "same" and at.mode == "IMPORT"
        config = before.config if at.config == ours.config or is_unchecked else at.config
        mode = before.mode if at.mode == ours.mode or is_importing else at.mode
        wanted = replace(before, config=config, mode=mode)
        if wanted != at:
            if confirm:
                set_settings(registry, wanted, at)
            settings += [name] if before.subject in after or at.mode == "IMPORT" else []
        if wanted != before and before.subject in after:
            left.append(f"the settings of {name} are left: others have changed them")
    return settings, left


@dataclass(frozen=True)
class SchemasUndo:
    """Deletes what a restore created in the registry and is still as it was made, the newest first, and puts settings
    back (an `UndoSteps`)."""

    registry: SchemaRegistry
    journal: RestoreJournal

    def plan(self) -> BegunSchemas:
        """Read what the restore has written. `RefusedError` if that was to another registry."""
        restore_id = self.journal.restore_id
        plan = begun_plan(self.journal)
        if plan is None:
            raise UsageError(
                f"restore {restore_id} restored no schemas",
                "check the id, and --state if its files are not in the archive",
            )
        if plan.registry != self.registry.url:
            raise RefusedError(
                f"restore {restore_id} wrote to the schema registry {plan.registry}, this is {self.registry.url}",
                "name that one as the target",
            )
        return BegunSchemas(plan, schema_map(self.journal))

    def planned_report(self, planned: BegunSchemas) -> SchemasUndone:
        return undo_schemas(self.registry, self.journal.restore_id, planned, confirm=False)

    def carry_out(self, planned: BegunSchemas) -> SchemasUndone:
        return undo_schemas(self.registry, self.journal.restore_id, planned, confirm=True)


# What the restore sets in the registry while it writes.

UNCHECKED = {"compatibilityLevel": "NONE"}


def unchecked_subjects(plan: SchemaPlan) -> set[str]:
    """Return the new subjects, which are not checked for compatibility while `map` writes them."""
    return {step.schema.subject for step in plan.created} - plan.versions.keys() if plan.mode == "map" else set()


def set_settings(registry: SchemaRegistry, wanted: SubjectSettings, now: SubjectSettings) -> None:
    if wanted.config != now.config:
        registry.set_config(wanted.subject, wanted.config)
    if wanted.mode != now.mode:
        registry.set_mode(wanted.subject, wanted.mode, force=True)
