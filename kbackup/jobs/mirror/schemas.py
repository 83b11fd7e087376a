"""The schemas of mirrored records: the target's registry has them before the records of a restore point are applied."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from kbackup.archive.models import DocumentRef, Manifest
from kbackup.archive.reader import Archive
from kbackup.archive.schemas import ids_in_use
from kbackup.archive.uncovered_schemas import forms_of, uncovered
from kbackup.errors import ClusterError
from kbackup.jobs.mirror.apply.held import reason_of
from kbackup.jobs.mirror.flow import Flow, RemoteTopic
from kbackup.jobs.replay import SchemaRewrite
from kbackup.jobs.schemas.plan import SchemaPlan, open_registry, prepare_schemas
from kbackup.jobs.schemas.records import rewrite_of
from kbackup.jobs.schemas.write import apply_schemas, lost_since, schema_map
from kbackup.store.base import Store
from kbackup.util.text import join_names

if TYPE_CHECKING:
    from kbackup.kafka.schema_registry import SchemaRegistry


class AwaitedSchemasError(ClusterError):
    """Records wait for their schemas: the archive or the target's registry has not what they name."""


@dataclass
class MirrorSchemas:
    """Registers the schemas of one flow, by `kbackup.schemas`, and remembers what the last round needed."""

    flow: Flow
    state: Store
    uncovered: tuple[str, ...] = ()
    """What names schemas in the records of the last round and is not mapped, in words."""
    _known: tuple[DocumentRef | None, frozenset[int | str], frozenset[tuple[str, str, str]]] | None = None
    _rewrite: SchemaRewrite | None = None

    def register(self, archive: Archive, point: Manifest, topics: Sequence[RemoteTopic]) -> SchemaRewrite | None:
        """Return the new ids of the records of a restore point; None if they keep theirs. `AwaitedSchemasError` while a
        record names a schema that the restore point lacks: a later one may have it."""
        if self.flow.schemas == "none":
            return None
        sources = {topic.source for topic in topics}
        states = [topic for topic in point.topics if topic.name in sources]
        forms = frozenset((use.topic, use.part, use.form) for use in forms_of(states))
        needed = point.schemas, frozenset(ids_in_use(states)), forms
        if needed == self._known:
            return self._rewrite
        schemas = archive.schemas(point)
        self.uncovered = tuple(uncovered(states, schemas))
        if schemas is None:
            if not needed[1]:
                return None
            raise self._waits([f"restore point {point.number} has none"])
        registry = open_registry(self.flow.target_registry)
        plan = prepare_schemas(registry, schemas, states, self.flow.schemas)
        if plan.problems:
            raise self._waits(plan.problems)
        self._rewrite = rewrite_of(apply_schemas(registry, self.state, self._id(registry, plan), plan))
        self._known = needed
        return self._rewrite

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
            done = schema_map(self.state, noted)
            if done is None or not lost_since(registry, done.places):
                return noted
        raise AssertionError  # there is always another one


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
