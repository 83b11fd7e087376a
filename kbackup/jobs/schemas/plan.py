"""What a schema registry lacks of a restore point's schemas, under its own names.

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
    versions of the restore point. `undelete`: the target has it, softly deleted."""

    source: str
    schema: SchemaVersion
    action: Literal["create", "undelete", "exists"]


class SchemaPlan(Member, frozen=True, kw_only=True):
    """`steps` are in order: a schema comes after what it refers to. `versions` are those that subjects have before, if
    they get others; `before` are the settings of all subjects and of the registry, and `after` those to be set. With
    `problems` nothing may be written; `notes` say what is left as it is."""

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
    """What names schemas in records and is not mapped, in words."""
    judged: tuple[JudgedPart, ...] = ()
    """How the records are judged. Older plans have none: they map the `parts` by ids alone."""
    unmapped: Unmapped = "fail"
    archived: DocumentRef | None = None
    """The schemas that records are judged by."""

    @property
    def created(self) -> list[PlannedSchema]:
        """Return the steps that write something."""
        return [step for step in self.steps if step.action != "exists"]

    def check(self) -> None:
        """Raise `RefusedError` with the problems."""
        if self.problems:
            hint = "use --schemas map" if self.mode == "same" else "see 'kbackup schemas show'"
            if self.unmapped == "fail" and unmapped_words(self.judged):
                hint = "restore with --unmapped keep, leave the records out with --skip, or see 'kbackup schemas show'"
            raise RefusedError(f"the schemas can't be restored: {join_names(self.problems, 50, '; ')}", hint)


# What a restore point has, and what is wanted of it under its names on the target.


class SubjectOverview(Member, frozen=True, kw_only=True):
    """`topics` are those whose records carry one of the `ids`; `type` is that of the last version."""

    subject: str
    type: str
    versions: tuple[int, ...]
    ids: tuple[int, ...]
    deleted: int
    topics: tuple[str, ...]


def subjects_of(schemas: Schemas, topics: Iterable[TopicState]) -> list[SubjectOverview]:
    """Return the subjects of a restore point, in order."""
    index, users = SchemaIndex(schemas), defaultdict[tuple[str, int], set[str]](set)
    for use in schema_uses(topics, index):
        if use.version is not None:
            users[context_of(use.version.subject), use.version.id].add(use.topic)
    by_subject = defaultdict[str, list[SchemaVersion]](list)
    for v in schemas.versions:
        by_subject[v.subject].append(v)
    overviews: list[SubjectOverview] = []
    for subject, versions in sorted(by_subject.items()):
        topics_of_subject: set[str] = set()
        for version in versions:
            topics_of_subject |= users[context_of(subject), version.id]
        overview = SubjectOverview(
            subject=subject,
            type=versions[-1].type,
            versions=tuple(version.version for version in versions),
            ids=tuple(version.id for version in versions),
            deleted=sum(version.state != "active" for version in versions),
            topics=tuple(sorted(topics_of_subject)),
        )
        overviews.append(overview)
    return overviews


def ids_of_records(topics: Collection[TopicState], index: SchemaIndex) -> tuple[set[int | str], list[str]]:
    """Return the ids and GUIDs that records carry and the restore point knows, and in words those that it lacks."""
    ids, lost = set[int | str](), list[str]()
    for use in schema_uses(topics, index):
        if use.version is not None:
            ids.add(usual_id(use.id))
        else:
            fields = plural(use.fields, use.part)
            lost.append(f"{fields} of topic {use.topic} with schema {use.id}, which the restore point lacks")
    return ids, lost


def carried_versions(topics: Collection[TopicState], index: SchemaIndex) -> list[SchemaVersion]:
    """Return the schemas whose ids records carry, as they were counted."""
    ids, _ = ids_of_records(topics, index)
    return [index.find(each) for each in sorted(ids, key=str)]


def versions_beside(topics: Collection[TopicState], schemas: Schemas) -> list[SchemaVersion]:
    """Return the schemas that readers of the records need though no id of them is mapped: those of Apicurio's own
    forms, and all that are not deleted where records carry ids that are not listed."""
    if unlisted_words(topics, schemas):
        return [v for v in schemas.versions if v.state != "deleted"]
    index = SchemaIndex(schemas)
    ids = {schema_id for use in apicurio_uses(topics, schemas) for schema_id in use.ids}
    return [index.find(each) for each in sorted(ids) if each in index]


def renamed(subject: str, prefix: str) -> str:
    """Return a subject's name on the target. A prefix may begin with a context (`:.rehearsal:`), in place of the
    subject's own."""
    context = context_of(subject)
    return (prefix if prefix.startswith(":.") else context + prefix) + subject[len(context) :]


def planned_versions(
    schemas: Schemas, carried: Collection[SchemaVersion], prefix: str = "", subjects: Selection | None = None
) -> tuple[list[tuple[str, SchemaVersion]], list[str]]:
    """Return the versions of `subjects`, or of the subjects that have an id of the `carried` schemas, whose ids records
    carry; with all that they refer to, in order, each with its subject in the restore point. Also return in words what
    stands against it.

    A deleted version whose references are gone is left out if no record carries its id."""
    if prefix.startswith(":.") and not context_of(prefix):
        raise UsageError(f"subject prefix {prefix} is no context", "write it as :.rehearsal:")
    index = SchemaIndex(schemas)
    places = dict(index.places)
    for v in schemas.versions:
        if places[v.subject, v.version] is not v:  # of a subject that was made anew; its id needs another place
            number = 1 + max(number for subject, number in places if subject == v.subject)
            places[v.subject, number] = replace(v, version=number)
    found = {(context_of(v.subject), v.id) for v in carried}
    by_id = {v.subject for v in places.values() if (context_of(v.subject), v.id) in found}
    problems: list[str] = []
    waiting = [
        (v, v.state == "active" or (context_of(v.subject), v.id) in found)
        for v in places.values()
        if (v.subject in by_id if subjects is None else subjects.matches(v.subject))
    ]
    wanted: dict[Place, set[Place]] = {}  # with what it refers to
    while waiting:
        v, needed = waiting.pop()
        below = [index.referred(v, r) for r in v.references]
        if (v.subject, v.version) in wanted or (None in below and not needed):
            continue
        problems += [lacking(v, r) for r, each in zip(v.references, below, strict=True) if each is None]
        wanted[v.subject, v.version] = {(each.subject, each.version) for each in below if each is not None}
        waiting += [(each, needed) for each in below if each is not None]
    names: dict[str, str] = {}
    for name in sorted({subject for subject, _ in wanted}):
        if (other := names.setdefault(renamed(name, prefix), name)) != name:
            problems.append(f"subjects {other} and {name} would both become {renamed(name, prefix)}")
    try:
        versions = [places[place] for place in _in_order(wanted)]
    except CycleError as error:
        circle = join_names([f"{subject} version {number}" for subject, number in error.args[1]], 5)
        versions, problems = [], [*problems, f"schemas refer to one another in a circle: {circle}"]
    return [(v.subject, _on_target(v, index, prefix)) for v in versions], problems


def _in_order(wanted: Mapping[Place, set[Place]]) -> Iterator[Place]:
    """Yield the places after what they refer to, and the versions of a subject in order."""
    order, last = TopologicalSorter[Place](), ("", 0)
    for place in sorted(wanted):
        before = wanted[place] | ({last} if last[0] == place[0] else set())
        order.add(place, *sorted(before - {place}))
        last = place
    return (place for place in order.static_order() if place in wanted)


def _on_target(v: SchemaVersion, index: SchemaIndex, prefix: str) -> SchemaVersion:
    if not prefix:
        return v
    needed = ((r, index.referred(v, r)) for r in v.references)
    references = tuple(replace(r, subject=renamed(n.subject, prefix)) for r, n in needed if n is not None)
    return replace(v, subject=renamed(v.subject, prefix), references=references)


# What the target has of it.


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
    due = list(keys)
    return dict(zip(due, in_threads(ask, due), strict=True))


Subjects = Mapping[str, Mapping[int, SchemaVersion]]
"""All versions of subjects, also deleted ones, by number."""


def read_subjects(registry: SchemaRegistry, versions: Iterable[SchemaVersion]) -> Subjects:
    """Return the target's subjects of these versions."""
    found = _answers(lambda name: read_subject(registry, name, {}), sorted({v.subject for v in versions}))
    return {name: {v.version: v for v in each} for name, each in found.items()}


def read_subject(registry: SchemaRegistry, subject: str, known: Mapping[Place, SchemaVersion]) -> list[SchemaVersion]:
    """Return all versions of a subject, the newest first. Those that are `known` are not read again, apart from the
    last one: if it is not the one that is known, the subject was made anew."""
    numbers, active = registry.versions(subject, deleted=True), set(registry.versions(subject))
    found: list[SchemaVersion] = []
    for number in sorted(numbers, reverse=True):
        old = known.get((subject, number))
        version = old if found and old is not None else registry.version(subject, number)
        if version is None:  # it was deleted for good meanwhile
            continue
        if not found and old is not None and old.id != version.id:
            known = {}
        found.append(replace(version, state="active" if number in active else "deleted"))
    return found


def locate(
    registry: SchemaRegistry, wanted: Iterable[SchemaVersion], mode: Mode, there: Subjects
) -> dict[Place, SchemaVersion]:
    """Return what the target has at the places of the wanted versions, or in `map` what it has of the same content.

    A registry may tell a text in a form of its own, and look it up in the original one, or the other way round."""
    found: dict[Place, SchemaVersion] = {}
    known = defaultdict[tuple[str, str], list[SchemaVersion]](list)
    for held in (v for versions in there.values() for v in versions.values()):
        known[held.subject, content_digest(held)].append(held)
    for v in wanted:
        versions = there.get(v.subject, {})
        at = versions.get(v.version)
        if mode == "map":
            asked = numbered(v, found)
            at = None if asked is None else _same_content(known[v.subject, content_digest(asked)], asked)
            if at is None and asked is not None and versions and (again := registry.lookup(asked)) is not None:
                at = versions.get(again.version)
        elif at is not None and not same_schema(at, v):
            again = registry.lookup(v)
            if again is not None and again.version == v.version:
                at = replace(v, id=again.id, guid=again.guid, state=at.state)
        if at is not None:
            found[v.subject, v.version] = at
    return found


def _same_content(versions: Iterable[SchemaVersion], wanted: SchemaVersion) -> SchemaVersion | None:
    """Return one with the same metadata and rules too: rather of the very same text, active, and new."""
    same = [at for at in versions if (at.metadata, at.rules) == (wanted.metadata, wanted.rules)]
    return max(same, key=lambda at: (at.schema == wanted.schema, at.state == "active", at.version), default=None)


def numbered(v: SchemaVersion, found: Mapping[Place, SchemaVersion]) -> SchemaVersion | None:
    """Return a version with references as they are numbered on the target; None if one isn't there."""
    context, references = context_of(v.subject), list[SchemaReference]()
    for r in v.references:
        at = found.get((qualified(r.subject, context), r.version)) or found.get((r.subject, r.version))
        if at is None:
            return None
        references.append(replace(r, version=at.version))
    return replace(v, references=tuple(references))


def same_schema(one: SchemaVersion, other: SchemaVersion) -> bool:
    """Return whether both have the same type and references, and the same text but for white space."""
    return content_digest(one) == content_digest(other)


def content_digest(v: SchemaVersion) -> str:
    """Return hex digits that schemas of equal type, references and text have in common."""
    text: object = " ".join(v.schema.split())
    if v.type != "PROTOBUF":
        with suppress(msgspec.DecodeError, RecursionError):
            text = msgspec.json.encode(msgspec.json.decode(v.schema), order="sorted")
    references = sorted((r.name, qualified(r.subject, context_of(v.subject)), r.version) for r in v.references)
    return hashlib.sha256(msgspec.json.encode([v.type, text, references])).hexdigest()[:16]


def text_digest(v: SchemaVersion) -> str:
    """Return hex digits that schemas of equal type and text have in common, whatever they refer to."""
    return content_digest(replace(v, references=()))


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
    subjects = set(registry.subjects(deleted=True))
    due = [version for _, version in versions]
    there = read_subjects(registry, [version for version in due if version.subject in subjects])
    found = locate(registry, due, mode, there)
    clashes: list[str] = []
    if mode == "same":
        clashes = _clashes(registry, versions, found)
    steps: list[PlannedSchema] = []
    for source, version in versions:
        action = _action(version, found.get((version.subject, version.version)))
        steps.append(PlannedSchema(source=source, schema=version, action=action))
    names = {step.source: step.schema.subject for step in steps}
    created = {step.schema.subject for step in steps if step.action != "exists"}
    general = [each.subject for each in settings if each.subject == context_of(each.subject)]
    now = _answers(registry.settings, dict.fromkeys(["", *general, *(version.subject for version in due)]))
    after: list[SubjectSettings] = []
    notes: list[str] = []
    for each in settings:
        is_general = each.subject in general
        name = each.subject if is_general else names.get(each.subject)
        if name is None:
            continue
        before = now[name]
        wanted = replace(before, config=each.config or before.config, mode=each.mode or before.mode)
        if wanted != before and is_general and (prefix or subjects):
            notes.append(f"{settings_words(each)} of {each.subject or 'all subjects'} is not set: others depend on it")
        elif wanted != before:
            after.append(wanted)
    after.sort(key=attrgetter("subject"), reverse=True)  # a mode for all comes last
    touched = {"", *names.values(), *(each.subject for each in after)}
    versions_before = {name: tuple(sorted(there[name])) for name in sorted(created & there.keys())}
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


def _action(version: SchemaVersion, at: SchemaVersion | None) -> Literal["create", "undelete", "exists"]:
    """Return what a version needs; `at` is what the target has of it."""
    if at is None:
        return "create"
    if at.state == "active" or version.state != "active":
        return "exists"
    return "undelete"


def _clashes(
    registry: SchemaRegistry, versions: Iterable[tuple[str, SchemaVersion]], found: Mapping[Place, SchemaVersion]
) -> list[str]:
    """Return in words which versions can't get their own ids: the target has other schemas in their places, or under
    their ids. `found` is what it has in these places."""
    clashes: list[str] = []
    due = list(versions)
    holders = _holders(registry, [version for _, version in due])
    for source, v in due:
        at = found.get((v.subject, v.version))
        # two versions of the restore point itself may have one id, as only one schema
        holder = holders.setdefault((context_of(v.subject), v.id), v)
        here = f"{source} version {v.version} of the restore point"
        if at is not None and (at.id != v.id or not same_schema(at, v)):
            clashes.append(f"{v.subject} version {v.version} is another schema, with id {at.id}; {here} has id {v.id}")
        elif at is None and not same_schema(holder, v):
            clashes.append(f"id {v.id} is taken by {holder.subject} version {holder.version}; {here} has it too")
    return clashes


def _holders(registry: SchemaRegistry, versions: Iterable[SchemaVersion]) -> dict[tuple[str, int], SchemaVersion]:
    """Return which schemas the target has under the ids of some versions, by context and id."""
    ids = sorted({(context_of(version.subject), version.id) for version in versions})
    places = _answers(lambda key: registry.places(key[1], key[0]), ids)
    taken = [key for key in ids if places[key]]
    holders = _answers(lambda key: registry.version(*places[key][0]), taken)
    return {key: holder for key, holder in holders.items() if holder is not None}


def settings_words(settings: SubjectSettings) -> str:
    """Return what is set, in words."""
    values = {"compatibility": (settings.config or {}).get("compatibilityLevel"), "mode": settings.mode}
    return " and ".join(f"{name} {value}" for name, value in values.items() if value)


def prepare_schemas(
    registry: SchemaRegistry,
    schemas: Schemas,
    carried: Collection[SchemaVersion],
    mode: Mode,
    prefix: str = "",
    subjects: Selection | None = None,
) -> SchemaPlan:
    """Plan to bring back the schemas of `subjects`, or else those with the ids of `carried`, which records carry. Write
    nothing."""
    versions, problems = planned_versions(schemas, carried, prefix, subjects)
    return plan_schemas(registry, versions, schemas.settings, mode, prefix, problems)
