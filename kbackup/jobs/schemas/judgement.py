"""Tell keys and values that a registry's serializer wrote from those that only look like it.

A byte 0 and a small number is what a frame begins with, and what eight bytes of a number, a salted key or a message of
gRPC may begin with. So an id alone proves nothing. Keys, or values, of a topic are a serializer's where their ids are
those of a subject of this topic and this side, or where what stands behind the frames decodes by the schemas that they
name. That is judged for a topic as a whole, before anything is written, by the ids that were counted in the backup and
by a sample of the records. `rewrite` judges single records by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from msgspec.structs import replace

from kbackup.archive.models import Manifest, Member, Schemas, TopicState, UsedSchemas
from kbackup.archive.query.selection import Selection, check_selection
from kbackup.archive.reader import Archive
from kbackup.archive.schemas import Place, SchemaIndex, TopicSubjects, ids_of, may_name, used_schemas, usual_id
from kbackup.archive.segments.read import read_records
from kbackup.archive.segments.table import Segment
from kbackup.errors import CorruptError, NotFoundError, UndecodableError, UsageError
from kbackup.formats.block import slice_block
from kbackup.formats.record import Row, rows
from kbackup.formats.schema_ids import PARTS, Part
from kbackup.schemas.base import SchemaVersion, context_of
from kbackup.schemas.decoder import HEADERS, ByRegistry, Undecoded, frame_of, payload_fits
from kbackup.util.text import plural

Unmapped = Literal["keep", "fail"]
"""What is done about a record whose schema has no new id: it stays as it is, or it ends the restore."""

How = Literal["subject", "decoding", "asked", "unknown", "left", "excluded"]


class JudgedPart(Member, frozen=True, kw_only=True):
    """How the keys, or the values, of a topic are told from data that only look like a serializer's.

    - `subject`: the ids of `certain` are the ids of the topic's own subjects. A record with another id is a
      serializer's if it decodes.
    - `decoding`: a record is a serializer's if it decodes by the schema that it names.
    - `asked`: whoever restores says that ids alone decide.
    - `unknown`: they look like a serializer's, and the restore point has none of their schemas.
    - `left`: no serializer wrote them, so they stay as they are.
    - `excluded`: whoever restores says that they stay as they are.

    Of the counted records, `framed` keys or values look like a serializer's. `by_subject` frames have a `certain` id,
    `others` another known id, and `unknown` an id that is not known. Of a sample, `looked_at` frames were decoded, and
    `fitting` fit. `context` is the context of the topic's own subjects. `counted`: all records were counted.
    """

    topic: str
    part: Part
    how: How
    framed: int = 0
    by_subject: int = 0
    others: int = 0
    unknown: int = 0
    looked_at: int = 0
    fitting: int = 0
    certain: tuple[int | str, ...] = ()
    context: str = ""
    counted: bool = True

    @property
    def maps(self) -> bool:
        """Return whether ids of these keys or values may be mapped."""
        return self.how in ("subject", "decoding", "asked")

    @property
    def words(self) -> str:
        """Return the judgement in words."""
        decoded = f"{self.fitting} of {self.looked_at} looked at decode"
        match self.how:
            case "subject":
                return "by subject"
            case "decoding":
                return f"by decoding ({decoded})" if self.looked_at else "by decoding"
            case "asked":
                return "by id alone (--schemas-topic)"
            case "unknown":
                return "left as they are: unknown ids"
            case "left":
                return f"left as they are ({decoded})"
            case "excluded":
                return "left as they are (--no-schemas-topic)"


# Topics whose judgement is overruled by whoever restores.


NameFilter = Callable[[str], bool]


def _no_topic(topic: str) -> bool:
    return False


@dataclass(frozen=True)
class SchemaTopics:
    """Topics whose judgement is overruled. Records of a topic that `by_id` accepts are mapped by ids alone, and records
    of a topic that `untouched` accepts stay as they are."""

    by_id: NameFilter = _no_topic
    untouched: NameFilter = _no_topic


def named_topics(by_id: Sequence[str], untouched: Sequence[str], topics: Collection[str]) -> SchemaTopics:
    """Return the topics of two lists of names or /regexes/. `UsageError` for a name that is none of `topics`, and for a
    topic in both lists."""
    overruled = SchemaTopics(
        by_id=_topic_filter("--schemas-topic", by_id, topics),
        untouched=_topic_filter("--no-schemas-topic", untouched, topics),
    )
    for topic in sorted(topics):
        if overruled.by_id(topic) and overruled.untouched(topic):
            raise UsageError(
                f"topic {topic} is named to --schemas-topic and to --no-schemas-topic", "leave one of them out"
            )
    return overruled


def _topic_filter(option: str, names: Sequence[str], topics: Collection[str]) -> NameFilter:
    if not names:  # an empty selection would match all topics
        return _no_topic
    selection = Selection.of(names, ())
    hint = f"name topics that are restored to {option}; see 'kbackup info'"
    check_selection(selection, "topic", topics, "that is restored", hint, internal=True)
    return selection.matches


# Records to look at.

Sample = Callable[[TopicState], Iterable[Row]]
"""Returns some records of a topic."""

_SAMPLED_SEGMENTS = 8  # at most, of a topic
_SAMPLED_RECORDS = 100  # of each of these segments


def sample_of(archive: Archive, point: Manifest) -> Sample:
    """Return a function that reads a sample of a topic's records from segments all over its log: the programs that
    write to a topic change in the course of time."""

    def sample(topic: TopicState) -> Iterator[Row]:
        segments = archive.segments(point, [topic])
        step = max(1, math.ceil(len(segments) / _SAMPLED_SEGMENTS))
        for segment in segments[::step]:
            yield from _first_records(archive, segment)

    return sample


def _first_records(archive: Archive, segment: Segment) -> Iterator[Row]:
    try:
        for block in read_records(archive.store, segment, None):
            number = min(len(block), _SAMPLED_RECORDS)
            yield from rows(slice_block(block, 0, number))
            return  # the first block is enough
    except (CorruptError, NotFoundError):
        return  # the restore itself reports the damage; for a sample the other segments are enough


# The judgement.


class _Evidence(NamedTuple):
    """Of the frames in a sample that name a known schema, how many there are, and how many decode."""

    looked_at: int = 0
    fitting: int = 0

    @property
    def against(self) -> bool:
        """Return whether the sample shows that no serializer wrote these frames."""
        # Three bytes behind an id fit a schema of a number by chance in one of eight records: a few that fit prove
        # nothing.
        return 2 * self.fitting < self.looked_at


@dataclass
class Judge:
    """Judges topics by the `schemas` of a restore point. `built_in` are files that Protobuf schemas import without
    naming them as references."""

    schemas: Schemas
    built_in: Mapping[str, str]
    choice: SchemaTopics
    sample: Sample
    _subjects: TopicSubjects = field(init=False)
    _indexes: dict[str, SchemaIndex] = field(default_factory=dict)
    _decoders: dict[tuple[str, Part], ByRegistry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._subjects = TopicSubjects(self.schemas.versions)

    def index(self, context: str) -> SchemaIndex:
        """Return the schemas by id, as topics have them whose subjects are of a context."""
        if context not in self._indexes:
            self._indexes[context] = SchemaIndex(self.schemas, self.built_in, context)
        return self._indexes[context]

    def _decoder(self, context: str, part: Part) -> ByRegistry:
        if (context, part) not in self._decoders:
            self._decoders[context, part] = ByRegistry(self.index(context), HEADERS[part])
        return self._decoders[context, part]

    def topics(self, topics: Iterable[TopicState]) -> tuple[JudgedPart, ...]:
        """Return the judgement of all keys and values that look like a serializer's, in the order of `topics`."""
        judged: list[JudgedPart] = []
        for topic in topics:
            judged += self._topic(topic)
        return tuple(judged)

    def _topic(self, topic: TopicState) -> Iterator[JudgedPart]:
        by_id = self.choice.by_id(topic.name)
        untouched = self.choice.untouched(topic.name)
        all_used = topic.schemas if by_id or untouched else used_schemas(topic)
        uses = {used.part: used for used in all_used}
        for part in PARTS:
            used = uses.get(part) or UsedSchemas(part=part, fields=0, framed=0, sure=0, ids={})
            counted = self._counted(topic, used)
            if counted is None:
                continue
            # The user's word first, then the cheap evidence: only what names and counts leave open is decoded.
            if untouched:
                yield replace(counted, how="excluded")
            elif by_id:
                yield replace(counted, how="asked")
            elif self._is_certain(counted, used):
                yield replace(counted, how="subject")
            elif counted.by_subject or counted.others or not counted.counted:
                evidence = self._look(topic, part, counted.context)
                if counted.framed or evidence.looked_at:
                    yield _judged_by_decoding(counted, evidence)
            elif _looks_whole(used):
                yield replace(counted, how="unknown")
            else:
                yield replace(counted, how="left")

    def _counted(self, topic: TopicState, used: UsedSchemas) -> JudgedPart | None:
        """Return the counts of a topic's keys or values, for any judgement; None if none of them looks like a
        serializer's."""
        own = self._subjects.of_either(topic.name, used.part)
        of_subjects = ids_of(own)
        contexts = {context_of(version.subject) for version in own}
        # Subjects of several contexts leave open which of them an id means: then it means the default one's.
        context = contexts.pop() if len(contexts) == 1 else ""
        known = self.index(context)
        by_subject = others = unknown = 0
        for text, count in used.ids.items():
            schema = usual_id(text)
            if schema in of_subjects:
                by_subject += count
            elif schema in known:
                others += count
            else:
                unknown += count
        is_named = self.choice.by_id(topic.name) or self.choice.untouched(topic.name)
        looks_framed = may_name(used) or by_subject > 0 or is_named
        if topic.all_counted and not (used.framed and looks_framed):
            return None
        return JudgedPart(
            topic=topic.name,
            part=used.part,
            how="left",
            framed=used.framed,
            by_subject=by_subject,
            others=others,
            unknown=unknown,
            certain=tuple(sorted(of_subjects, key=str)),
            context=context,
            counted=topic.all_counted,
        )

    def _is_certain(self, found: JudgedPart, used: UsedSchemas) -> bool:
        """Return whether ids of the topic's own subjects decide alone."""
        if not found.certain:
            return False
        if not found.by_subject:
            return not found.counted and not used.fields and self._has_side(found)
        if found.by_subject >= used.fields:
            return True
        # Not every field has such an id. If most fields have none, the topic has a subject, and something else was
        # written to it. If all fields are eight bytes long, they may be numbers. And a subject that is named after a
        # type alone may be of the other side, the key or the value.
        listed = used.fields - used.unlisted  # of the others nobody knows the ids
        return used.sure > 0 and 2 * found.by_subject >= listed and self._has_side(found)

    def _has_side(self, found: JudgedPart) -> bool:
        return bool(self._subjects.of_side(found.topic, found.part))

    def _look(self, topic: TopicState, part: Part, context: str) -> _Evidence:
        """Decode keys, or values, of a sample of a topic's records."""
        looked_at = fitting = 0
        for row in self.sample(topic):
            data = row.key if part == "key" else row.value
            fits = None if data is None else self._fits(part, context, data, row)
            if fits is not None:
                looked_at += 1
                fitting += fits
        return _Evidence(looked_at, fitting)

    def _fits(self, part: Part, context: str, data: bytes, row: Row) -> bool | None:
        """Return whether data decode by the schema that they seem to name; None if they name none that is known."""
        try:
            frame = frame_of(data, row.headers, HEADERS[part])
        except UndecodableError:
            return None
        if frame is None or frame.schema not in self.index(context):
            return None
        codec = self._decoder(context, part).codec(frame.schema)
        if isinstance(codec, Undecoded):
            return False
        apart = data if frame.apart else None
        return payload_fits(codec, frame.rest, apart)

    def needed(
        self, judged: Iterable[JudgedPart], topics: Iterable[TopicState], *, only_certain: bool = False
    ) -> list[SchemaVersion]:
        """Return the schemas that records carry where a serializer wrote them. With `only_certain`, leave out the other
        ids of keys or values that are judged by subject: one odd record may have such an id by chance."""
        uses: dict[tuple[str, Part], UsedSchemas] = {}
        for topic in topics:
            for used in topic.schemas:
                uses[topic.name, used.part] = used
        needed: dict[Place, SchemaVersion] = {}
        for part in judged:
            if not part.maps:
                continue
            ids = self._ids(part, uses.get((part.topic, part.part)))
            if only_certain and part.how == "subject":
                ids.intersection_update(part.certain)
            known = self.index(part.context)
            for schema in ids:
                if schema in known:
                    version = known.find(schema)
                    needed[version.place] = version
        return list(needed.values())

    def _ids(self, part: JudgedPart, used: UsedSchemas | None) -> set[int | str]:
        """Return the ids that records may carry: the counted ones, and if records were not counted, any of the topic's
        own, or any at all."""
        # A schema too many is only registered beside the others; a record with an id too few would keep its old one.
        ids: set[int | str] = set()
        if used is not None:
            ids.update(usual_id(text) for text in used.ids)
        if not part.counted and part.how == "subject":
            ids.update(part.certain)
        elif not part.counted:
            ids.update(version.id for version in self.schemas.versions)
        return ids


def _looks_whole(used: UsedSchemas) -> bool:
    """Return whether every field looks like a frame, and not only because all of them are numbers."""
    return used.sure > 0 and used.framed == used.fields


def _judged_by_decoding(found: JudgedPart, evidence: _Evidence) -> JudgedPart:
    how: How = "left" if evidence.against else "decoding"
    return replace(found, how=how, looked_at=evidence.looked_at, fitting=evidence.fitting)


def unmapped_words(judged: Iterable[JudgedPart]) -> list[str]:
    """Return in words the keys and values that a serializer seems to have written by schemas that the restore point
    lacks."""
    words: list[str] = []
    for part in judged:
        if part.unknown and (part.maps or part.how == "unknown"):
            fields = plural(part.unknown, part.part)
            words.append(f"{fields} of topic {part.topic} with schemas that the restore point lacks")
    return words
