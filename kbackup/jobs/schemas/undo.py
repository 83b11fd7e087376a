"""Undo what a restore wrote to a schema registry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from kbackup.archive.models import Member
from kbackup.archive.restores.journal import RestoreJournal
from kbackup.archive.schemas import Place
from kbackup.errors import RefusedError, UsageError
from kbackup.jobs.schemas.documents import SchemaMap, begun_plan, schema_map
from kbackup.jobs.schemas.plan import PlannedSchema, SchemaPlan, Subjects, locate, numbered, read_subjects, text_digest
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
    """The schemas of a restore: the plan that it was about to write, and the map that it noted at its end (None: it did
    not come to its end)."""

    plan: SchemaPlan
    done: SchemaMap | None


def undo_schemas(registry: SchemaRegistry, restore_id: str, begun: BegunSchemas, confirm: bool) -> SchemasUndone:
    """Undo what a restore has written to the registry; without `confirm` write nothing."""
    plan, done = begun
    # Settings go back first: a mode READONLY that the restore set would refuse the deletions.
    settings, left = _put_settings_back(registry, plan, done is None, confirm)
    there = read_subjects(registry, plan.schemas)
    found = _restored(registry, plan, done, there)
    others = _versions_of_others(plan, found, there)
    if done is None:
        left += _unclear(restore_id, plan, found, others)
    deleted: dict[str, None] = {}  # in order
    # The newest first: a registry refuses to delete a schema that another one refers to.
    for step in reversed(plan.created):
        at = found.get(step.schema.place)
        if at is None:
            continue  # it was never registered, or somebody has deleted it since
        name = f"{at.subject} version {at.version}"
        if name in deleted or _was_there_before(plan, step, at):
            continue
        if not _is_as_made(registry, step.schema, at, found):
            left.append(f"{name} is left: it is not the schema that the restore registered")
            continue
        newer = _first_newer(others[at.subject], at)
        if newer is not None:
            left.append(f"{name} is left: others have registered version {newer} since")
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


def _versions_of_others(
    plan: SchemaPlan, found: Mapping[Place, SchemaVersion], there: Subjects
) -> dict[str, list[SchemaVersion]]:
    """Return by subject the versions that came since the plan was made, and are none of the restore's."""
    ours = {at.place for at in found.values()}
    others: dict[str, list[SchemaVersion]] = {}
    for subject, versions in there.items():
        before = plan.versions.get(subject, ())
        others[subject] = []
        for number, version in versions.items():
            if (subject, number) not in ours and number not in before:
                others[subject].append(version)
    return others


def _first_newer(others: Iterable[SchemaVersion], at: SchemaVersion) -> int | None:
    """Return the first active version that others registered after one of the restore's; None if there is none.

    What they registered was checked for compatibility with that one, so that one must stay."""
    numbers: list[int] = []
    for other in others:
        if other.version > at.version and other.state == "active":
            numbers.append(other.version)
    return min(numbers, default=None)


def _was_there_before(plan: SchemaPlan, step: PlannedSchema, at: SchemaVersion) -> bool:
    """Return whether a version is as it was before the restore, so that nothing is to be undone."""
    if step.action == "undelete":
        return at.state != "active"
    return at.version in plan.versions.get(at.subject, ())


def _unclear(
    restore_id: str,
    plan: SchemaPlan,
    found: Mapping[Place, SchemaVersion],
    others: Mapping[str, Sequence[SchemaVersion]],
) -> list[str]:
    """Return in words the versions that may be of a restore that has not ended, but differ from its plan."""
    # By the text alone: the registry may have added rules or metadata, by which the content is another one.
    lost_texts: set[tuple[str, str]] = set()
    for step in plan.created:
        version = step.schema
        if version.place not in found:
            lost_texts.add((version.subject, text_digest(version)))
    unclear: list[str] = []
    for versions in others.values():
        for version in versions:
            if (version.subject, text_digest(version)) in lost_texts:
                unclear.append(
                    f"{version.subject} version {version.version} is left: it may be of this restore, with metadata or "
                    f"rules of the registry's own; end the restore with --restore-id {restore_id}, then undo it"
                )
    return unclear


def _is_as_made(
    registry: SchemaRegistry, planned: SchemaVersion, at: SchemaVersion, found: Mapping[Place, SchemaVersion]
) -> bool:
    """Return whether the registry has at a place the schema that was planned there."""
    if text_digest(planned) == text_digest(at):
        return True
    # The registry may tell a text in a form of its own: then it is asked where it has the planned one.
    asked = numbered(planned, found)
    if asked is None:
        return False
    known = registry.lookup(asked)
    return known is not None and known.version == at.version


def _delete(registry: SchemaRegistry, at: SchemaVersion, permanent: bool) -> None:
    """Delete a version softly; if `permanent`, for good, which registries do only after a soft deletion."""
    if at.state == "active":
        registry.delete(at.subject, at.version)
    if permanent:
        registry.delete(at.subject, at.version, permanent=True)


def _restored(
    registry: SchemaRegistry, plan: SchemaPlan, done: SchemaMap | None, there: Subjects
) -> dict[Place, SchemaVersion]:
    """Return what the target has of a restore, by its place in the plan. The versions of a restore that did not end are
    found by their content, or in `same` also by their ids: the registry may have added something to them."""
    found: dict[Place, SchemaVersion] = {}
    if done is not None:
        for restored in done.schemas:
            at = there[restored.subject].get(restored.target_version)
            if at is not None and at.id == restored.id:
                found[restored.subject, restored.version] = at
        return found
    # No map says which versions the registry gave them.
    planned = plan.schemas
    found = locate(registry, planned, "map", there)
    if plan.mode == "same":
        for version in planned:
            at = there[version.subject].get(version.version)
            if at is not None and at.id == version.id:
                found[version.place] = at
    return found


def _put_settings_back(
    registry: SchemaRegistry, plan: SchemaPlan, is_open: bool, confirm: bool
) -> tuple[list[str], list[str]]:
    """Put back the settings that are still as the restore set them; return the subjects whose settings were put back,
    and in words the settings that were not. `is_open`: the restore did not end, so settings that it makes for a while
    may be there. Without `confirm` nothing is written."""
    after = {settings.subject: settings for settings in plan.after}
    touched = {"", *after, *plan.created_subjects}
    put_back: list[str] = []
    left: list[str] = []
    # The registry as a whole, which has the name '', comes last: one that goes back to the mode READONLY takes no more
    # settings of subjects.
    for before in reversed(plan.before):
        if before.subject not in touched:
            continue
        name = before.subject or "all"
        is_planned = before.subject in after
        ours = after.get(before.subject, before)
        now = registry.settings(before.subject)
        is_unchecked = is_open and before.subject in unchecked_subjects(plan) and now.config == UNCHECKED
        is_importing = is_open and plan.mode == "same" and now.mode == "IMPORT"
        wanted = now
        if now.config == ours.config or is_unchecked:
            wanted = replace(wanted, config=before.config)
        if now.mode == ours.mode or is_importing:
            wanted = replace(wanted, mode=before.mode)
        if wanted != now:
            if confirm:
                set_settings(registry, wanted, now)
            if is_planned or now.mode == "IMPORT":
                put_back.append(name)
        if wanted != before and is_planned:
            left.append(f"the settings of {name} are left: others have changed them")
    return put_back, left


@dataclass(frozen=True)
class SchemasUndo:
    """Deletes the versions that a restore created in the registry and that are still as it made them, the newest first,
    and puts settings back (an `UndoSteps`)."""

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


# Settings that a restore makes in the registry while it writes.

UNCHECKED = {"compatibilityLevel": "NONE"}


def unchecked_subjects(plan: SchemaPlan) -> set[str]:
    """Return the new subjects, which are not checked for compatibility while `map` writes them."""
    if plan.mode != "map":
        return set()
    return plan.created_subjects - plan.versions.keys()


def set_settings(registry: SchemaRegistry, wanted: SubjectSettings, now: SubjectSettings) -> None:
    if wanted.config != now.config:
        registry.set_config(wanted.subject, wanted.config)
    if wanted.mode != now.mode:
        registry.set_mode(wanted.subject, wanted.mode, force=True)
