"""What a backup takes of a schema registry: after the records, so that it has every id that they carry."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
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
    """The schemas of a restore point, None if it has none, and what is to be said. `failed`: they could not be read,
    and are those of an earlier restore point. `unlisted`: records carry ids that nobody knows, so that all subjects are
    kept."""

    schemas: Schemas | None = None
    warnings: tuple[str, ...] = ()
    note: str = ""
    failed: bool = False
    unlisted: bool = False


@dataclass
class BackupSchemas:
    """The registry of the source, for one backup or for all rounds of a follower. `keep` is `backup.schemas`."""

    options: RegistryOptions = field(default_factory=RegistryOptions)
    keep: Keep = "none"
    _asked: tuple[float, set[int | str], Schemas] | None = None
    _failure: tuple[float, str] | None = None

    @property
    def active(self) -> bool:
        return self.keep != "none" and bool(self.options.url)

    def check(self) -> None:
        """Raise `UsageError` for options that can't be used, before any record is read."""
        if self.active:
            self._registry  # noqa: B018 (made now)

    def take(self, topics: Iterable[TopicState], before: Schemas | None, again: bool = True) -> TakenSchemas:
        """Return the schemas for a restore point of `topics`, which goes on from one with the schemas `before`. Not
        `again`: the registry is not asked if it was a minute ago, and no new ids have come."""
        topics = list(topics)
        if not self.active:
            return TakenSchemas(before, note=self._note(topics, before))
        used, moment = ids_in_use(topics), time.monotonic()
        of_apicurio = apicurio_ids(topics)
        every = used | of_apicurio.content_ids | of_apicurio.global_ids
        taken: Schemas | None = None
        if not again and self._asked is not None:
            last, ids, answer = self._asked
            taken = answer if moment - last <= _AGAIN and every <= ids else None
        if taken is None:
            if not again and self._failure is not None and moment - self._failure[0] < _AGAIN:
                return _kept(before, self._failure[1])  # a round can't wait for it each time
            try:
                taken = self._capture(topics, used, of_apicurio, before)
            except UnreachableError as error:
                self._failure = moment, error.message
                return _kept(before, error.message)
            self._asked, self._failure = (moment, every, taken), None
        warnings = [
            f"{u.part}s of {u.topic} carry schema {u.id} ({plural(u.fields, 'record')}), which the registry has not"
            for u in unknown_ids(topics, SchemaIndex(taken))
        ]
        warnings += map(apicurio_words, apicurio_uses(topics, taken))
        # whoever keeps all subjects by choice misses nothing
        unlisted = unlisted_words(topics, taken) if self.keep != "all" else []
        warnings += [f"{words}. All subjects are kept: set backup.schemas to all" for words in unlisted]
        kept = before if before is not None and same_schemas(before, taken) else taken
        return TakenSchemas(kept, tuple(warnings), unlisted=bool(unlisted))

    def _note(self, topics: Collection[TopicState], before: Schemas | None) -> str:
        """Return what is to be said of records that name schemas where no registry is asked."""
        if self.keep == "none" or before is not None:
            return ""
        framed = {topic.name for topic in topics if any(map(evidently_names, used_schemas(topic)))}
        framed |= {use.topic for use in apicurio_uses(topics, None)}
        if not framed:
            return ""
        return (
            f"records of {join_names(sorted(framed), 3)} name schemas of a registry, which this restore point lacks: "
            "set schema_registry.url"
        )

    def _capture(
        self, topics: Collection[TopicState], used: set[int | str], of_apicurio: ApicurioIds, before: Schemas | None
    ) -> Schemas:
        """Read the registry: all subjects where it is asked for, and where records may carry ids that nobody knows."""
        contents = self._contents(of_apicurio.global_ids)
        due = used | of_apicurio.content_ids | (contents or set())
        all_counted = all(topic.all_counted for topic in topics)  # older versions counted no ids
        are_contents_known = contents is not None or not of_apicurio.by_header
        are_ids_known = all_counted and of_apicurio.complete and are_contents_known
        if self.keep == "used" and are_ids_known and not unlisted_words(topics, before):
            taken = capture_schemas(self._registry, due, before, "used")
            if not unlisted_words(topics, taken):
                return taken
        return capture_schemas(self._registry, due, before, "all")

    def _contents(self, global_ids: Collection[int]) -> set[int | str] | None:
        """Return the ids that Apicurio's global ids stand for; None if the registry does not tell them."""
        found = in_threads(self._registry.content_of, sorted(global_ids))
        return None if None in found else {each for each in found if each}

    @cached_property
    def _registry(self) -> SchemaRegistry:
        return open_registry(self.options, "schema_registry")


def _kept(before: Schemas | None, why: str) -> TakenSchemas:
    kept = "are those of the restore point before" if before is not None else "are not in it"
    return TakenSchemas(before, (f"{NOT_READ} {kept}: {why}",), failed=True)


def capture_schemas(
    registry: SchemaRegistry, used: Collection[int | str], before: Schemas | None, keep: Literal["used", "all"]
) -> Schemas:
    """Read a registry: all of its subjects, or those of the ids `used` with what they refer to. Versions that `before`
    has are not read again, apart from each subject's last one. What only `before` has is kept if it is in use."""
    contexts = registry.contexts()
    if keep == "all":
        due = set(registry.subjects(deleted=True))
    else:
        # a GUID is that of all contexts
        asked = [(each, at) for each in used for at in (contexts if isinstance(each, int) else [""])]
        found = in_threads(lambda each: registry.places(*each), asked)
        due = {subject for places in found for subject, _ in places}
    known = {(v.subject, v.version): v for v in (before or NO_SCHEMAS).versions if v.state != "gone"}
    versions: dict[Place, SchemaVersion] = {}
    size = 0
    while due:
        read = in_threads(lambda subject: read_subject(registry, subject, known), sorted(due))
        new = [v for each in read for v in each]
        versions |= {(v.subject, v.version): v for v in new}
        size += sum(len(v.schema) for v in new)
        if len(versions) > _MOST_VERSIONS or size > _MOST_BYTES:
            raise UnreachableError(
                f"the schema registry {registry.url} has more than {_MOST_VERSIONS:,} versions, or 1 GiB of schemas",
                "check what answers at schema_registry.url",
            )
        done = due | {subject for subject, _ in versions}
        referred = {(r.subject, context_of(v.subject)) for v in new for r in v.references}
        due = {name for subject, context in referred for name in (subject, qualified(subject, context))} - done
    gone = _gone(before or NO_SCHEMAS, used, versions)
    subjects = sorted({"", *contexts, *(subject for subject, _ in versions)})
    settings = in_threads(registry.settings, subjects)
    return Schemas(
        captured_at=now(),
        registry=registry.url,
        kept=keep,
        versions=tuple(sorted([*versions.values(), *gone], key=lambda v: (v.subject, v.version, v.state))),
        settings=tuple(each for each in settings if each.config is not None or each.mode is not None),
    )


def _gone(before: Schemas, used: Collection[int | str], versions: Mapping[Place, SchemaVersion]) -> list[SchemaVersion]:
    """Return the versions that records need and the registry has no more: those of their ids, and what schemas refer
    to, also schemas that the registry still has."""
    was = SchemaIndex(before)
    now_there = {(context_of(v.subject), each) for v in versions.values() for each in (v.id, v.guid)}
    gone: dict[Place, SchemaVersion] = {}
    waiting = list(versions.values())

    def keep(version: SchemaVersion) -> None:
        gone[version.subject, version.version] = msgspec.structs.replace(version, state="gone")
        waiting.append(version)

    for each in (each for each in used if each in was):
        found = was.find(each)
        if (context_of(found.subject), each) not in now_there and (found.subject, found.version) not in gone:
            keep(found)
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
