"""The schemas of a restore point: found by the ids that records carry, and which of those ids are not known."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from operator import itemgetter
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from kbackup.archive.identity import checked_document
from kbackup.archive.models import DocumentRef, Schemas, TopicState, UsedSchemas, load
from kbackup.errors import UndecodableError, UsageError
from kbackup.formats.schema_ids import is_odd, list_forms, list_ids
from kbackup.metadata.entities import INTERNAL_TOPICS
from kbackup.schemas.base import (
    RegistryOptions,
    Schema,
    SchemaReference,
    SchemaVersion,
    context_of,
    missing,
    schema_of,
    standing_on,
)
from kbackup.schemas.columns import column_type, merged_types
from kbackup.schemas.decoder import HEADERS, ByRegistry, Decoder, Registry
from kbackup.store.base import Store

NOT_READ = "the schemas of this restore point"
"""A warning of a restore point begins so if the registry could not be read."""

Place = tuple[str, int]
"""A subject and a version of it."""


NO_SCHEMAS = Schemas(captured_at="", registry="", kept="used", versions=())


def usual_id(text: str) -> int | str:
    """Return an id or a GUID as records have it, from the text that a manifest has."""
    # No id has twenty digits, and `int` raises for a text of thousands, which an altered manifest may have.
    is_number = text.isascii() and text.isdigit() and len(text) < 20
    return int(text) if is_number else text


def lacking(version: SchemaVersion, reference: SchemaReference) -> str:
    """Return in words that a reference is broken."""
    return (
        f"schema {version.subject} version {version.version} refers to {reference.subject} version "
        f"{reference.version}, which the restore point lacks"
    )


class SchemaIndex:
    """The schemas of a restore point by id, GUID and place. It is a `schemas.decoder.Registry`.

    An id means the schema of the `context` (as a rule the default one); only where that has none, the one of another
    context. `built_in` are files that Protobuf schemas import without naming them as references.
    """

    def __init__(self, schemas: Schemas, built_in: Mapping[str, str] = MappingProxyType({}), context: str = "") -> None:
        self._built_in = built_in
        self.places: dict[Place, SchemaVersion] = {}
        self._found: dict[int | str, SchemaVersion] = {}
        state_ranks = {"active": 0, "deleted": 1, "gone": 2}

        def rank(version: SchemaVersion) -> tuple[bool, str, int]:
            own_context = context_of(version.subject)
            return own_context != context, own_context, state_ranks[version.state]

        # The first version with an id is what the id means: of the context itself, and active if one is.
        for version in sorted(schemas.versions, key=rank):
            self.places.setdefault((version.subject, version.version), version)
            self._found.setdefault(version.id, version)
            if version.guid:
                self._found.setdefault(version.guid, version)

    def __contains__(self, schema_id: int | str) -> bool:
        return schema_id in self._found

    def find(self, schema_id: int | str) -> SchemaVersion:
        """Return one of the versions with this id or GUID. `UndecodableError` if there is none."""
        version = self._found.get(schema_id)
        if version is None:
            raise UndecodableError(f"the restore point has no schema {schema_id}")
        return version

    def references(self, version: SchemaVersion) -> list[tuple[str, SchemaVersion]]:
        """Return what `standing_on` does. `UndecodableError` if a schema that is referred to is not there."""
        return standing_on(version, self._needed)

    def referred(self, version: SchemaVersion, reference: SchemaReference) -> SchemaVersion | None:
        """Return the schema that a reference means: of its own context if it names none. None if it is not there."""
        # A reference within a context does not name the context.
        subject_in_context = context_of(version.subject) + reference.subject
        for subject in (subject_in_context, reference.subject):
            referred = self.places.get((subject, reference.version))
            if referred is not None:
                return referred
        return None

    def _needed(self, version: SchemaVersion, reference: SchemaReference) -> SchemaVersion:
        referred = self.referred(version, reference)
        if referred is None:
            raise UndecodableError(lacking(version, reference))
        return referred

    def schema(self, schema_id: int | str) -> Schema:
        """Return the schema with this id or GUID, compiled. `UndecodableError` if it is not there."""
        version = self.find(schema_id)
        return schema_of(version, self._needed, self._built_in, f"schema {schema_id}")


# What decodes keys and values.


@dataclass
class ArchivedSchemas:
    """The schemas of a restore point. The schema registry is asked for what it lacks, if `options` name one."""

    index: SchemaIndex
    options: RegistryOptions

    def schema(self, schema_id: int | str) -> Schema:
        try:
            return self.index.schema(schema_id)
        except UndecodableError as error:
            if not self.options.url:
                raise UndecodableError(f"{error.message}, and no schema registry is named") from None
        return self._registry.schema(schema_id)

    def decoders(self, parts: Iterable[str] = ("key", "value")) -> dict[str, Decoder]:
        """Return what decodes keys and values, by part."""
        return {part: ByRegistry(self, HEADERS[part]) for part in parts}

    def types(self, topic: TopicState) -> dict[str, pa.DataType]:
        """Return the types of the columns of a topic's decoded keys and values, by part. A part that names no schema is
        left out."""

        def in_order_of_ids(use: VersionUse) -> tuple[int, str]:
            # Ids are texts here, and a shorter one is the smaller number.
            return len(use.id), use.id

        types: dict[str, pa.DataType] = {}
        # The fields of merged types come in this order: two exports of a restore point have the same table.
        for use in sorted(schema_uses([topic], self.index), key=in_order_of_ids):
            # Suppressed: records of a schema that is not there, or not understood, have no columns.
            with suppress(UndecodableError):
                more = column_type(self.schema(usual_id(use.id)))
                types[use.part] = merged_types(types.get(use.part, more), more)
        return types

    @cached_property
    def _registry(self) -> Registry:
        from kbackup.kafka.schema_registry import SchemaRegistry

        return SchemaRegistry(self.options)


class SchemaSource(NamedTuple):
    """Where tasks find the schemas of a restore point, and the registry for what it lacks."""

    document: DocumentRef | None
    registry: RegistryOptions

    def open(self, store: Store) -> ArchivedSchemas:
        """Read the document and return what decodes by it. `CorruptError` if it is not what the manifest says."""
        schemas = None if self.document is None else read_schemas(store, self.document)
        return archived_schemas(schemas, self.registry)


def read_schemas(store: Store, document: DocumentRef) -> Schemas:
    """Read the document of a restore point's schemas. `CorruptError` if it is not what the manifest says."""
    data = checked_document(document, store.get(document.key))
    return load(Schemas, data, document.key)


def archived_schemas(schemas: Schemas | None, options: RegistryOptions) -> ArchivedSchemas:
    """Return what decodes keys and values of a restore point with these schemas. Raises `UsageError` without schemas
    and a registry, for an invalid registry, and without the library."""
    if options.url:
        options.check()
    elif schemas is None:
        raise UsageError(
            "the restore point has no schemas, and no schema registry is named",
            "set schema_registry.url: later backups keep its schemas; 'cat' and 'find' take schema files, too",
        )
    return ArchivedSchemas(SchemaIndex(schemas or NO_SCHEMAS, built_in_files()), options)


def built_in_files() -> Mapping[str, str]:
    """Return the files that Protobuf schemas import without naming them as references. Raises `UsageError` without the
    library."""
    try:
        from kbackup.kafka.schema_registry import BUILT_IN
    except ImportError as error:
        raise missing(error) from error
    return BUILT_IN


def same_schemas(one: Schemas, other: Schemas) -> bool:
    """Return whether both captures are equal apart from their times."""
    # The checksum is of the text, which has the time.
    return replace(one, captured_at="", checksum="") == replace(other, captured_at="", checksum="")


# What the keys and values of a topic name. A field of eight bytes that begins with 0 may be a big-endian number, and
# data of another form may begin like a frame by chance: a topic's keys, or values, are judged as a whole.


_OF_KAFKA = frozenset((*INTERNAL_TOPICS, "__remote_log_metadata"))
_OF_MIRROR_MAKER = re.compile(r".*heartbeats|.*checkpoints.internal|mm2.*internal")
_A_TEXT = 1 << 24


def used_schemas(topic: TopicState) -> tuple[UsedSchemas, ...]:
    """Return what a topic's keys and values name; nothing for topics of Kafka's and of MirrorMaker's own.

    Keys and values of Kafka's begin with a version in two bytes. MirrorMaker's keys begin with a text behind its length
    in two bytes: what looks like an id is `_A_TEXT` at least. Its values hold a version and times or offsets, which
    look like small ids. A topic of that name with other keys is a user's.
    """
    if topic.name in _OF_KAFKA:
        return ()
    if _OF_MIRROR_MAKER.fullmatch(topic.name) and _keys_begin_with_texts(topic):
        return ()
    return topic.schemas


def _keys_begin_with_texts(topic: TopicState) -> bool:
    """Return whether all keys of a topic look framed, by ids that are the lengths of texts."""
    for used in topic.schemas:
        if used.part == "key" and used.framed == used.fields and used.ids:
            ids = [usual_id(text) for text in used.ids]
            return all(isinstance(each, int) and each >= _A_TEXT for each in ids)
    return False


# Whether a schema's subject is of a topic. Serializers name subjects after a topic and a side (TopicNameStrategy,
# `orders-value`), or after a topic and the record's type (TopicRecordNameStrategy, `orders-com.example.Order`). By
# other strategies a subject says nothing about topics.


def is_of_side(version: SchemaVersion, topic: str, part: str) -> bool:
    """Return whether a version's subject is named after a topic and its keys, or its values."""
    return bare_subject(version) == f"{topic}-{part}"


def is_of_type(version: SchemaVersion, topic: str) -> bool:
    """Return whether a version's subject is named after a topic and a type of the schema. The topic's keys and its
    values may have it."""
    prefix = f"{topic}-"
    subject = bare_subject(version)
    return subject.startswith(prefix) and subject.removeprefix(prefix) in _type_names(version)


def bare_subject(version: SchemaVersion) -> str:
    """Return a version's subject without its context."""
    return version.subject.removeprefix(context_of(version.subject))


_PACKAGE = re.compile(r"^\s*package\s+([\w.]+)\s*;", re.MULTILINE)
_MESSAGE = re.compile(r"\b(?:message|enum)\s+(\w+)\s*\{")


def _type_names(version: SchemaVersion) -> set[str]:
    """Return the full names that a schema may have in a subject: of an Avro type, of a JSON Schema (its title), or of
    the messages of a Protobuf file. Nothing if the text is not understood."""
    if version.type == "PROTOBUF":
        package = _PACKAGE.search(version.schema)
        prefix = f"{package[1]}." if package is not None else ""
        return {prefix + name for name in _MESSAGE.findall(version.schema)}
    try:
        document = msgspec.json.decode(version.schema)
    except (msgspec.DecodeError, RecursionError):
        return set()
    if not isinstance(document, dict):
        return set()
    if version.type == "JSON":
        return {str(document["title"])} if "title" in document else set()
    name = str(document.get("name", ""))
    namespace = str(document.get("namespace", ""))
    if not name:
        return set()
    # In Avro a name with dots is a full name: the namespace beside it does not count.
    if namespace and "." not in name:
        name = f"{namespace}.{name}"
    return {name}


class TopicSubjects:
    """The versions of subjects by the topics that they are named after."""

    def __init__(self, versions: Iterable[SchemaVersion]) -> None:
        pairs = [(bare_subject(version), version) for version in versions]
        self._by_subject = sorted(pairs, key=itemgetter(0))

    def of_side(self, topic: str, part: str) -> list[SchemaVersion]:
        """Return the versions of subjects that are named after a topic and its keys, or its values."""
        return [version for version in self._of_topic(topic) if is_of_side(version, topic, part)]

    def of_either(self, topic: str, part: str) -> list[SchemaVersion]:
        """Return the versions of the topic's own subjects: of this side, or of a type that either side may have."""
        own: list[SchemaVersion] = []
        for version in self._of_topic(topic):
            if is_of_side(version, topic, part) or is_of_type(version, topic):
                own.append(version)
        return own

    def _of_topic(self, topic: str) -> Iterator[SchemaVersion]:
        # All these subjects begin with the topic's name: in the sorted list they stand together.
        prefix = f"{topic}-"
        first = bisect_left(self._by_subject, prefix, key=itemgetter(0))
        for subject, version in islice(self._by_subject, first, None):
            if not subject.startswith(prefix):
                return
            yield version


def ids_of(versions: Iterable[SchemaVersion]) -> set[int | str]:
    """Return the ids and GUIDs of versions."""
    ids: set[int | str] = set()
    for version in versions:
        ids.add(version.id)
        if version.guid:
            ids.add(version.guid)
    return ids


def may_name(used: UsedSchemas) -> bool:
    """Return whether these keys or values may be those of a registry's serializer."""
    return used.sure > 0 or 0 < used.framed == used.fields


def unlisted_fields(used: UsedSchemas) -> int:
    """Return how many frames have ids that are not listed. Older versions listed 1,000, and did not count the rest."""
    return max(used.unlisted, used.framed - sum(used.ids.values()))


def odd_fields(used: UsedSchemas) -> int:
    """Return how many frames have an odd id. Older versions did not count them: those that are listed show their
    share."""
    listed = sum(used.ids.values())
    odd = 0
    for text, count in used.ids.items():
        if is_odd(usual_id(text)):
            odd += count
    was_cut_uncounted = not used.unlisted and listed < used.framed
    if was_cut_uncounted:
        odd = odd * used.framed // max(listed, 1)
    return max(used.odd, odd)


def looks_random(used: UsedSchemas) -> bool:
    """Return whether frames are as rare, and their ids as large, as in random bytes: of these, one in 512 begins like a
    frame, and 127 of 128 such ids are odd."""
    return 100 * used.framed < used.fields and 2 * odd_fields(used) > used.framed


def evidently_names(used: UsedSchemas) -> bool:
    """Return whether these keys or values are those of a registry's serializer, as far as it can be told without the
    registry: not all of them may be numbers, and at least half of the ids are such as registries give."""
    return used.sure > 0 and 2 * odd_fields(used) <= used.framed


def hides_ids(used: UsedSchemas, schemas: SchemaIndex) -> bool:
    """Return whether a serializer may have written ids that are not listed."""
    return unlisted_fields(used) > 0 and (evidently_names(used) or names_schemas(used, schemas))


def names_schemas(used: UsedSchemas, schemas: SchemaIndex) -> bool:
    """Return whether these keys or values are those of a registry's serializer: at least half of what looks like a
    frame has an id that is known."""
    known = 0
    for text, count in used.ids.items():
        if usual_id(text) in schemas:
            known += count
    return may_name(used) and known > 0 and 2 * known >= used.framed


def is_serializers(used: UsedSchemas, schemas: SchemaIndex) -> bool:
    """Return whether these keys or values are believed to be those of a registry's serializer: by their ids, or
    without one known id only if all of them are framed."""
    is_evident = evidently_names(used) and used.framed == used.fields
    return is_evident or names_schemas(used, schemas)


class UnknownId(NamedTuple):
    """An id, or GUID, that records of a topic carry, without a schema in the restore point."""

    topic: str
    part: str
    id: str
    fields: int


class VersionUse(NamedTuple):
    """How many keys or values of a topic carry an id or GUID, and its schema, None if it is unknown."""

    topic: str
    part: str
    id: str
    fields: int
    version: SchemaVersion | None


def schema_uses(topics: Iterable[TopicState], schemas: SchemaIndex) -> Iterator[VersionUse]:
    """Yield what the keys and values of topics name, where these are a serializer's."""
    for topic in topics:
        for used in used_schemas(topic):
            if not is_serializers(used, schemas):
                continue
            for text, count in used.ids.items():
                schema_id = usual_id(text)
                version = schemas.find(schema_id) if schema_id in schemas else None
                yield VersionUse(topic.name, used.part, text, count, version)


def unknown_ids(topics: Iterable[TopicState], schemas: SchemaIndex) -> list[UnknownId]:
    """Return the ids that records carry and the restore point has no schema for."""
    unknown: list[UnknownId] = []
    for use in schema_uses(topics, schemas):
        if use.version is None:
            unknown.append(UnknownId(use.topic, use.part, use.id, use.fields))
    return unknown


def ids_in_use(topics: Iterable[TopicState]) -> set[int | str]:
    """Return every id and GUID that records of these topics may carry."""
    ids = set[int | str]()
    for topic in topics:
        for used in used_schemas(topic):
            if not may_name(used):
                continue
            is_random = looks_random(used)
            for text, count in used.ids.items():
                schema_id = usual_id(text)
                # Random bytes hardly begin twice with the same id. The registry is not asked for thousands of these.
                is_chance = is_random and count == 1 and is_odd(schema_id)
                if not is_chance:
                    ids.add(schema_id)
    return ids


def merged(before: Iterable[UsedSchemas], added: Iterable[UsedSchemas]) -> tuple[UsedSchemas, ...]:
    """Return what all the records of a topic name."""
    parts: dict[str, UsedSchemas] = {used.part: used for used in before}
    for used in added:
        old = parts.get(used.part)
        parts[used.part] = used if old is None else _sum(old, used)
    return tuple(parts[part] for part in sorted(parts))


def _sum(old: UsedSchemas, new: UsedSchemas) -> UsedSchemas:
    """Return what the records of both name."""
    old_ids = {usual_id(text): count for text, count in old.ids.items()}
    new_ids = {usual_id(text): count for text, count in new.ids.items()}
    listed = list_ids(old_ids, new_ids)
    # So many ids are listed at most: the fields with the others are counted.
    dropped = sum(old_ids.values()) + sum(new_ids.values()) - sum(listed.values())
    unlisted = unlisted_fields(old) + unlisted_fields(new) + dropped
    # If all ids are listed they show which are odd, and the member is left out of the manifest.
    odd = odd_fields(old) + odd_fields(new) if unlisted else 0
    return UsedSchemas(
        part=old.part,
        fields=old.fields + new.fields,
        framed=old.framed + new.framed,
        sure=old.sure + new.sure,
        ids={str(schema_id): count for schema_id, count in listed.items()},
        unlisted=unlisted,
        odd=odd,
        apicurio=list_forms(old.apicurio, new.apicurio),
    )
