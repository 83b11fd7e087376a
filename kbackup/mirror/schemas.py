"""The schemas of mirrored records: the target's registry has them before the records of a restore point are applied."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from kbackup.archive.models import DocumentRef, Manifest, Schemas, TopicState
from kbackup.archive.reader import Archive
from kbackup.archive.restores.journal import RestoreJournal
from kbackup.archive.schemas import NOT_READ, SchemaIndex, ids_in_use
from kbackup.archive.uncovered_schemas import forms_of, uncovered
from kbackup.errors import ClusterError
from kbackup.jobs.schemas.documents import schema_map
from kbackup.jobs.schemas.judgement import sample_of, unmapped_words
from kbackup.jobs.schemas.plan import Mode, SchemaPlan, open_registry
from kbackup.jobs.schemas.records import JudgedRecords, plan_judged, rewrite_of
from kbackup.jobs.schemas.rewrite import SchemaRewrite
from kbackup.jobs.schemas.write import apply_schemas, lost_since
from kbackup.mirror.apply.held import reason_of
from kbackup.mirror.flow import Flow, RemoteTopic
from kbackup.store.base import Store
from kbackup.util.text import join_names

if TYPE_CHECKING:
    from kbackup.kafka.schema_registry import SchemaRegistry


class AwaitedSchemasError(ClusterError):
    """Records wait for their schemas: the archive or the target's registry lacks what they name."""


class NeededSchemas(NamedTuple):
    """What the records of a restore point need of its `schemas`. As long as a flow needs the same, nothing is asked.

    `ids` are those that records carry, `framed` the keys and values (by topic and part) that look framed, and `forms`
    those that have a form of Apicurio's own."""

    schemas: DocumentRef | None
    ids: frozenset[int | str]
    framed: frozenset[tuple[str, str]]
    forms: frozenset[tuple[str, str, str]]


@dataclass
class MirrorSchemas:
    """Registers the schemas of one flow, by `kbackup.schemas`, and remembers what the last round needed."""

    flow: Flow
    state: Store
    uncovered: tuple[str, ...] = ()
    """What names schemas in the records of the last round and is not mapped, in words."""
    _read: tuple[DocumentRef, Schemas] | None = None
    _known: NeededSchemas | None = None
    _rewrite: SchemaRewrite | None = None

    def register(self, archive: Archive, point: Manifest, topics: Sequence[RemoteTopic]) -> SchemaRewrite | None:
        """Return the new ids of the records of a restore point; None if they keep theirs.

        `AwaitedSchemasError` while nobody knows the schemas of records, as the registry could not be read when the
        restore point was taken: a later one has them. A record whose schema that registry does not have is left as it
        is, or is waited for (`kbackup.schemas.unmapped`)."""
        mode = self.flow.schemas
        if mode == "none":
            return None
        sources = {topic.source for topic in topics}
        states = [topic for topic in point.topics if topic.name in sources]
        schemas = self._schemas(archive, point)
        if schemas is None:
            self.uncovered = tuple(uncovered(states, schemas))
            if ids_in_use(states):
                raise self._waits([f"restore point {point.number} has none"])
            return None
        # A round follows the other within tenths of a second: the registry is asked when something new is needed.
        needed = needed_schemas(point.schemas, schemas, states)
        if needed != self._known:
            self.uncovered = tuple(uncovered(states, schemas))
            registry = open_registry(self.flow.target_registry)
            records = JudgedRecords(schemas, point.schemas, states, sample_of(archive, point))
            plan = self._plan(registry, mode, point, records)
            self._rewrite = self._register(registry, plan, archive)
            self._known = needed
        return self._rewrite

    def _plan(self, registry: SchemaRegistry, mode: Mode, point: Manifest, records: JudgedRecords) -> SchemaPlan:
        """Plan what to register for the records of a restore point."""
        plan = plan_judged(registry, records, mode, self.flow.schema_topics, self.flow.unmapped)
        lacking = unmapped_words(plan.judged)
        # If the registry was read, it does not have these schemas, and a later restore point will not have them either:
        # the plan says what becomes of such records. If it was not read, waiting helps.
        was_read = not any(warning.startswith(NOT_READ) for warning in point.warnings)
        if lacking and not was_read:
            raise self._waits([f"the registry was not read for restore point {point.number}", *lacking])
        if plan.problems:
            raise self._waits(plan.problems)
        return plan

    def _register(self, registry: SchemaRegistry, plan: SchemaPlan, archive: Archive) -> SchemaRewrite | None:
        """Register the schemas of a plan. Return the new ids of the records; None if they keep theirs."""
        done = apply_schemas(registry, RestoreJournal(self.state, self._id(registry, plan)), plan)
        # The map may have been made in an earlier round, with fewer records to judge by.
        done = replace(done, judged=plan.judged, unmapped=plan.unmapped, archived=plan.archived)
        return rewrite_of(done, archive.store)

    def _schemas(self, archive: Archive, point: Manifest) -> Schemas | None:
        """Return the schemas of a restore point. Schemas that the last round has read are not read again."""
        if point.schemas is None:
            return None
        if self._read is None or self._read[0] != point.schemas:
            schemas = archive.schemas(point)
            if schemas is None:
                return None
            self._read = point.schemas, schemas
        return self._read[1]

    def _waits(self, why: Sequence[str]) -> AwaitedSchemasError:
        return AwaitedSchemasError(
            f"the records of {self.flow.name} wait for their schemas: {join_names(why, 5, '; ')}",
            "see 'kbackup schemas show', and register what is missing; kbackup.schemas = none copies the ids",
        )

    def _id(self, registry: SchemaRegistry, plan: SchemaPlan) -> str:
        """Return the id under which a plan is noted beside those of restores: the same one after a crash, another one
        after the target has lost what was registered."""
        wanted = [(step.schema.subject, step.schema.version, step.schema.id) for step in plan.steps]
        for attempt in count():
            of = repr((self.flow.name, plan.registry, plan.mode, plan.parts, wanted, attempt))
            noted = f"mirror-{hashlib.sha256(of.encode()).hexdigest()[:24]}"
            done = schema_map(RestoreJournal(self.state, noted))
            if done is None or not lost_since(registry, done.places):
                return noted
        raise AssertionError  # there is always another one


def needed_schemas(document: DocumentRef | None, schemas: Schemas, states: Sequence[TopicState]) -> NeededSchemas:
    """Return what records of these topics need of a restore point's schemas."""
    index = SchemaIndex(schemas)
    # Not all ids: keys that only look like frames bring new ones in every round, and each would ask the registry again.
    ids = frozenset(each for each in ids_in_use(states) if each in index)
    framed: set[tuple[str, str]] = set()
    for topic in states:
        for used in topic.schemas:
            if used.framed:
                framed.add((topic.name, used.part))
    forms = frozenset((use.topic, use.part, use.form) for use in forms_of(states))
    return NeededSchemas(document, ids, frozenset(framed), forms)


_PAUSE = 60.0  # s, before the registry is asked again about topics whose schemas were missing


@dataclass
class TopicSchemas:
    """Finds the topics whose schemas can't be had, so that they wait alone. `now` is a clock in seconds."""

    schemas: MirrorSchemas
    now: Callable[[], float] = time.monotonic
    _withheld: dict[str, str] = field(default_factory=dict)
    _asked: float = 0.0

    def register(
        self, archive: Archive, point: Manifest, topics: Sequence[RemoteTopic]
    ) -> tuple[SchemaRewrite | None, dict[str, str]]:
        """Return the new ids of the records of a restore point (None if they keep theirs), and why by remote topic,
        where a topic waits for its schemas."""
        if self._withheld and self.now() - self._asked >= _PAUSE:
            self._withheld = {}
        try:
            return self._register_others(archive, point, topics), dict(self._withheld)
        except AwaitedSchemasError:
            # The error does not say which topics it concerns, so each is asked about alone, and only now.
            self._withheld = self._find_waiting(archive, point, topics)
            self._asked = self.now()
        return self._register_others(archive, point, topics), dict(self._withheld)

    def _register_others(
        self, archive: Archive, point: Manifest, topics: Sequence[RemoteTopic]
    ) -> SchemaRewrite | None:
        others = [topic for topic in topics if topic.remote not in self._withheld]
        return self.schemas.register(archive, point, others)

    def _find_waiting(self, archive: Archive, point: Manifest, topics: Sequence[RemoteTopic]) -> dict[str, str]:
        """Ask for the schemas of each topic alone. Those that are there are registered by that, as they are later by
        all topics together."""
        waiting: dict[str, str] = {}
        for topic in topics:
            try:
                self.schemas.register(archive, point, [topic])
            except AwaitedSchemasError as error:
                waiting[topic.remote] = reason_of(error)
        return waiting
