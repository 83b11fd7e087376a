"""Write the planned schemas to a registry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

from msgspec.structs import replace

from kbackup.archive import layout
from kbackup.archive.restores.journal import RestoreJournal
from kbackup.archive.schemas import Place
from kbackup.errors import KbackupError, RefusedError
from kbackup.jobs.schemas.documents import RestoredSchema, SchemaMap, SchemasBefore, begun_plan, schema_map
from kbackup.jobs.schemas.plan import Mode, SchemaPlan, locate, numbered, read_subjects, settings_words
from kbackup.jobs.schemas.undo import UNCHECKED, BegunSchemas, set_settings, unchecked_subjects, undo_schemas
from kbackup.schemas.base import SchemaVersion, context_of
from kbackup.util.system import in_threads
from kbackup.util.text import join_names
from kbackup.util.times import now

if TYPE_CHECKING:
    from kbackup.kafka.schema_registry import SchemaRegistry  # it needs an extra


class OwnIdsError(RefusedError):
    """The registry does not keep ids or GUIDs. What was written is undone."""


def apply_schemas(registry: SchemaRegistry, journal: RestoreJournal, plan: SchemaPlan) -> SchemaMap:
    """Write a plan, or go on with the one that was begun under the same id; return the map of ids.

    A registry that gives another id than `same` asks for, or no GUIDs though records carry some, ends it, undone, with
    `OwnIdsError`."""
    restore_id = journal.restore_id
    begun = begun_plan(journal)
    if begun is None:
        plan.check()
        before = SchemasBefore(restore_id=restore_id, created_at=now(), plan=plan)
        journal.create(layout.SCHEMAS_BEFORE, before)
        begun = begun_plan(journal) or plan  # of another attempt, if that has just begun
    if _work(begun) != _work(plan):
        raise RefusedError(f"restore {restore_id} was begun with other schemas", "use another --restore-id")
    done = schema_map(journal)
    if done is not None:
        if lost := lost_since(registry, done.places):
            raise RefusedError(f"of restore {restore_id}, {lost[0]}", "use another --restore-id")
        return done
    try:
        found, refused = _register(registry, begun)
        made = _map(restore_id, begun, found)
        _check_guids(registry, begun, made)
    except OwnIdsError as error:
        undone = undo_schemas(registry, restore_id, BegunSchemas(begun, None), confirm=True)
        left = join_names(undone.left, 5, "; ")
        raise OwnIdsError(f"{error.message}; left behind: {left}" if left else error.message, error.hint) from error
    made = replace(made, not_set=(*refused, *_apply_settings(registry, begun)))
    if journal.create(layout.SCHEMAS, made):
        return made
    return schema_map(journal) or made  # of another attempt, which was sooner


def _check_guids(registry: SchemaRegistry, plan: SchemaPlan, made: SchemaMap) -> None:
    if plan.mode == "map" and plan.unmapped == "keep":
        return  # such records stay as they are, and are counted
    for guid in plan.guids:
        if guid not in made.guids or (plan.mode == "same" and made.guids[guid] != guid):
            raise OwnIdsError(
                f"records name schemas by GUID, and the schema registry {registry.url} has none for {guid}",
                "restore into a registry that gives GUIDs, or with --schemas none",
            )


def _work(plan: SchemaPlan) -> object:
    return plan.registry, plan.mode, plan.prefix, [(step.source, step.schema) for step in plan.steps]


def lost_since(registry: SchemaRegistry, places: Iterable[tuple[str, int, int]]) -> list[str]:
    """Return in words which subjects and versions have not, or no longer, these ids."""
    due = list(places)
    found = in_threads(lambda place: registry.version(*place[:2]), due)
    return [
        f"schema {subject} version {number}, id {schema_id}, is {'not there' if at is None else f'id {at.id} now'}"
        for (subject, number, schema_id), at in zip(due, found, strict=True)
        if at is None or at.id != schema_id
    ]


def _apply_settings(registry: SchemaRegistry, plan: SchemaPlan) -> tuple[str, ...]:
    before, refused = {s.subject: s for s in plan.before}, list[str]()
    for after in plan.after:
        try:
            set_settings(registry, after, before[after.subject])
        except RefusedError as error:
            refused.append(f"{settings_words(after)} of {after.subject or 'all subjects'}: {error.message}")
    return tuple(refused)


def _map(restore_id: str, plan: SchemaPlan, found: Mapping[Place, SchemaVersion]) -> SchemaMap:
    steps = sorted(plan.steps, key=lambda step: context_of(step.source))
    pairs = [(step, step.schema, found[step.schema.subject, step.schema.version]) for step in steps]
    first = pairs[::-1]  # an id means the default context's
    contexts: dict[str, dict[int, int]] = {}
    for step, v, at in pairs:
        if context_of(step.source):
            contexts.setdefault(context_of(step.source), {})[v.id] = at.id
    return SchemaMap(
        restore_id=restore_id,
        registry=plan.registry,
        mode=plan.mode,
        prefix=plan.prefix,
        restored_at=now(),
        ids={v.id: at.id for _, v, at in first},
        guids={v.guid: at.guid for _, v, at in first if v.guid and at.guid},
        schemas=tuple(
            RestoredSchema(
                source=step.source, version=v.version, subject=v.subject, target_version=at.version, id=at.id
            )
            for step, v, at in pairs
        ),
        parts=plan.parts,
        uncovered=plan.uncovered,
        contexts=contexts,
        judged=plan.judged,
        unmapped=plan.unmapped,
        archived=plan.archived,
    )


def _register(registry: SchemaRegistry, plan: SchemaPlan) -> tuple[dict[Place, SchemaVersion], list[str]]:
    """Create what is not there yet; return what the target has of each version, by its place in the plan, and which
    versions it did not delete again."""
    refused = list[str]()
    wanted = [step.schema for step in plan.steps]
    with ExitStack() as back:
        _open(registry, plan, back)
        found = locate(registry, wanted, plan.mode, read_subjects(registry, wanted))
        for v in wanted:
            at = found.get((v.subject, v.version))
            if at is None or (at.state == "deleted" and v.state == "active"):
                found[v.subject, v.version] = _create(registry, v, plan.mode, found)
        kept = {(v.subject, found[v.subject, v.version].version) for v in wanted if v.state == "active"}
        for v in (step.schema for step in reversed(plan.created)):
            at = found[v.subject, v.version]
            if at.state == "active" and (v.subject, at.version) not in kept:
                try:
                    registry.delete(v.subject, at.version)
                except RefusedError as error:  # others refer to it
                    refused.append(f"{v.subject} version {at.version} is not deleted again: {error.message}")
    return found, refused


def _open(registry: SchemaRegistry, plan: SchemaPlan, back: ExitStack) -> None:
    """Let the registry take what the plan creates, until `back` closes: `same` needs mode IMPORT. In `map` a new
    subject is not checked for compatibility, which may have been another one at the time."""
    before = {s.subject: s for s in plan.before}
    for subject in sorted(unchecked_subjects(plan)):
        back.callback(_put_back, registry.set_config, subject, before[subject].config)
        registry.set_config(subject, UNCHECKED)

    def open_for_import(subject: str) -> None:
        back.callback(_put_back, registry.set_mode, subject, before[subject].mode, True)
        registry.set_mode(subject, "IMPORT", force=True)

    subjects = sorted({step.schema.subject for step in plan.created}) if plan.mode == "same" else []
    for subject in subjects:
        try:
            open_for_import(subject)
        except KbackupError:
            if subject != subjects[0]:
                raise
            back.pop_all()
            break
    else:
        return
    try:
        open_for_import("")
    except KbackupError as error:
        hint = "give the right to set modes, or use --schemas map"
        raise RefusedError(f"the mode IMPORT can't be set: {error.message}", hint) from error


def _put_back(set_value: Callable[..., None], subject: str, *value: object) -> None:
    try:
        set_value(subject, *value)
    except KbackupError as error:
        raise KbackupError(
            f"what was set for {subject or 'all subjects'} to write schemas is not put back: {error.message}",
            "run the command again, or 'kbackup schemas undo', with the same --restore-id",
        ) from error


def _create(
    registry: SchemaRegistry, v: SchemaVersion, mode: Mode, found: Mapping[Place, SchemaVersion]
) -> SchemaVersion:
    keep = mode == "same"
    asked = v if keep else numbered(v, found)
    if asked is None:
        raise RefusedError(f"what schema {v.subject} version {v.version} refers to is not there", "run it again")
    got = registry.register(asked, keep)
    at = registry.version(v.subject, v.version) if keep else registry.lookup(asked)
    if keep and (at is None or {got, at.id} != {v.id}):
        raise OwnIdsError(
            f"the schema registry {registry.url} gives ids and versions of its own: {v.subject} version {v.version} "
            f"with id {v.id} got id {got}",
            "use --schemas map",
        )
    if at is None or at.id != got:  # a registry may add rules and metadata to it
        numbers = [n for subject, n in registry.places(got, context_of(v.subject)) if subject == v.subject]
        at = registry.version(v.subject, max(numbers)) if numbers else at
    if at is None or at.id != got:
        told = "it does not have it" if at is None else f"it has it under id {at.id}"
        raise RefusedError(
            f"the schema registry {registry.url} registers {v.subject} as id {got}, but {told}", "look into its log"
        )
    return at
