"""Plan the schemas of a restore point that a schema registry lacks, under their names on the target.

`same` registers them with their ids and versions, which registries allow in mode IMPORT. `map` registers their texts
and learns the registry's own ids.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from kbackup.archive.models import DocumentRef, Member, Schemas, TopicState
from kbackup.archive.query.selection import Selection
from kbackup.archive.schemas import Place, SchemaIndex, lacking, schema_uses, usual_id
from kbackup.archive.uncovered_schemas import apicurio_uses, unlisted_words
from kbackup.errors import RefusedError, UsageError
from kbackup.formats.schema_ids import Part
from kbackup.jobs.schemas.judgement import JudgedPart, Unmapped, unmapped_words
from kbackup.schemas.base import (
    RegistryOptions,
    SchemaReference,
    SchemaVersion,
    SubjectSettings,
    context_of,
    missing,
    qualified,
)
from kbackup.util.system import in_threads
from kbackup.util.text import join_names, plural

if TYPE_CHECKING:
    from kbackup.kafka.schema_registry import SchemaRegistry  # it needs an extra

K = TypeVar("K")
V = TypeVar("V")
Mode = Literal["same", "map"]


class PlannedSchema(Member, frozen=True, kw_only=True):
    """`source` is the subject in the restore point. `schema` and its references have the names of the target, and the
    versions of the restore point. `undelete`: the target has the schema, softly deleted."""

    source: str
    schema: SchemaVersion
    action: Literal["create", "undelete", "exists"]


class SchemaPlan(Member, frozen=True, kw_only=True):
    """`steps` are in order: a schema comes after the schemas that it refers to. `versions` are the versions that
    subjects have before, if they get others; `before` are the settings of all subjects and of the registry, and `after`
    the settings to set. With `problems` nothing may be written; `notes` say what is left as it is."""

    registry: str
    mode: Mode
    prefix: str
    steps: tuple[PlannedSchema, ...]
    versions: dict[str, tuple[int, ...]]
    before: tuple[SubjectSettings, ...]
    after: tuple[SubjectSettings, ...]
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    parts: dict[str, tuple[Part, ...]] = msgspec.field(default_factory=dict)
    """By topic of the source, which of keys and values name schemas; empty without records."""
    guids: tuple[str, ...] = ()
    """GUIDs that records carry."""
    uncovered: tuple[str, ...] = ()
    """In words, what names schemas in records and is not mapped."""
    judged: tuple[JudgedPart, ...] = ()
    """How the records are judged. Older plans have none: they map the `parts` by ids alone."""
    unmapped: Unmapped = "fail"
    archived: DocumentRef | None = None
    """The schemas that records are judged by."""

    @property
    def created(self) -> list[PlannedSchema]:
        """Return the steps that write something."""
        return [step for step in self.steps if step.action != "exists"]

    @property
    def created_subjects(self) -> set[str]:
        """Return the subjects that get a version, by their names on the target."""
        return {step.schema.subject for step in self.created}

    @property
    def schemas(self) -> list[SchemaVersion]:
        """Return the planned schemas, in the order of the steps."""
        return [step.schema for step in self.steps]

    def check(self) -> None:
        """Raise `RefusedError` with the problems."""
        if self.problems:
            hint = "use --schemas map" if self.mode == "same" else "see 'kbackup schemas show'"
            if self.unmapped == "fail" and unmapped_words(self.judged):
                hint = "restore with --unmapped keep, leave the records out with --skip, or see 'kbackup schemas show'"
            raise RefusedError(f"the schemas can't be restored: {join_names(self.problems, 50, '; ')}", hint)


# The schemas of a restore point, and the selected ones under their names on the target.


class SubjectOverview(Member, frozen=True, kw_only=True):
    """`topics` are the topics whose records carry one of the `ids`; `type` is the type of the last version."""

    subject: str
    type: str
    versions: tuple[int, ...]
    ids: tuple[int, ...]
    deleted: int
    topics: tuple[str, ...]


def subjects_of(schemas: Schemas, topics: Iterable[TopicState]) -> list[SubjectOverview]:
    """Return the subjects of a restore point, in order."""
    index = SchemaIndex(schemas)
    # By context and id: the same id is another schema in another context.
    users = defaultdict[tuple[str, int], set[str]](set)
    for use in schema_uses(topics, index):
        if use.version is not None:
            users[context_of(use.version.subject), use.version.id].add(use.topic)
    by_subject = defaultdict[str, list[SchemaVersion]](list)
    for version in schemas.versions:
        by_subject[version.subject].append(version)
    overviews: list[SubjectOverview] = []
    for subject, versions in sorted(by_subject.items()):
        context = context_of(subject)
        numbers: list[int] = []
        ids: list[int] = []
        deleted = 0
        topics_of_subject: set[str] = set()
        for version in versions:
            numbers.append(version.version)
            ids.append(version.id)
            deleted += version.state != "active"
            topics_of_subject |= users[context, version.id]
        overview = SubjectOverview(
            subject=subject,
            type=versions[-1].type,
            versions=tuple(numbers),
            ids=tuple(ids),
            deleted=deleted,
            topics=tuple(sorted(topics_of_subject)),
        )
        overviews.append(overview)
    return overviews


def ids_of_records(topics: Collection[TopicState], index: SchemaIndex) -> tuple[set[int | str], list[str]]:
    """Return the ids and GUIDs that records carry and the restore point knows, and in words the ids that it lacks."""
    ids: set[int | str] = set()
    unknown: list[str] = []
    for use in schema_uses(topics, index):
        if use.version is not None:
            ids.add(usual_id(use.id))
        else:
            fields = plural(use.fields, use.part)
            unknown.append(f"{fields} of topic {use.topic} with schema {use.id}, which the restore point lacks")
    return ids, unknown


def carried_versions(topics: Collection[TopicState], index: SchemaIndex) -> list[SchemaVersion]:
    """Return the schemas whose ids records carry, as they were counted."""
    ids, _ = ids_of_records(topics, index)
    return [index.find(each) for each in sorted(ids, key=str)]


def versions_beside(topics: Collection[TopicState], schemas: Schemas) -> list[SchemaVersion]:
    """Return the schemas that readers of the records need though their ids are not mapped: the schemas of Apicurio's
    own forms, and, where records carry ids that are not listed, all schemas that are not deleted."""
    if unlisted_words(topics, schemas):
        return [version for version in schemas.versions if version.state != "deleted"]
    index = SchemaIndex(schemas)
    ids: set[int] = set()
    for use in apicurio_uses(topics, schemas):
        ids.update(use.ids)
    return [index.find(schema_id) for schema_id in sorted(ids) if schema_id in index]


def renamed(subject: str, prefix: str) -> str:
    """Return a subject's name on the target. A prefix may begin with a context (`:.rehearsal:`), in place of the
    subject's own."""
    context = context_of(subject)
    name = subject[len(context) :]
    if prefix.startswith(":."):
        return prefix + name
    return context + prefix + name


def planned_versions(
    schemas: Schemas, carried: Collection[SchemaVersion], prefix: str = "", subjects: Selection | None = None
) -> tuple[list[tuple[str, SchemaVersion]], list[str]]:
    """Return the versions to bring back, in order, each with its subject in the restore point, and in words what stands
    against it.

    These are the versions of `subjects`; without these, of the subjects that have the id of a `carried` schema, which
    records carry. They come with all versions that they refer to. A deleted version whose references are gone is left
    out if no record carries its id."""
    if prefix.startswith(":.") and not context_of(prefix):
        raise UsageError(f"subject prefix {prefix} is no context", "write it as :.rehearsal:")
    index = SchemaIndex(schemas)
    places = _places(schemas, index)
    carried_ids = {_id_in_context(version) for version in carried}
    # Whole subjects, not only the carried versions: a producer registers its next version beside the ones that are
    # there, and is checked for compatibility with them.
    carried_subjects: set[str] = set()
    for version in places.values():
        if _id_in_context(version) in carried_ids:
            carried_subjects.add(version.subject)
    is_selected = carried_subjects.__contains__ if subjects is None else subjects.matches
    selected: list[tuple[SchemaVersion, bool]] = []
    for version in places.values():
        if is_selected(version.subject):
            is_needed = version.state == "active" or _id_in_context(version) in carried_ids
            selected.append((version, is_needed))
    references, problems = _with_references(selected, index)
    problems += _name_clashes(references, prefix)
    try:
        in_order = list(_in_order(references))
    except CycleError as error:
        # The second argument of the error has the places of the circle.
        circle = [f"{subject} version {number}" for subject, number in error.args[1]]
        problems.append(f"schemas refer to one another in a circle: {join_names(circle, 5)}")
        in_order = []
    planned: list[tuple[str, SchemaVersion]] = []
    for place in in_order:
        version = places[place]
        planned.append((version.subject, _on_target(version, index, prefix)))
    return planned, problems


def _id_in_context(version: SchemaVersion) -> tuple[str, int]:
    return context_of(version.subject), version.id


def _places(schemas: Schemas, index: SchemaIndex) -> dict[Place, SchemaVersion]:
    """Return the versions of a restore point by subject and number.

    A subject that was deleted for good and made anew begins with version 1 again. Records may carry the ids of the old
    versions too, so these come after the new ones, under numbers of their own."""
    places = dict(index.places)
    for version in schemas.versions:
        if places[version.place] is version:
            continue
        taken = [number for subject, number in places if subject == version.subject]
        number = 1 + max(taken)
        places[version.subject, number] = replace(version, version=number)
    return places


def _with_references(
    selected: list[tuple[SchemaVersion, bool]], index: SchemaIndex
) -> tuple[dict[Place, set[Place]], list[str]]:
    """Return the places of the selected versions and of all that they refer to, each with the places that it refers to
    itself; and in words the broken references. A version that is not needed is left out if a reference is broken."""
    waiting = list(selected)
    references: dict[Place, set[Place]] = {}
    problems: list[str] = []
    while waiting:
        version, is_needed = waiting.pop()
        place = version.place
        if place in references:
            continue  # several versions may refer to it
        referred: list[SchemaVersion] = []
        broken: list[str] = []
        for reference in version.references:
            other = index.referred(version, reference)
            if other is None:
                broken.append(lacking(version, reference))
            else:
                referred.append(other)
        if broken and not is_needed:
            continue
        problems += broken
        references[place] = {other.place for other in referred}
        waiting += [(other, is_needed) for other in referred]
    return references, problems


def _name_clashes(places: Iterable[Place], prefix: str) -> list[str]:
    """Return in words which subjects would get the same name on the target: a prefix with a context replaces theirs."""
    clashes: list[str] = []
    names: dict[str, str] = {}
    for subject in sorted({subject for subject, _ in places}):
        name = renamed(subject, prefix)
        other = names.setdefault(name, subject)
        if other != subject:
            clashes.append(f"subjects {other} and {subject} would both become {name}")
    return clashes


def _in_order(references: Mapping[Place, set[Place]]) -> Iterator[Place]:
    """Yield the places after the places that they refer to, and the versions of a subject in order."""
    order = TopologicalSorter[Place]()
    previous = ("", 0)
    # A registry that gives versions of its own numbers them in the order in which they come.
    for place in sorted(references):
        before = set(references[place])
        if previous[0] == place[0]:
            before.add(previous)
        before.discard(place)
        order.add(place, *sorted(before))
        previous = place
    return (place for place in order.static_order() if place in references)


def _on_target(version: SchemaVersion, index: SchemaIndex, prefix: str) -> SchemaVersion:
    """Return a version with the names on the target: its own, and the names of subjects that it refers to."""
    if not prefix:
        return version
    references: list[SchemaReference] = []
    for reference in version.references:
        referred = index.referred(version, reference)
        if referred is not None:
            references.append(replace(reference, subject=renamed(referred.subject, prefix)))
    return replace(version, subject=renamed(version.subject, prefix), references=tuple(references))


# The schemas that the target has.


def open_registry(options: RegistryOptions, section: str = "target_schema_registry") -> SchemaRegistry:
    """Return the registry of a section of the configuration. `UsageError` if none is named or a library is missing."""
    if not options.url:
        flag = ", or give --target-schema-registry" if section.startswith("target") else ""
        raise UsageError(f"no {section.replace('_', ' ')} is named", f"set {section}.url in kbackup.toml{flag}")
    try:
        from kbackup.kafka.schema_registry import SchemaRegistry
    except ImportError as error:
        raise missing(error) from error
    return SchemaRegistry(options, section)


def _answers(ask: Callable[[K], V], keys: Iterable[K]) -> dict[K, V]:
    """Ask for each key in threads: a registry answers one question a request."""
    asked = list(keys)
    return dict(zip(asked, in_threads(ask, asked), strict=True))


Subjects = Mapping[str, Mapping[int, SchemaVersion]]
"""All versions of subjects, also deleted ones, by number."""


def read_subjects(registry: SchemaRegistry, versions: Iterable[SchemaVersion]) -> Subjects:
    """Return the target's subjects of these versions."""

    def read(name: str) -> list[SchemaVersion]:
        return read_subject(registry, name, {})

    names = sorted({version.subject for version in versions})
    subjects: dict[str, dict[int, SchemaVersion]] = {}
    for name, found in _answers(read, names).items():
        subjects[name] = {version.version: version for version in found}
    return subjects


def read_subject(registry: SchemaRegistry, subject: str, known: Mapping[Place, SchemaVersion]) -> list[SchemaVersion]:
    """Return all versions of a subject, the newest first. `known` versions are not read again, apart from the last one:
    if the registry has another one in its place, the subject was made anew."""
    numbers = registry.versions(subject, deleted=True)
    active = set(registry.versions(subject))
    found: list[SchemaVersion] = []
    for number in sorted(numbers, reverse=True):
        old = known.get((subject, number))
        is_last = not found
        version = registry.version(subject, number) if old is None or is_last else old
        if version is None:  # it was deleted for good meanwhile
            continue
        if is_last and old is not None and old.id != version.id:
            # Another schema is in the place of the last version: what is known of the others is of the former subject.
            known = {}
        state: Literal["active", "deleted"] = "active" if number in active else "deleted"
        found.append(replace(version, state=state))
    return found


def locate(
    registry: SchemaRegistry, wanted: Iterable[SchemaVersion], mode: Mode, there: Subjects
) -> dict[Place, SchemaVersion]:
    """Return what the target has at the places of the wanted versions, or in `map` what it has of the same content."""
    # By digests, made once: a subject may have hundreds of versions, and each wanted one is looked for among them.
    by_content = defaultdict[tuple[str, str], list[SchemaVersion]](list)
    for versions in there.values():
        for held in versions.values():
            by_content[held.subject, content_digest(held)].append(held)
    found: dict[Place, SchemaVersion] = {}
    for version in wanted:
        versions = there.get(version.subject, {})
        if mode == "map":
            at = _located_by_content(registry, numbered(version, found), versions, by_content)
        else:
            at = _located_by_place(registry, version, versions)
        if at is not None:
            found[version.place] = at
    return found


# A registry may tell a text in a form of its own, and look it up in the original form, or the other way round. So where
# texts differ it is asked: it knows which it takes for the same.


def _located_by_place(
    registry: SchemaRegistry, wanted: SchemaVersion, versions: Mapping[int, SchemaVersion]
) -> SchemaVersion | None:
    at = versions.get(wanted.version)
    if at is None or same_schema(at, wanted):
        return at
    known = registry.lookup(wanted)
    if known is not None and known.version == wanted.version:
        return replace(wanted, id=known.id, guid=known.guid, state=at.state)
    return at


def _located_by_content(
    registry: SchemaRegistry,
    wanted: SchemaVersion | None,
    versions: Mapping[int, SchemaVersion],
    by_content: Mapping[tuple[str, str], list[SchemaVersion]],
) -> SchemaVersion | None:
    """`wanted` is None if the target lacks a schema that it refers to."""
    if wanted is None:
        return None
    same = by_content.get((wanted.subject, content_digest(wanted)), [])
    at = _same_content(same, wanted)
    if at is not None or not versions:
        return at
    known = registry.lookup(wanted)
    return None if known is None else versions.get(known.version)


def _same_content(versions: Iterable[SchemaVersion], wanted: SchemaVersion) -> SchemaVersion | None:
    """Return the version that also has the same metadata and rules. Of several, one of the very same text comes first,
    then an active one, then the newest."""

    def rank(version: SchemaVersion) -> tuple[bool, bool, int]:
        return version.schema == wanted.schema, version.state == "active", version.version

    same: list[SchemaVersion] = []
    for version in versions:
        if version.metadata == wanted.metadata and version.rules == wanted.rules:
            same.append(version)
    return max(same, key=rank, default=None)


def numbered(version: SchemaVersion, found: Mapping[Place, SchemaVersion]) -> SchemaVersion | None:
    """Return a version with references as they are numbered on the target; None if the target lacks one of them."""
    context = context_of(version.subject)
    references: list[SchemaReference] = []
    for reference in version.references:
        own = qualified(reference.subject, context)
        at = found.get((own, reference.version)) or found.get((reference.subject, reference.version))
        if at is None:
            return None
        references.append(replace(reference, version=at.version))
    return replace(version, references=tuple(references))


def same_schema(one: SchemaVersion, other: SchemaVersion) -> bool:
    """Return whether both have the same type and references, and the same text but for white space."""
    return content_digest(one) == content_digest(other)


def content_digest(version: SchemaVersion) -> str:
    """Return hex digits that schemas of equal type, references and text have in common."""
    # A registry may give a text back with other white space, or with its keys in another order: that is the same
    # schema.
    text: object = " ".join(version.schema.split())
    if version.type != "PROTOBUF":
        # Avro and JSON Schema are JSON, where the order of keys means nothing. A text that is no JSON, or is nested too
        # deep, is compared as it is.
        with suppress(msgspec.DecodeError, RecursionError):
            text = msgspec.json.encode(msgspec.json.decode(version.schema), order="sorted")
    context = context_of(version.subject)
    references: list[tuple[str, str, int]] = []
    for reference in version.references:
        references.append((reference.name, qualified(reference.subject, context), reference.version))
    # In which order a schema names its references means nothing.
    references.sort()
    content = msgspec.json.encode([version.type, text, references])
    return hashlib.sha256(content).hexdigest()[:16]


def text_digest(version: SchemaVersion) -> str:
    """Return hex digits that schemas of equal type and text have in common, whatever they refer to."""
    return content_digest(replace(version, references=()))


# The plan.


def plan_schemas(
    registry: SchemaRegistry,
    versions: Collection[tuple[str, SchemaVersion]],
    settings: Collection[SubjectSettings],
    mode: Mode,
    prefix: str = "",
    problems: Iterable[str] = (),
) -> SchemaPlan:
    """Plan what to create and to set in a registry. `versions` and `problems` are from `planned_versions`, `settings`
    from the restore point. Settings of contexts and of the whole registry are set only in an empty registry."""
    # Also the deleted ones: a deleted subject still holds its ids and its version numbers.
    subjects = set(registry.subjects(deleted=True))
    wanted = [version for _, version in versions]
    of_known_subjects = [version for version in wanted if version.subject in subjects]
    there = read_subjects(registry, of_known_subjects)
    found = locate(registry, wanted, mode, there)
    clashes: list[str] = []
    if mode == "same":
        clashes = _clashes(registry, versions, found)
    steps: list[PlannedSchema] = []
    names: dict[str, str] = {}  # of subjects on the target, by their names in the restore point
    created: set[str] = set()
    for source, version in versions:
        action = _action(version, found.get(version.place))
        steps.append(PlannedSchema(source=source, schema=version, action=action))
        names[source] = version.subject
        if action != "exists":
            created.add(version.subject)
    general = [each.subject for each in settings if _is_general(each)]
    asked = dict.fromkeys(["", *general, *names.values()])
    now = _answers(registry.settings, asked)
    # The settings of a context, or of the whole registry, hold for the subjects of others as well, unless there are
    # none.
    may_set_general = not prefix and not subjects
    after, notes = _planned_settings(settings, names, now, may_set_general)
    versions_before: dict[str, tuple[int, ...]] = {}
    for name in sorted(created & there.keys()):
        versions_before[name] = tuple(sorted(there[name]))
    # The settings of the whole registry (''), too: its mode may be changed while the schemas are written.
    touched = {"", *names.values()}
    touched.update(each.subject for each in after)
    settings_before = [now[name] for name in sorted(now) if name in touched]
    return SchemaPlan(
        registry=registry.url,
        mode=mode,
        prefix=prefix,
        steps=tuple(steps),
        versions=versions_before,
        before=tuple(settings_before),
        after=tuple(after),
        problems=(*problems, *clashes),
        notes=tuple(notes),
    )


def _is_general(settings: SubjectSettings) -> bool:
    """Return whether settings are of all subjects of a context, or of the whole registry: its name is ''."""
    return settings.subject == context_of(settings.subject)


def _planned_settings(
    settings: Iterable[SubjectSettings],
    names: Mapping[str, str],
    now: Mapping[str, SubjectSettings],
    may_set_general: bool,
) -> tuple[list[SubjectSettings], list[str]]:
    """Return the settings to set, and in words the settings that are not set because other subjects depend on them.
    `names` are the subjects' names on the target, and `now` are the target's settings."""
    after: list[SubjectSettings] = []
    notes: list[str] = []
    for each in settings:
        is_general = _is_general(each)
        name = each.subject if is_general else names.get(each.subject)
        if name is None:
            continue
        before = now[name]
        wanted = replace(before, config=each.config or before.config, mode=each.mode or before.mode)
        if wanted == before:
            continue
        if is_general and not may_set_general:
            notes.append(f"{settings_words(each)} of {each.subject or 'all subjects'} is not set: others depend on it")
        else:
            after.append(wanted)
    # The settings of all subjects come last: a registry whose mode is READONLY takes no more configs of subjects.
    after.sort(key=attrgetter("subject"), reverse=True)
    return after, notes


def _action(version: SchemaVersion, at: SchemaVersion | None) -> Literal["create", "undelete", "exists"]:
    """Return what a version needs; `at` is what the target has of it."""
    if at is None:
        return "create"
    # For a version that is deleted in the restore point it is enough to be there, whether deleted or not.
    if at.state == "active" or version.state != "active":
        return "exists"
    return "undelete"


def _clashes(
    registry: SchemaRegistry, versions: Iterable[tuple[str, SchemaVersion]], found: Mapping[Place, SchemaVersion]
) -> list[str]:
    """Return in words which versions can't get their own ids: the target has other schemas in their places, or under
    their ids. `found` is what it has in these places."""
    clashes: list[str] = []
    wanted = list(versions)
    holders = _holders(registry, [version for _, version in wanted])
    for source, version in wanted:
        at = found.get(version.place)
        # Two versions of the restore point itself may have one id, as long as they are the same schema.
        holder = holders.setdefault(_id_in_context(version), version)
        name = f"{version.subject} version {version.version}"
        here = f"{source} version {version.version} of the restore point"
        if at is not None:
            if at.id != version.id or not same_schema(at, version):
                clashes.append(f"{name} is another schema, with id {at.id}; {here} has id {version.id}")
        elif not same_schema(holder, version):
            clashes.append(f"id {version.id} is taken by {holder.subject} version {holder.version}; {here} has it too")
    return clashes


def _holders(registry: SchemaRegistry, versions: Iterable[SchemaVersion]) -> dict[tuple[str, int], SchemaVersion]:
    """Return which schemas the target has under the ids of some versions, by context and id."""

    def places_of(key: tuple[str, int]) -> list[Place]:
        context, schema_id = key
        return registry.places(schema_id, context)

    def first_holder(key: tuple[str, int]) -> SchemaVersion | None:
        # One holder is enough: all that have the id are the same schema to the registry.
        subject, number = places[key][0]
        return registry.version(subject, number)

    ids = sorted({_id_in_context(version) for version in versions})
    places = _answers(places_of, ids)
    taken = [key for key in ids if places[key]]
    holders: dict[tuple[str, int], SchemaVersion] = {}
    for key, holder in _answers(first_holder, taken).items():
        if holder is not None:
            holders[key] = holder
    return holders


def settings_words(settings: SubjectSettings) -> str:
    """Return what is set, in words."""
    words: list[str] = []
    compatibility = (settings.config or {}).get("compatibilityLevel")
    if compatibility:
        words.append(f"compatibility {compatibility}")
    if settings.mode:
        words.append(f"mode {settings.mode}")
    return " and ".join(words)


def prepare_schemas(
    registry: SchemaRegistry,
    schemas: Schemas,
    *,
    carried: Collection[SchemaVersion],
    mode: Mode,
    prefix: str = "",
    subjects: Selection | None = None,
) -> SchemaPlan:
    """Plan to bring back the schemas of `subjects`, or else the schemas with the ids of `carried`, which records carry.
    Write nothing."""
    versions, problems = planned_versions(schemas, carried, prefix, subjects)
    return plan_schemas(registry, versions, schemas.settings, mode, prefix, problems)
