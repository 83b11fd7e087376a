"""Write the planned schemas to a registry, and undo it.

restores/<id>/schemas-before.json is created before the first write and has the plan; restores/<id>/schemas.json is
created at the end. Neither is ever replaced: whoever resumes a killed restore has its plan, and a restore has one map.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

from kbackup.archive import layout
from kbackup.archive.models import D, Document, Member, dump, load
from kbackup.archive.schemas import Place
from kbackup.errors import AlreadyExistsError, KbackupError, NotFoundError, RefusedError, UsageError
from kbackup.formats.schema_ids import Part
from kbackup.jobs.schemas.plan import Mode, SchemaPlan, active_versions, locate, located, numbered, settings_words
from kbackup.schemas.base import SchemaVersion, SubjectSettings, context_of
from kbackup.store.base import Store
from kbackup.util.system import in_threads
from kbackup.util.text import join_names
from kbackup.util.times import now

if TYPE_CHECKING:
    from kbackup.kafka.schema_registry import SchemaRegistry  # it needs an extra

_UNCHECKED = {"compatibilityLevel": "NONE"}


class SchemasBefore(Document, frozen=True, kw_only=True):
    """restores/<id>/schemas-before.json"""

    format: Literal["kbackup-schemas-before"] = "kbackup-schemas-before"
    restore_id: str
    created_at: str
    plan: SchemaPlan


class RestoredSchema(Member, frozen=True, kw_only=True):
    """`version` of `source` in the restore point is `target_version` of `subject` now."""

    source: str
    version: int
    subject: str
    target_version: int
    id: int


class SchemaMap(Document, frozen=True, kw_only=True):
    """restores/<id>/schemas.json: `ids` and `guids` that records carry, and what they are on the target. `parts` has
    which of keys and values name schemas, by topic of the source. `not_set` are settings and deletions that the
    registry refused."""

    format: Literal["kbackup-restored-schemas"] = "kbackup-restored-schemas"
    restore_id: str
    registry: str
    mode: Mode
    prefix: str
    restored_at: str
    ids: dict[int, int]
    guids: dict[str, str]
    schemas: tuple[RestoredSchema, ...]
    parts: dict[str, tuple[Part, ...]] = msgspec.field(default_factory=dict)
    not_set: tuple[str, ...] = ()

    @property
    def places(self) -> list[tuple[str, int, int]]:
        """Return the subjects, versions and ids that the registry has since."""
        return [(each.subject, each.target_version, each.id) for each in self.schemas]


# Apply.


class OwnIdsError(RefusedError):
    """The registry does not keep ids or GUIDs. What was written is undone."""


def _read(state: Store, restore_id: str, kind: type[D], name: str) -> D | None:
    key = layout.restore_key(restore_id, name)
    try:
        return load(kind, state.get(key), key)
    except NotFoundError:
        return None


def begun_plan(state: Store, restore_id: str) -> SchemaPlan | None:
    """Return the plan of a restore that has begun to write schemas."""
    before = _read(state, restore_id, SchemasBefore, layout.SCHEMAS_BEFORE)
    return None if before is None else before.plan


def schema_map(state: Store, restore_id: str) -> SchemaMap | None:
    """Return the map of a restore whose schemas are all there."""
    return _read(state, restore_id, SchemaMap, layout.SCHEMAS)


def apply_schemas(registry: SchemaRegistry, state: Store, restore_id: str, plan: SchemaPlan) -> SchemaMap:
    """Write a plan, or go on with the one that was begun under the same id; return the map of ids.

    A registry that gives another id than `same` asks for, or no GUIDs though records carry some, ends it, undone, with
    `OwnIdsError`."""
    begun = begun_plan(state, restore_id)
    if begun is None:
        plan.check()
        before = SchemasBefore(restore_id=restore_id, created_at=now(), plan=plan)
        with suppress(AlreadyExistsError):  # another attempt has just begun
            state.put_new(layout.restore_key(restore_id, layout.SCHEMAS_BEFORE), dump(before))
        begun = begun_plan(state, restore_id) or plan
    if _work(begun) != _work(plan):
        raise RefusedError(f"restore {restore_id} was begun with other schemas", "use another --restore-id")
    if (done := schema_map(state, restore_id)) is not None:
        _check_there(registry, done)
        return done
    try:
        found, refused = _register(registry, begun)
        made = _map(restore_id, begun, found)
        _check_guids(registry, begun, made)
    except OwnIdsError as error:
        left = join_names(undo_schemas(registry, state, restore_id).left, 5, "; ")
        raise OwnIdsError(f"{error.message}; left behind: {left}" if left else error.message, error.hint) from error
    made = replace(made, not_set=(*refused, *_apply_settings(registry, begun)))
    try:
        state.put_new(layout.restore_key(restore_id, layout.SCHEMAS), dump(made))
    except AlreadyExistsError:  # by another attempt
        return schema_map(state, restore_id) or made
    return made


def _check_guids(registry: SchemaRegistry, plan: SchemaPlan, made: SchemaMap) -> None:
    same = {guid: guid for guid in plan.guids} if plan.mode == "same" else made.guids
    if lost := [guid for guid in plan.guids if guid not in made.guids or made.guids[guid] != same[guid]]:
        raise OwnIdsError(
            f"records name schemas by GUID, and the schema registry {registry.url} has none for {lost[0]}",
            "restore into a registry that gives GUIDs, or with --schemas none",
        )


def _work(plan: SchemaPlan) -> object:
    return plan.registry, plan.mode, plan.prefix, [(step.source, step.schema) for step in plan.steps]


def _check_there(registry: SchemaRegistry, done: SchemaMap) -> None:
    if lost := lost_since(registry, done.places):
        raise RefusedError(f"of restore {done.restore_id}, {lost[0]}", "use another --restore-id")


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
            _set(registry, after, before[after.subject])
        except RefusedError as error:
            refused.append(f"{settings_words(after)} of {after.subject or 'all subjects'}: {error.message}")
    return tuple(refused)


def _set(registry: SchemaRegistry, wanted: SubjectSettings, now: SubjectSettings) -> None:
    if wanted.config != now.config:
        registry.set_config(wanted.subject, wanted.config)
    if wanted.mode != now.mode:
        registry.set_mode(wanted.subject, wanted.mode, force=True)


def _map(restore_id: str, plan: SchemaPlan, found: Mapping[Place, SchemaVersion]) -> SchemaMap:
    ids, guids, schemas = dict[int, int](), dict[str, str](), list[RestoredSchema]()
    for step in sorted(plan.steps, key=lambda step: context_of(step.source)):  # an id means the default context's
        v, at = step.schema, found[step.schema.subject, step.schema.version]
        ids.setdefault(v.id, at.id)
        if v.guid and at.guid:
            guids.setdefault(v.guid, at.guid)
        numbers = {"version": v.version, "target_version": at.version}
        schemas.append(RestoredSchema(source=step.source, subject=v.subject, id=at.id, **numbers))
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
    )


def _register(registry: SchemaRegistry, plan: SchemaPlan) -> tuple[dict[Place, SchemaVersion], list[str]]:
    """Create what is not there yet; return what the target has of each version, by its place in the plan, and which
    versions it did not delete again."""
    found: dict[Place, SchemaVersion] = {}
    refused: list[str] = []
    with ExitStack() as back:
        _open(registry, plan, back)
        active = active_versions(registry, [step.schema for step in plan.steps])
        for v in (step.schema for step in plan.steps):
            at = locate(registry, v, plan.mode, found, active[v.subject])
            if at is None or (at.state == "deleted" and v.state == "active"):
                at = _create(registry, v, plan.mode, found)
                active[v.subject].add(at.version)
            found[v.subject, v.version] = at
        for v in (step.schema for step in reversed(plan.created)):
            at = found[v.subject, v.version]
            if v.state != "active" and at.version in active[v.subject]:
                try:
                    registry.delete(v.subject, at.version, permanent=False)
                except RefusedError as error:  # others refer to it
                    refused.append(f"{v.subject} version {at.version} is not deleted again: {error.message}")
    return found, refused


def _open(registry: SchemaRegistry, plan: SchemaPlan, back: ExitStack) -> None:
    """Let the registry take what the plan creates, until `back` closes: `same` needs mode IMPORT. In `map` a new
    subject is not checked for compatibility, which may have been another one at the time."""
    before = {s.subject: s for s in plan.before}
    subjects = sorted({step.schema.subject for step in plan.created})
    if plan.mode == "map":
        for subject in (each for each in subjects if each not in plan.versions):
            back.callback(_put_back, registry.set_config, subject, before[subject].config)
            registry.set_config(subject, _UNCHECKED)
        return
    for subject in subjects:
        back.callback(_put_back, registry.set_mode, subject, before[subject].mode, True)
        try:
            registry.set_mode(subject, "IMPORT", force=True)
        except KbackupError:
            if subject != subjects[0]:
                raise
            back.pop_all()
            back.callback(_put_back, registry.set_mode, "", before[""].mode, True)
            try:
                registry.set_mode("", "IMPORT", force=True)
            except KbackupError as error:
                hint = "give the right to set modes, or use --schemas map"
                raise RefusedError(f"the mode IMPORT can't be set: {error.message}", hint) from error
            return


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
    asked = v if mode == "same" else numbered(v, found)
    if asked is None:
        raise RefusedError(f"what schema {v.subject} version {v.version} refers to is not there", "run it again")
    got = registry.register(asked, keep=mode == "same")
    at = registry.version(v.subject, v.version) if mode == "same" else registry.lookup(asked)
    if mode == "map" and (at is None or at.id != got):  # a registry may add rules and metadata to it
        numbers = [n for subject, n in registry.places(got, context_of(v.subject)) if subject == v.subject]
        at = registry.version(v.subject, max(numbers)) if numbers else at
    if mode == "same" and (at is None or {got, at.id} != {v.id}):
        raise OwnIdsError(
            f"the schema registry {registry.url} gives ids and versions of its own: {v.subject} version {v.version} "
            f"with id {v.id} got id {got}",
            "use --schemas map",
        )
    if at is None or at.id != got:
        told = "it does not have it" if at is None else f"it has it under id {at.id}"
        raise RefusedError(
            f"the schema registry {registry.url} registers {v.subject} as id {got}, but {told}", "look into its log"
        )
    return at


# Undo.


class SchemasUndone(Member, frozen=True, kw_only=True):
    """`deleted` are versions, `settings` subjects whose settings were put back; `left` says what is not undone, and
    why."""

    restore_id: str
    registry: str
    deleted: tuple[str, ...]
    settings: tuple[str, ...]
    left: tuple[str, ...]


def undo_schemas(registry: SchemaRegistry, state: Store, restore_id: str) -> SchemasUndone:
    """Delete what a restore created and is still as it was made, the newest first, and put settings back."""
    plan = begun_plan(state, restore_id)
    if plan is None:
        raise UsageError(
            f"restore {restore_id} restored no schemas", "check the id, and --state if its files are not in the archive"
        )
    if plan.registry != registry.url:
        raise RefusedError(
            f"restore {restore_id} wrote to the schema registry {plan.registry}, this is {registry.url}",
            "name that one as the target",
        )
    done = schema_map(state, restore_id)
    settings, left = _put_settings_back(registry, plan, done is None)
    found = located(registry, [step.schema for step in plan.steps], "map")
    for each in done.schemas if done is not None else ():  # what the registry has added something to
        at = None if (each.subject, each.version) in found else registry.version(each.subject, each.target_version)
        if at is not None and at.id == each.id:
            found[each.subject, each.version] = at
    ours = {(at.subject, at.version) for at in found.values()}
    deleted = list[str]()
    for step in reversed(plan.created):
        at = found.get((step.schema.subject, step.schema.version))
        is_new = at is not None and at.version not in plan.versions.get(at.subject, ())
        if at is None or (at.state != "active" if step.action == "undelete" else not is_new):
            continue
        name = f"{at.subject} version {at.version}"
        later = [n for n in registry.versions(at.subject) if n > at.version and (at.subject, n) not in ours]
        if later:
            left.append(f"{name} is left: others have registered version {later[0]} since")
            continue
        try:
            if at.state == "active":
                registry.delete(at.subject, at.version, permanent=False)
            if step.action == "create":
                registry.delete(at.subject, at.version, permanent=True)
            deleted.append(name)
        except RefusedError as error:
            left.append(f"{name} is left: {error.message}")
    about = {"restore_id": restore_id, "registry": plan.registry}
    return SchemasUndone(**about, deleted=tuple(deleted), settings=tuple(settings), left=tuple(left))


def _put_settings_back(registry: SchemaRegistry, plan: SchemaPlan, is_open: bool) -> tuple[list[str], list[str]]:
    """Put back what is still as the restore set it; return the subjects, and what is not put back. `is_open`: the
    restore did not end, so what it sets for a while may be there."""
    after = {s.subject: s for s in plan.after}
    written = {step.schema.subject for step in plan.created}
    settings, left = list[str](), list[str]()
    for before in (s for s in reversed(plan.before) if s.subject in {"", *after, *written}):
        at, ours, name = registry.settings(before.subject), after.get(before.subject, before), before.subject or "all"
        unchecked = is_open and plan.mode == "map" and before.subject in written and before.subject not in plan.versions
        config = before.config if at.config == ours.config or (unchecked and at.config == _UNCHECKED) else at.config
        importing = is_open and plan.mode == "same" and at.mode == "IMPORT"
        mode = before.mode if at.mode == ours.mode or importing else at.mode
        wanted = replace(before, config=config, mode=mode)
        if wanted != at:
            _set(registry, wanted, at)
            settings += [name] if before.subject in after or at.mode == "IMPORT" else []
        if wanted != before and before.subject in after:
            left.append(f"the settings of {name} are left: others have changed them")
    return settings, left
