"""What decodes records by the schemas of a restore point, unasked: keys and values that a serializer wrote.

An id alone proves nothing: a number of eight bytes may begin like a frame. So the counts of backups and the names of
subjects tell which keys and values are a serializer's. A registry is never asked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from kbackup.archive.models import Manifest, Schemas, TopicState, UsedSchemas
from kbackup.archive.reader import Archive
from kbackup.archive.schemas import (
    ArchivedSchemas,
    SchemaIndex,
    TopicSubjects,
    archived_schemas,
    built_in_files,
    ids_of,
    is_serializers,
    used_schemas,
    usual_id,
)
from kbackup.errors import CorruptError, KbackupError, NotFoundError, UndecodableError, UsageError
from kbackup.formats.schema_ids import PARTS, Part
from kbackup.schemas.base import Headers, RegistryOptions, SchemaVersion, context_of
from kbackup.schemas.decoder import HEADERS, ByRegistry, Decoder, Made, NamedSchemas, Undecoded, frame_of, payload_fits

NO_NAME = "it names no schema"


@dataclass(frozen=True)
class TopicDecoder:
    """Decodes the keys, or the values, of a topic: a `schemas.decoder.Decoder`.

    - `named`: all records were counted, and a serializer wrote these keys or values. Those that can't be decoded have
      a reason. Otherwise nobody has counted, and only what evidently is a serializer's is decoded.
    - `own` are the ids of the topic's subjects. If there are `subjects` of this topic and side, no other id is
      believed.
    """

    topic: str
    part: Part
    named: bool
    own: frozenset[int | str]
    subjects: bool
    index: SchemaIndex
    by_id: ByRegistry

    def __call__(self, data: bytes, headers: Headers) -> Made:
        try:
            frame = frame_of(data, headers, HEADERS[self.part])
        except UndecodableError as error:
            return Undecoded(error.message)
        if frame is None:
            return Undecoded(NO_NAME) if self.named else None
        if frame.schema in self.own:
            return self.by_id(data, headers)
        if frame.schema not in self.index:
            return Undecoded(f"the restore point has no schema {frame.schema}") if self.named else None
        if self.subjects:
            return Undecoded(
                f"schema {frame.schema} is of no subject of the {self.part}s of topic {self.topic}; "
                f"--decode {self.part} decodes by its id alone"
            )
        if self.named:
            return self.by_id(data, headers)
        codec = self.by_id.codec(frame.schema)
        apart = data if frame.apart else None
        if isinstance(codec, Undecoded) or not payload_fits(codec, frame.rest, apart):
            return None
        return self.by_id(data, headers)


Unavailable = Callable[[KbackupError], None]
"""Gets the reason why nothing can be decoded, once: a library that is not installed, or damaged schemas."""


class TopicDecoders:
    """What decodes the records of a restore point, by topic and part. Thread-safe.

    Schemas are read when a topic first needs them. Where a library is missing, or the schemas are damaged, records stay
    as they are: `unavailable` gets the error, once.
    """

    def __init__(
        self, topics: Iterable[TopicState], read: Callable[[], OpenedSchemas | None], unavailable: Unavailable
    ) -> None:
        self._topics: dict[str, TopicState] = {}
        for topic in topics:
            # Of several incarnations, one that is there counts more than a deleted one.
            if topic.name not in self._topics or topic.state != "deleted":
                self._topics[topic.name] = topic
        self._read, self._unavailable = read, unavailable
        self.is_broken = False
        self._opened: OpenedSchemas | None = None
        self._made: dict[tuple[str, str], Decoder | None] = {}
        self._lock = threading.RLock()

    def decoder(self, topic: str, part: str) -> Decoder | None:
        """Return what decodes the keys, or the values, of a topic; None if they are no serializer's."""
        with self._lock:
            key = (topic, part)
            if key not in self._made:
                self._made[key] = self._make(topic, part)
            return self._made[key]

    def decoders(self, topic: str) -> dict[str, Decoder]:
        """Return what decodes a topic, by part: nothing if it has neither keys nor values of a serializer."""
        made: dict[str, Decoder] = {}
        for part in PARTS:
            decoder = self.decoder(topic, part)
            if decoder is not None:
                made[part] = decoder
        return made

    def types(self, topic: str) -> dict[str, pa.DataType]:
        """Return the types of columns of a topic's decoded keys and values, by part. Empty if the archive does not say
        by which schemas they were written."""
        state = self._topics.get(topic)
        parts = self.decoders(topic)
        opened = self._opened
        if state is None or not parts or opened is None:
            return {}
        try:
            types = opened.schemas.types(state)
        except UsageError as error:
            self.give_up(error)
            return {}
        return {part: kind for part, kind in types.items() if part in parts}

    def _make(self, topic: str, part: str) -> Decoder | None:
        state = self._topics.get(topic)
        uses: Mapping[str, UsedSchemas] = {}
        if state is not None:
            uses = {used.part: used for used in used_schemas(state)}
            if state.schemas and not uses:
                return None  # of Kafka's own, or of MirrorMaker's
        used = uses.get(part)
        is_counted = state is not None and state.all_counted
        # Schemas are read only for a topic that may need them: most commands look at one topic.
        if is_counted and (used is None or not used.framed):
            return None
        opened = self._open()
        if opened is None:
            return None
        for_part: Part = "key" if part == "key" else "value"
        named = used is not None and opened.is_named(topic, used)
        if is_counted and not named:
            return None
        return _GuardedDecoder(opened.decoder(topic, for_part, named), self)

    def _open(self) -> OpenedSchemas | None:
        if self._opened is None and not self.is_broken:
            try:
                self._opened = self._read()
            except (UsageError, CorruptError, NotFoundError) as error:
                self.give_up(error)
        return None if self.is_broken else self._opened

    def give_up(self, error: KbackupError) -> None:
        """Leave records as they are from here on, and tell why, once."""
        with self._lock:
            if not self.is_broken:
                self.is_broken = True
                self._unavailable(error)


class OpenedSchemas:
    """The schemas of a restore point, and the subjects of topics. Thread-safe. Each schema is compiled once.

    Raises `UsageError` without the library."""

    def __init__(self, schemas: Schemas) -> None:
        self.schemas: ArchivedSchemas = archived_schemas(schemas, RegistryOptions())
        self._document = schemas
        self._subjects = TopicSubjects(schemas.versions)
        self._indexes: dict[str, SchemaIndex] = {"": self.schemas.index}
        self._by_id: dict[tuple[str, str], ByRegistry] = {}
        self._lock = threading.Lock()

    def is_named(self, topic: str, used: UsedSchemas) -> bool:
        """Return whether a serializer wrote the keys, or the values, of a topic, as far as they were counted."""
        of_side = ids_of(self._subjects.of_side(topic, used.part))
        if not used.sure and not _carries(used, of_side):
            return False  # all of them are eight bytes long, and may be numbers
        if is_serializers(used, self.schemas.index):
            return True
        return used.sure > 0 and _carries(used, ids_of(self._subjects.of_either(topic, used.part)))

    def decoder(self, topic: str, part: Part, named: bool) -> TopicDecoder:
        own = self._subjects.of_either(topic, part)
        of_side = self._subjects.of_side(topic, part)
        # A subject that is named after a type alone may be of the other side: it counts where a serializer is known.
        trusted = own if named else of_side
        context = _context_of_all(own)
        by_id = self._by_id_in(context, part)
        return TopicDecoder(
            topic, part, named, frozenset(ids_of(trusted)), bool(of_side), self._indexes[context], by_id
        )

    def of_topic(self, topic: str) -> NamedSchemas:
        """Return the schemas that frames in the records of a topic name. Frames are believed, whatever was counted."""
        parts: dict[str, ByRegistry] = {}
        for part in PARTS:
            context = _context_of_all(self._subjects.of_either(topic, part))
            parts[part] = self._by_id_in(context, part)
        return NamedSchemas(parts)

    def _by_id_in(self, context: str, part: Part) -> ByRegistry:
        """Return what decodes by the ids of a context."""
        with self._lock:
            if context not in self._indexes:
                self._indexes[context] = SchemaIndex(self._document, built_in_files(), context)
            if (context, part) not in self._by_id:
                self._by_id[context, part] = ByRegistry(self._indexes[context], HEADERS[part])
            return self._by_id[context, part]


def _context_of_all(own: Iterable[SchemaVersion]) -> str:
    """Return the context of a topic's subjects. Subjects of several contexts leave open which of them an id means: then
    it means the default one's."""
    contexts = {context_of(version.subject) for version in own}
    return contexts.pop() if len(contexts) == 1 else ""


def _carries(used: UsedSchemas, ids: Collection[int | str]) -> bool:
    return any(usual_id(text) in ids for text in used.ids)


@dataclass(frozen=True)
class _GuardedDecoder:
    """A decoder that leaves records as they are once a library of their schemas turns out to be missing."""

    decoder: TopicDecoder
    owner: TopicDecoders

    def __call__(self, data: bytes, headers: Headers) -> Made:
        if self.owner.is_broken:
            return None
        try:
            return self.decoder(data, headers)
        except UsageError as error:
            self.owner.give_up(error)
            return None


def topic_decoders(archive: Archive, point: Manifest, unavailable: Unavailable) -> TopicDecoders | None:
    """Return what decodes the records of a restore point by its schemas; None if it has none."""
    if point.schemas is None:
        return None

    def read() -> OpenedSchemas | None:
        schemas = archive.schemas(point)
        return None if schemas is None else OpenedSchemas(schemas)

    return TopicDecoders(point.topics, read, unavailable)
