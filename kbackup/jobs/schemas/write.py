"""Write the planned schemas to a registry, and undo it.

restores/<id>/schemas-before.json is created before the first write and has the plan; restores/<id>/schemas.json is
created at the end. Neither is ever replaced: whoever resumes a killed restore has its plan, and a restore has one map.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

from kbackup.archive import layout
from kbackup.archive.models import D, Document, DocumentRef, Member, dump, load
from kbackup.archive.restores.proof import check_proven, unproven_documents
from kbackup.archive.schemas import Place
from kbackup.errors import AlreadyExistsError, KbackupError, NotFoundError, RefusedError, UsageError
from kbackup.formats.schema_ids import Part
from kbackup.jobs.schemas.judgement import JudgedPart, Unmapped
from kbackup.jobs.schemas.plan import (
    Mode,
    SchemaPlan,
    Subjects,
    locate,
    numbered,
    read_subjects,
    settings_words,
    text_digest,
)
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
    """restores/<id>/schemas.json: `ids` and `guids` that records carry, and what they are on the target; `contexts` has
    ids of the source's contexts, apart from the default one. `judged` says how records are judged, by the schemas of
    the document `archived`, and `unmapped` what is done about those that can't be mapped. Older versions judged none:
    they mapped the `parts` of topics, by their names in the source, by ids alone. `not_set` are settings and deletions
    that the registry refused, `uncovered` says what names schemas in records and is not mapped."""

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
    uncovered: tuple[str, ...] = ()
    contexts: dict[str, dict[int, int]] = msgspec.field(default_factory=dict)
    judged: tuple[JudgedPart, ...] = ()
    unmapped: Unmapped = "fail"
    archived: DocumentRef | None = None

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
        if lost := lost_since(registry, done.places):
            raise RefusedError(f"of restore {restore_id}, {lost[0]}", "use another --restore-id")
        return done
    try:
        found, refused = _register(registry, begun)
        made = _map(restore_id, begun, found)
        _check_guids(registry, begun, made)
    except OwnIdsError as error:
        left = join_names(_undo(registry, restore_id, begun, None, confirm=True).left, 5, "; ")
        raise OwnIdsError(f"{error.message}; left behind: {left}" if left else error.message, error.hint) from error
    made = replace(made, not_set=(*refused, *_apply_settings(registry, begun)))
    try:
        state.put_new(layout.restore_key(restore_id, layout.SCHEMAS), dump(made))
    except AlreadyExistsError:  # by another attempt
        return schema_map(state, restore_id) or made
    return made


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


def _unchecked(plan: SchemaPlan) -> set[str]:
    """Return the new subjects, which are not checked for compatibility while `map` writes them."""
    return {step.schema.subject for step in plan.created} - plan.versions.keys() if plan.mode == "map" else set()


def _open(registry: SchemaRegistry, plan: SchemaPlan, back: ExitStack) -> None:
    """Let the registry take what the plan creates, until `back` closes: `same` needs mode IMPORT. In `map` a new
    subject is not checked for compatibility, which may have been another one at the time."""
    before = {s.subject: s for s in plan.before}
    for subject in sorted(_unchecked(plan)):
        back.callback(_put_back, registry.set_config, subject, before[subject].config)
        registry.set_config(subject, _UNCHECKED)

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


# Undo.


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


def undo_schemas(
    registry: SchemaRegistry, state: Store, restore_id: str, *, confirm: bool, accept_unproven: bool = False
) -> SchemasUndone:
    """Plan to delete what a restore created and is still as it was made, the newest first, and to put settings back;
    with `confirm` do it. `RefusedError` with `confirm` for documents that nothing proves to be the restore's, unless
    `accept_unproven`."""
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
    unproven = tuple(unproven_documents(state))
    if confirm:
        check_proven(state, restore_id, accept_unproven)
    undone = _undo(registry, restore_id, plan, done, confirm)
    return replace(undone, unproven=unproven)


def _undo(
    registry: SchemaRegistry, restore_id: str, plan: SchemaPlan, done: SchemaMap | None, confirm: bool
) -> SchemasUndone:
    """Undo the plan of a restore, whose map is `done` if it has ended; without `confirm` write nothing."""
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
        is_unchecked = is_open and before.subject in _unchecked(plan) and at.config == _UNCHECKED
        is_importing = is_open and plan.mode == "same" and at.mode == "IMPORT"
        config = before.config if at.config == ours.config or is_unchecked else at.config
        mode = before.mode if at.mode == ours.mode or is_importing else at.mode
        wanted = replace(before, config=config, mode=mode)
        if wanted != at:
            if confirm:
                _set(registry, wanted, at)
            settings += [name] if before.subject in after or at.mode == "IMPORT" else []
        if wanted != before and before.subject in after:
            left.append(f"the settings of {name} are left: others have changed them")
    return settings, left
