"""What names schemas in records, and restores and mirrors don't map: Apicurio's own forms, and ids that are not listed.

Apicurio's serializers write ids in Confluent's form too. Its own forms are headers (`apicurio.value.contentId`), which
are sure, and an id of eight bytes in front of the data, which a composite key of numbers may look like.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kbackup.archive.models import Schemas, TopicState, UsedSchemas
from kbackup.archive.schemas import NO_SCHEMAS, SchemaIndex, hides_ids, unlisted_fields, used_schemas
from kbackup.util.text import plural

EIGHT_BYTES = "eightBytes"
_OF_APICURIO = "/apis/ccompat/"
"""Apicurio serves Confluent's protocol below this path."""


class FormUse(NamedTuple):
    """One of Apicurio's own forms in the keys, or in the values, of a topic: in `fields` of them. `ids` are counts;
    `complete`: every id is among them, if the form has ids."""

    topic: str
    part: str
    form: str
    fields: int
    ids: dict[int, int]
    complete: bool


def forms_of(topics: Iterable[TopicState]) -> Iterator[FormUse]:
    """Yield what looks like one of Apicurio's own forms."""
    for topic in topics:
        for used in used_schemas(topic):
            ids_by_form: dict[str, dict[int, int]] = {}
            # An entry without an id counts fields whose form has none, or whose ids are not listed.
            unlisted: dict[str, int] = {}
            for text, count in used.apicurio.items():
                form, _, schema_id = text.partition(" ")
                ids = ids_by_form.setdefault(form, {})
                if schema_id:
                    ids[int(schema_id)] = count
                else:
                    unlisted[form] = count
            for form, ids in ids_by_form.items():
                others = unlisted.get(form, 0)
                fields = sum(ids.values()) + others
                yield FormUse(topic.name, used.part, form, fields, ids, complete=others == 0)


def may_be_apicurio(use: FormUse, used: UsedSchemas) -> bool:
    """Return whether records may be of Apicurio's serializer. A header is sure.

    Ids of eight bytes: at least half of the keys, or values, begin with one, and few ids are used by many records. A
    composite key, such as a number of eight bytes and another one, begins with as many "ids" as it has values."""
    if use.form != EIGHT_BYTES:
        return True
    few = len(use.ids) <= max(10, use.fields // 10)
    return use.complete and few and 2 * use.fields >= used.fields


def probable_forms(topics: Iterable[TopicState]) -> list[FormUse]:
    """Return which of Apicurio's own forms the records of topics may have, by what was counted of them alone."""
    probable: list[FormUse] = []
    for topic in topics:
        used_by_part: dict[str, UsedSchemas] = {used.part: used for used in used_schemas(topic)}
        for use in forms_of([topic]):
            if may_be_apicurio(use, used_by_part[use.part]):
                probable.append(use)
    return probable


def apicurio_uses(topics: Iterable[TopicState], schemas: Schemas | None) -> list[FormUse]:
    """Return which of Apicurio's own forms the records of topics have. Ids of eight bytes are those of its serializer
    only where the registry is Apicurio's by its URL, or knows at least half of them."""
    index = SchemaIndex(schemas or NO_SCHEMAS)
    is_apicurio = schemas is not None and _OF_APICURIO in schemas.registry
    evident: list[FormUse] = []
    for use in probable_forms(topics):
        known = 0
        for schema_id, count in use.ids.items():
            if schema_id in index:
                known += count
        if use.form != EIGHT_BYTES or is_apicurio or 2 * known >= use.fields:
            evident.append(use)
    return evident


class ApicurioIds(NamedTuple):
    """Ids that records may carry in Apicurio's own forms. Those of its contents are the ids of Confluent's protocol,
    `global_ids` are those of its versions: an id of eight bytes may be either. `by_header`: records name global ids for
    sure. `complete`: all ids are here."""

    content_ids: set[int]
    global_ids: set[int]
    by_header: bool
    complete: bool


def apicurio_ids(topics: Iterable[TopicState]) -> ApicurioIds:
    """Return the ids of Apicurio's own forms that a backup asks the registry for."""
    content_ids = set[int]()
    global_ids = set[int]()
    by_header = False
    complete = True
    for use in probable_forms(topics):
        # The other forms have no ids.
        if use.form not in ("contentId", "globalId", EIGHT_BYTES):
            continue
        if use.form != "globalId":
            content_ids.update(use.ids)
        if use.form != "contentId":
            global_ids.update(use.ids)
        by_header = by_header or use.form == "globalId"
        complete = complete and use.complete
    return ApicurioIds(content_ids, global_ids, by_header, complete)


def uncovered(topics: Iterable[TopicState], schemas: Schemas | None) -> list[str]:
    """Return in words what names schemas and is not mapped, by topic and part."""
    topics = list(topics)
    words = [apicurio_words(use) for use in apicurio_uses(topics, schemas)]
    return words + unlisted_words(topics, schemas)


def apicurio_words(use: FormUse) -> str:
    """Return in words that restores don't map a form."""
    if use.form == EIGHT_BYTES:
        how = "ids of eight bytes in front of the data"
    else:
        how = f"the header apicurio.{use.part}.{use.form}"
    return (
        f"{use.part}s of {use.topic} name their schemas by {how}, a form of Apicurio's own "
        f"({plural(use.fields, 'record')}): restores and mirrors copy it as it is, and no id is mapped"
    )


def unlisted_words(topics: Iterable[TopicState], schemas: Schemas | None) -> list[str]:
    """Return in words which topics have more ids than are listed."""
    index = SchemaIndex(schemas or NO_SCHEMAS)
    words: list[str] = []
    for topic in topics:
        for used in used_schemas(topic):
            if hides_ids(used, index):
                records = plural(unlisted_fields(used), "record")
                words.append(
                    f"{used.part}s of {topic.name} carry more schema ids than are listed: unknown are those of "
                    f"{records}"
                )
    return words
