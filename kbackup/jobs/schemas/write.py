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
from kbackup.jobs.schemas.plan import Mode, PlannedSchema, SchemaPlan, locate, numbered, read_subjects, settings_words
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
    """Write a plan, or go on with the plan that was begun under the same id; return the map of ids.

    If the registry gives another id than `same` asks for, or no GUIDs though records carry some, all is undone, and
    `OwnIdsError` raised."""
    restore_id = journal.restore_id
    begun = _begin(journal, plan)
    if _work(begun) != _work(plan):
        raise RefusedError(f"restore {restore_id} was begun with other schemas", "use another --restore-id")
    done = schema_map(journal)
    if done is not None:
        # Records may carry the ids of this map already. If the registry has lost one, no new map can be made for them.
        lost = lost_since(registry, done.places)
        if lost:
            raise RefusedError(f"of restore {restore_id}, {lost[0]}", "use another --restore-id")
        return done
    try:
        found, refused = _register(registry, begun)
        made = _map(restore_id, begun, found)
        _check_guids(registry, begun, made)
    except OwnIdsError as error:
        undone = undo_schemas(registry, restore_id, BegunSchemas(begun, None), confirm=True)
        if not undone.left:
            raise
        left = join_names(undone.left, 5, "; ")
        raise OwnIdsError(f"{error.message}; left behind: {left}", error.hint) from error
    # Settings come after the schemas: a subject that gets the mode READONLY takes no more schemas.
    refused += _apply_settings(registry, begun)
    made = replace(made, not_set=tuple(refused))
    if journal.create(layout.SCHEMAS, made):
        return made
    return schema_map(journal) or made  # another attempt has noted its map sooner, and that one counts


def _begin(journal: RestoreJournal, plan: SchemaPlan) -> SchemaPlan:
    """Return the plan that counts: the stored one, if the restore was begun, or else this one, which is stored.

    The plan is stored before the first write to the registry. A run that is killed in between has created schemas, and
    the next one tells them by the plan from the schemas that were there before."""
    begun = begun_plan(journal)
    if begun is not None:
        return begun
    plan.check()
    before = SchemasBefore(restore_id=journal.restore_id, created_at=now(), plan=plan)
    journal.create(layout.SCHEMAS_BEFORE, before)
    return begun_plan(journal) or plan  # of another attempt, if that has just begun


def _check_guids(registry: SchemaRegistry, plan: SchemaPlan, made: SchemaMap) -> None:
    if plan.mode == "map" and plan.unmapped == "keep":
        return  # records with a GUID that the registry lacks stay as they are, and are counted
    for guid in plan.guids:
        new = made.guids.get(guid)
        if new is None or (plan.mode == "same" and new != guid):
            raise OwnIdsError(
                f"records name schemas by GUID, and the schema registry {registry.url} has none for {guid}",
                "restore into a registry that gives GUIDs, or with --schemas none",
            )


def _work(plan: SchemaPlan) -> object:
    """Return what two attempts at a restore must have in common. What the registry has may change in between."""
    schemas = [(step.source, step.schema) for step in plan.steps]
    return plan.registry, plan.mode, plan.prefix, schemas


def lost_since(registry: SchemaRegistry, places: Iterable[tuple[str, int, int]]) -> list[str]:
    """Return in words which subjects and versions have not, or no longer, these ids."""

    def read(place: tuple[str, int, int]) -> SchemaVersion | None:
        subject, number, _ = place
        return registry.version(subject, number)

    expected = list(places)
    found = in_threads(read, expected)
    lost: list[str] = []
    for (subject, number, schema_id), at in zip(expected, found, strict=True):
        name = f"schema {subject} version {number}, id {schema_id}"
        if at is None:
            lost.append(f"{name}, is not there")
        elif at.id != schema_id:
            lost.append(f"{name}, is id {at.id} now")
    return lost


def _apply_settings(registry: SchemaRegistry, plan: SchemaPlan) -> list[str]:
    """Set the planned settings; return in words the settings that the registry refused."""
    before = {settings.subject: settings for settings in plan.before}
    refused: list[str] = []
    for after in plan.after:
        try:
            set_settings(registry, after, before[after.subject])
        except RefusedError as error:
            # The schemas are there, and the records can be read: settings alone are no reason to end the restore.
            refused.append(f"{settings_words(after)} of {after.subject or 'all subjects'}: {error.message}")
    return refused


def _map(restore_id: str, plan: SchemaPlan, found: Mapping[Place, SchemaVersion]) -> SchemaMap:
    """Return the map of ids. `found` is what the target has of each version, by its place in the plan."""

    def context_of_source(step: PlannedSchema) -> str:
        return context_of(step.source)

    pairs: list[tuple[SchemaVersion, SchemaVersion]] = []
    contexts: dict[str, dict[int, int]] = {}
    schemas: list[RestoredSchema] = []
    for step in sorted(plan.steps, key=context_of_source):
        version = step.schema
        at = found[version.place]
        pairs.append((version, at))
        context = context_of(step.source)
        if context:
            contexts.setdefault(context, {})[version.id] = at.id
        restored = RestoredSchema(
            source=step.source, version=version.version, subject=version.subject, target_version=at.version, id=at.id
        )
        schemas.append(restored)
    ids: dict[int, int] = {}
    guids: dict[str, str] = {}
    # An id that several contexts have means the default context's. That one is first, so it is set last, and stays.
    for version, at in reversed(pairs):
        ids[version.id] = at.id
        if version.guid and at.guid:
            guids[version.guid] = at.guid
    return SchemaMap(
        restore_id=restore_id,
        registry=plan.registry,
        mode=plan.mode,
        prefix=plan.prefix,
        restored_at=now(),
        ids=ids,
        guids=guids,
        schemas=tuple(schemas),
        parts=plan.parts,
        uncovered=plan.uncovered,
        contexts=contexts,
        judged=plan.judged,
        unmapped=plan.unmapped,
        archived=plan.archived,
    )


def _register(registry: SchemaRegistry, plan: SchemaPlan) -> tuple[dict[Place, SchemaVersion], list[str]]:
    """Create the schemas that are not there yet; return what the target has of each version, by its place in the plan,
    and which versions it did not delete again."""
    wanted = plan.schemas
    with ExitStack() as back:
        _open(registry, plan, back)
        # The target is read anew: another attempt may have created schemas since the plan was made.
        found = locate(registry, wanted, plan.mode, read_subjects(registry, wanted))
        for version in wanted:
            at = found.get(version.place)
            if at is None or (at.state == "deleted" and version.state == "active"):
                found[version.place] = _create(registry, version, plan.mode, found)
        refused = _delete_again(registry, plan, found)
    return found, refused


def _delete_again(registry: SchemaRegistry, plan: SchemaPlan, found: Mapping[Place, SchemaVersion]) -> list[str]:
    """Delete the versions that are deleted in the restore point; return in words which were not deleted.

    They had to be created first, as records carry their ids. A version that refers to another goes before it."""
    # In `map` a deleted and an active version of the same content are one version on the target, which stays.
    kept: set[Place] = set()
    for step in plan.steps:
        version = step.schema
        if version.state == "active":
            kept.add((version.subject, found[version.place].version))
    refused: list[str] = []
    for step in reversed(plan.created):
        version = step.schema
        at = found[version.place]
        if at.state != "active" or (version.subject, at.version) in kept:
            continue
        try:
            registry.delete(version.subject, at.version)
        except RefusedError as error:  # others refer to it
            refused.append(f"{version.subject} version {at.version} is not deleted again: {error.message}")
    return refused


def _open(registry: SchemaRegistry, plan: SchemaPlan, back: ExitStack) -> None:
    """Let the registry take what the plan creates, until `back` closes.

    In `map`, new subjects are not checked for compatibility: the registry would check each version by the setting of
    today, which may have been another one at the time. `same` needs mode IMPORT."""
    before = {settings.subject: settings for settings in plan.before}
    for subject in sorted(unchecked_subjects(plan)):
        back.callback(_put_back, registry.set_config, subject, before[subject].config)
        registry.set_config(subject, UNCHECKED)
    if plan.mode != "same":
        return

    def open_for_import(subject: str) -> None:
        # The way back is noted first: a request that fails may have been carried out all the same.
        back.callback(_put_back, registry.set_mode, subject, before[subject].mode, True)
        registry.set_mode(subject, "IMPORT", force=True)

    subjects = sorted(plan.created_subjects)
    for subject in subjects:
        try:
            open_for_import(subject)
        except KbackupError:
            if subject != subjects[0]:
                raise
            # Some registries have no modes of single subjects. Then nothing is to be put back, and the whole registry
            # is opened.
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
            f"the settings of {subject or 'all subjects'} were changed to write schemas, and are not put back: "
            f"{error.message}",
            "run the command again, or 'kbackup schemas undo', with the same --restore-id",
        ) from error


def _create(
    registry: SchemaRegistry, version: SchemaVersion, mode: Mode, found: Mapping[Place, SchemaVersion]
) -> SchemaVersion:
    """Register a version; return it as the registry has it."""
    name = f"{version.subject} version {version.version}"
    if mode == "same":
        new_id = registry.register(version, True)
        # A registration is never believed: there are registries that accept mode IMPORT, and give an id of their own.
        at = registry.version(version.subject, version.version)
        if at is None or {new_id, at.id} != {version.id}:
            raise OwnIdsError(
                f"the schema registry {registry.url} gives ids and versions of its own: {name} with id {version.id} "
                f"got id {new_id}",
                "use --schemas map",
            )
        return at
    asked = numbered(version, found)
    if asked is None:
        raise RefusedError(f"what schema {name} refers to is not there", "run it again")
    new_id = registry.register(asked, False)
    at = registry.lookup(asked)
    if at is not None and at.id == new_id:
        return at
    # A registry may add rules and metadata to a schema, and then it does not find the schema without them.
    places = registry.places(new_id, context_of(version.subject))
    numbers = [number for subject, number in places if subject == version.subject]
    if numbers:
        at = registry.version(version.subject, max(numbers))
        if at is not None and at.id == new_id:
            return at
    problem = "it does not have it" if at is None else f"it has it under id {at.id}"
    raise RefusedError(
        f"the schema registry {registry.url} registers {version.subject} as id {new_id}, but {problem}",
        "look into its log",
    )
