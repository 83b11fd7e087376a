"""What a backup takes of a schema registry: after the records, so that it has every id that they carry."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from kbackup.archive.models import Schemas, TopicState
from kbackup.archive.schemas import (
    NO_SCHEMAS,
    NOT_READ,
    Place,
    SchemaIndex,
    evidently_names,
    ids_in_use,
    same_schemas,
    unknown_ids,
    used_schemas,
)
from kbackup.archive.uncovered_schemas import ApicurioIds, apicurio_ids, apicurio_uses, apicurio_words, unlisted_words
from kbackup.errors import UnreachableError
from kbackup.jobs.schemas.plan import open_registry, read_subject
from kbackup.schemas.base import RegistryOptions, SchemaVersion, context_of, qualified
from kbackup.util.system import in_threads
from kbackup.util.text import join_names, plural
from kbackup.util.times import now

if TYPE_CHECKING:
    from kbackup.kafka.schema_registry import SchemaRegistry

Keep = Literal["used", "all", "none"]
_MOST_VERSIONS = 1_000_000
_MOST_BYTES = 1 << 30  # of all texts
_AGAIN = 60.0  # s, until a follower asks the registry again for what it knows


class TakenSchemas(NamedTuple):
    """The schemas of a restore point, None if the restore point has none, and what to report of them.

    With `failed`, the registry could not be read, and the schemas are those of an earlier restore point. With
    `unlisted`, records carry ids that nobody knows, so all subjects are kept.
    """

    schemas: Schemas | None = None
    warnings: tuple[str, ...] = ()
    note: str = ""
    failed: bool = False
    unlisted: bool = False


class _Answer(NamedTuple):
    """What the registry answered at `moment`, when records carried the ids `asked`."""

    moment: float
    asked: set[int | str]
    schemas: Schemas


class _Failure(NamedTuple):
    moment: float
    message: str


@dataclass
class BackupSchemas:
    """The registry of the source, for one backup or for all rounds of a follower. `keep` is `backup.schemas`."""

    options: RegistryOptions = field(default_factory=RegistryOptions)
    keep: Keep = "none"
    _answer: _Answer | None = None
    _failure: _Failure | None = None

    @property
    def active(self) -> bool:
        return self.keep != "none" and bool(self.options.url)

    def check(self) -> None:
        """Raise `UsageError` for options that can't be used, before any record is read."""
        if self.active:
            self._registry  # noqa: B018 (made now)

    def take(self, topics: Iterable[TopicState], before: Schemas | None, again: bool = True) -> TakenSchemas:
        """Return the schemas for a restore point of `topics`. `before` are the schemas of the restore point before.
        With `again` False, the registry is not asked if it was a minute ago, and no new ids have come."""
        topics = list(topics)
        if not self.active:
            return TakenSchemas(before, note=self._note(topics, before))
        moment = time.monotonic()
        used = ids_in_use(topics)
        of_apicurio = apicurio_ids(topics)
        all_ids = used | of_apicurio.content_ids | of_apicurio.global_ids
        taken = None if again else self._recent_answer(moment, all_ids)
        if taken is None:
            # A registry that is down is waited for at length: a follower's rounds can't do that each time.
            is_failure_recent = self._failure is not None and moment - self._failure.moment < _AGAIN
            if self._failure is not None and is_failure_recent and not again:
                return _kept(before, self._failure.message)
            try:
                taken = self._capture(topics, used, of_apicurio, before)
            except UnreachableError as error:
                self._failure = _Failure(moment, error.message)
                return _kept(before, error.message)
            self._answer = _Answer(moment, all_ids, taken)
            self._failure = None
        # whoever keeps all subjects by choice misses nothing
        unlisted = unlisted_words(topics, taken) if self.keep != "all" else []
        warnings = _warnings(topics, taken, unlisted)
        # The same object as before, where nothing changed: the restore point then refers to the document that it is in.
        kept = before if before is not None and same_schemas(before, taken) else taken
        return TakenSchemas(kept, warnings, unlisted=bool(unlisted))

    def _recent_answer(self, moment: float, ids: set[int | str]) -> Schemas | None:
        """Return the registry's last answer if it is recent and has all of `ids`."""
        answer = self._answer
        if answer is None or moment - answer.moment > _AGAIN or not ids <= answer.asked:
            return None
        return answer.schemas

    def _note(self, topics: Collection[TopicState], before: Schemas | None) -> str:
        """Return a note on records that name schemas where no registry is asked."""
        if self.keep == "none" or before is not None:
            return ""
        framed = {use.topic for use in apicurio_uses(topics, None)}
        for topic in topics:
            if any(map(evidently_names, used_schemas(topic))):
                framed.add(topic.name)
        if not framed:
            return ""
        return (
            f"records of {join_names(sorted(framed), 3)} name schemas of a registry, which this restore point lacks: "
            "set schema_registry.url"
        )

    def _capture(
        self, topics: Collection[TopicState], used: set[int | str], of_apicurio: ApicurioIds, before: Schemas | None
    ) -> Schemas:
        """Read the registry: all subjects if the user keeps all, or if records may carry ids that nobody knows."""
        contents = self._contents(of_apicurio.global_ids)
        due = used | of_apicurio.content_ids | (contents or set())
        all_counted = all(topic.all_counted for topic in topics)  # older versions counted no ids
        are_contents_known = contents is not None or not of_apicurio.by_header
        are_ids_known = all_counted and of_apicurio.complete and are_contents_known
        if self.keep == "used" and are_ids_known and not unlisted_words(topics, before):
            taken = capture_schemas(self._registry, due, before, "used")
            # Only the answer shows whether the registry has the schemas of ids that records carry without listing them.
            if not unlisted_words(topics, taken):
                return taken
        return capture_schemas(self._registry, due, before, "all")

    def _contents(self, global_ids: Collection[int]) -> set[int | str] | None:
        """Return the ids that Apicurio's global ids stand for; None if the registry does not know them all."""
        answers = in_threads(self._registry.content_of, sorted(global_ids))
        if None in answers:
            return None
        return {answer for answer in answers if answer}

    @cached_property
    def _registry(self) -> SchemaRegistry:
        return open_registry(self.options, "schema_registry")


def _warnings(topics: Sequence[TopicState], taken: Schemas, unlisted: Sequence[str]) -> tuple[str, ...]:
    warnings: list[str] = []
    for use in unknown_ids(topics, SchemaIndex(taken)):
        records = plural(use.fields, "record")
        warnings.append(
            f"{use.part}s of {use.topic} carry schema {use.id} ({records}), which the registry does not have"
        )
    for apicurio_use in apicurio_uses(topics, taken):
        warnings.append(apicurio_words(apicurio_use))
    for words in unlisted:
        warnings.append(f"{words}. All subjects are kept: set backup.schemas to all")
    return tuple(warnings)


def _kept(before: Schemas | None, why: str) -> TakenSchemas:
    """Return the schemas of the restore point before, for a registry that could not be read."""
    kept = "are those of the restore point before" if before is not None else "are not in it"
    return TakenSchemas(before, (f"{NOT_READ} {kept}: {why}",), failed=True)


def capture_schemas(
    registry: SchemaRegistry, used: Collection[int | str], before: Schemas | None, keep: Literal["used", "all"]
) -> Schemas:
    """Read a registry: all of its subjects, or the subjects of the ids `used` with what they refer to. Versions that
    `before` has are not read again, apart from each subject's last one. What only `before` has is kept if it is in
    use."""
    contexts = registry.contexts()
    due = set(registry.subjects(deleted=True)) if keep == "all" else _subjects_of_ids(registry, used, contexts)
    before = before or NO_SCHEMAS
    versions = _read_versions(registry, due, before)
    gone = _gone(before, used, versions)
    all_versions = [*versions.values(), *gone]
    all_versions.sort(key=_by_place)
    # Settings of the registry as a whole are those of the subject ''.
    subjects = {"", *contexts}
    subjects.update(subject for subject, _ in versions)
    answers = in_threads(registry.settings, sorted(subjects))
    settings = [each for each in answers if each.config is not None or each.mode is not None]
    return Schemas(
        captured_at=now(), registry=registry.url, kept=keep, versions=tuple(all_versions), settings=tuple(settings)
    )


def _by_place(version: SchemaVersion) -> tuple[str, int, str]:
    return version.subject, version.version, version.state


def _subjects_of_ids(registry: SchemaRegistry, used: Collection[int | str], contexts: Collection[str]) -> set[str]:
    """Return the subjects that have versions of the ids."""
    asked: list[tuple[int | str, str]] = []
    for schema_id in used:
        # A number may stand for another schema in each context. A GUID is the same in all of them.
        asked_in = contexts if isinstance(schema_id, int) else [""]
        asked += [(schema_id, context) for context in asked_in]

    def places(asked_for: tuple[int | str, str]) -> list[Place]:
        schema_id, context = asked_for
        return registry.places(schema_id, context)

    subjects: set[str] = set()
    for answer in in_threads(places, asked):
        subjects.update(subject for subject, _ in answer)
    return subjects


def _read_versions(registry: SchemaRegistry, subjects: set[str], before: Schemas) -> dict[Place, SchemaVersion]:
    """Read all versions of `subjects`, and of the subjects that they refer to. `UnreachableError` if they are too many:
    something else than a registry may answer, and a backup must not fill the memory with that."""
    # A version that was gone is read again if the registry has one in its place now: it may be another.
    there_before = [version for version in before.versions if version.state != "gone"]
    known = {(version.subject, version.version): version for version in there_before}

    def read(subject: str) -> list[SchemaVersion]:
        return read_subject(registry, subject, known)

    versions: dict[Place, SchemaVersion] = {}
    size = 0
    due = subjects
    while due:
        referred: set[str] = set()
        for new in in_threads(read, sorted(due)):
            for version in new:
                versions[version.subject, version.version] = version
                size += len(version.schema)
                context = context_of(version.subject)
                for reference in version.references:
                    # A reference may mean a subject of its own context or one of the default context.
                    referred.add(reference.subject)
                    referred.add(qualified(reference.subject, context))
        if len(versions) > _MOST_VERSIONS or size > _MOST_BYTES:
            raise UnreachableError(
                f"the schema registry {registry.url} has more than {_MOST_VERSIONS:,} versions, or 1 GiB of schemas",
                "check what answers at schema_registry.url",
            )
        done = {subject for subject, _ in versions}
        due = referred - due - done
    return versions


def _gone(before: Schemas, used: Collection[int | str], versions: Mapping[Place, SchemaVersion]) -> list[SchemaVersion]:
    """Return the versions that records need and the registry no longer has. Records need the versions of their ids, and
    the versions that schemas refer to; the registry may still have the schemas that refer."""
    was = SchemaIndex(before)
    now_there: set[tuple[str, int | str]] = set()
    for version in versions.values():
        context = context_of(version.subject)
        now_there.add((context, version.id))
        now_there.add((context, version.guid))
    gone: dict[Place, SchemaVersion] = {}
    waiting = list(versions.values())

    def keep(version: SchemaVersion) -> None:
        gone[version.subject, version.version] = msgspec.structs.replace(version, state="gone")
        waiting.append(version)

    for schema_id in used:
        if schema_id not in was:
            continue
        version = was.find(schema_id)
        if (context_of(version.subject), schema_id) in now_there:
            continue
        if (version.subject, version.version) not in gone:
            keep(version)
    while waiting:
        version = waiting.pop()
        for reference in version.references:
            needed = was.referred(version, reference)
            if needed is None:  # it could not be read before either
                continue
            place = needed.subject, needed.version
            at = versions.get(place)
            is_there = at is not None and msgspec.structs.replace(needed, state=at.state) == at
            if not is_there and place not in gone:
                keep(needed)
    return list(gone.values())
