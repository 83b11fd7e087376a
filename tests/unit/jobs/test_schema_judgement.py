"""Keys and values are judged: which are a serializer's, and which only look like it."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import pytest

from kbackup.archive.models import PartitionState, TopicState, UsedSchemas
from kbackup.errors import UsageError
from kbackup.formats.record import Row
from kbackup.jobs.schemas.judgement import Judge, JudgedPart, SchemaTopics, named_topics, unmapped_words
from kbackup.schemas.base import SchemaVersion
from tests.support.schemas import schemas

CITY = '{"type": "record", "name": "City", "namespace": "map", "fields": [{"name": "name", "type": "string"}]}'


def avro(subject: str, schema_id: int, text: str = CITY) -> SchemaVersion:
    return SchemaVersion(subject=subject, version=1, id=schema_id, schema=text)


def frame(schema_id: int, payload: bytes) -> bytes:
    return struct.pack(">BI", 0, schema_id) + payload


BERN = b"\x08Bern"


def topic(
    ids: dict[int, int], *, name: str = "orders", fields: int | None = None, sure: int | None = None, **more: Any
) -> TopicState:
    """A topic whose values carry these ids, each so often. By default every value is framed and surely so."""
    framed = sum(ids.values())
    used = UsedSchemas(
        part=more.pop("part", "value"),
        fields=framed if fields is None else fields,
        framed=framed,
        sure=framed if sure is None else sure,
        ids={str(schema_id): count for schema_id, count in ids.items()},
    )
    state: dict[str, Any] = {"id": "", "incarnation": 1, "captured": 1, "state": "present", "partitions": ()}
    return TopicState(name=name, schemas=(used,), **state | more)


def values(*contents: bytes) -> list[Row]:
    return [Row(offset, 0, 1, None, content, ()) for offset, content in enumerate(contents)]


def judged(
    of: TopicState, *versions: SchemaVersion, sample: Iterable[Row] = (), choice: SchemaTopics | None = None
) -> JudgedPart:
    """Return the one judgement that there is."""
    rows = list(sample)
    (found,) = Judge(schemas(*versions), {}, choice or SchemaTopics(), lambda _: rows).topics([of])
    return found


def test_ids_of_the_topics_own_subject_decide_alone() -> None:
    found = judged(topic({7: 5}), avro("orders-value", 7))
    assert (found.how, found.by_subject, found.certain) == ("subject", 5, (7,))
    assert found.words == "by subject"


def test_the_same_id_under_another_subject_as_well_is_the_topics_own() -> None:
    assert judged(topic({7: 5}), avro("carts-value", 7), avro("orders-value", 7)).how == "subject"


@pytest.mark.parametrize("subject", ["carts-value", "orders-key", "orders-eu-value", "map.City"])
def test_ids_of_other_subjects_decide_only_by_what_decodes(subject: str) -> None:
    found = judged(topic({7: 2}), avro(subject, 7), sample=values(frame(7, BERN), frame(7, BERN)))
    assert (found.how, found.others, found.certain) == ("decoding", 2, ())
    assert found.words == "by decoding (2 of 2 looked at decode)"


def test_plain_bytes_that_begin_like_a_frame_are_left() -> None:
    found = judged(topic({7: 3}), avro("carts-value", 7), sample=values(*[frame(7, b"EU")] * 2, frame(7, BERN)))
    assert (found.how, found.looked_at, found.fitting) == ("left", 3, 1)


def test_a_schema_of_any_bytes_proves_nothing() -> None:
    assert judged(topic({7: 3}), avro("carts-value", 7, '"bytes"'), sample=values(frame(7, b"any"))).how == "left"


def test_a_subject_of_the_topic_is_not_believed_where_most_values_do_not_have_its_ids() -> None:
    few = topic({7: 3}, fields=1000, sure=0)
    assert judged(few, avro("orders-value", 7), sample=values(frame(7, b"\xff\xff\xff"))).how == "left"
    assert judged(few, avro("orders-value", 7), sample=values(frame(7, BERN))).how == "decoding"


def test_one_odd_value_among_many_of_the_topics_subject_leaves_these_by_subject() -> None:
    found = judged(topic({7: 20, 0x51525354: 1, 9: 1}), avro("orders-value", 7), avro("carts-value", 9))
    assert (found.how, found.by_subject, found.others, found.unknown) == ("subject", 20, 1, 1)


@pytest.mark.parametrize(
    ("kind", "text", "name"),
    [
        ("AVRO", CITY, "map.City"),
        ("AVRO", '{"type": "record", "name": "a.B", "namespace": "x", "fields": []}', "a.B"),
        ("AVRO", '{"type": "record", "name": "Bare", "fields": []}', "Bare"),
        ("JSON", '{"title": "City", "type": "object"}', "City"),
        ("PROTOBUF", 'syntax = "proto3";\npackage map.v1;\nmessage City { string name = 1; }', "map.v1.City"),
    ],
)
def test_a_subject_of_topic_and_type_is_the_topics_own(kind: str, text: str, name: str) -> None:
    version = SchemaVersion(subject=f"orders-{name}", version=1, id=7, type=kind, schema=text)
    assert judged(topic({7: 5}), version).how == "subject"
    other = SchemaVersion(subject="orders-another.Name", version=1, id=7, type=kind, schema=text)
    assert judged(topic({7: 5}), other).how == "decoding"


def test_a_subject_of_a_type_says_nothing_of_the_side_so_that_mixed_values_must_decode() -> None:
    assert judged(topic({7: 5}, fields=9), avro("orders-map.City", 7), sample=values(frame(7, BERN))).how == "decoding"


def test_a_subject_of_a_context_is_the_topics_own_and_its_ids_are_those_of_the_context() -> None:
    found = judged(topic({7: 5}), avro("carts-value", 7), avro(":.eu:orders-value", 7))
    assert (found.how, found.context) == ("subject", ":.eu:")


def test_values_of_which_no_schema_is_known_are_unknown_only_where_all_look_framed() -> None:
    assert judged(topic({7: 5})).how == "unknown"
    assert judged(topic({7: 5}, fields=6)).how == "left"
    assert unmapped_words([judged(topic({7: 5}))]) == [
        "5 values of topic orders with schemas that the restore point lacks"
    ]


def test_numbers_of_eight_bytes_are_not_looked_at_where_not_all_look_framed() -> None:
    longs = topic({7: 5}, fields=6, sure=0)
    assert Judge(schemas(avro("carts-value", 7)), {}, SchemaTopics(), lambda _: ()).topics([longs]) == ()


def test_whoever_restores_overrules_the_judgement() -> None:
    plain = topic({7: 3})
    named = named_topics(["orders"], [], ["orders", "carts"])
    found = judged(plain, avro("carts-value", 7), sample=values(frame(7, b"EU")), choice=named)
    assert (found.how, found.maps) == ("asked", True)
    excluded = named_topics([], ["/ord.*/"], ["orders", "carts"])
    found = judged(plain, avro("orders-value", 7), choice=excluded)
    assert (found.how, found.maps) == ("excluded", False)


@pytest.mark.parametrize(
    ("by_id", "untouched", "message"),
    [
        (["ordres"], [], "there is no topic ordres that is restored"),
        ([], ["/x.*/"], "no topic that is restored matches /x"),
        (["orders"], ["/.*/"], "topic orders is named to --schemas-topic and to --no-schemas-topic"),
    ],
)
def test_names_that_are_no_topics_are_refused(by_id: list[str], untouched: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        named_topics(by_id, untouched, ["orders", "carts"])


def test_only_schemas_of_a_serializers_records_are_needed() -> None:
    framed, plain = topic({7: 5, 9: 1}), topic({8: 5}, name="plain")
    versions = schemas(avro("orders-value", 7), avro("carts-value", 8), avro("carts-key", 9))
    judge = Judge(versions, {}, SchemaTopics(), lambda _: values(frame(8, b"EU")))
    found = judge.topics([framed, plain])
    assert [part.how for part in found] == ["subject", "left"]
    assert sorted(v.id for v in judge.needed(found, [framed, plain])) == [7, 9]
    assert [v.id for v in judge.needed(found, [framed, plain], only_certain=True)] == [7]


def uncounted() -> TopicState:
    """A topic whose records an older version has archived, which counted no ids."""
    partition = PartitionState(partition=0, start=0, end=10, log_start=0, log_end=10, records=10, bytes=100)
    return topic({}, partitions=(partition,))


def test_records_that_were_not_counted_may_have_any_id_of_the_topics_subjects() -> None:
    judge = Judge(schemas(avro("orders-value", 7), avro("carts-value", 8)), {}, SchemaTopics(), lambda _: ())
    found = judge.topics([uncounted()])
    assert [(part.part, part.how, part.counted) for part in found] == [("value", "subject", False)]
    assert [v.id for v in judge.needed(found, [uncounted()])] == [7]


def test_records_that_were_not_counted_are_judged_by_a_sample() -> None:
    sample = values(frame(8, BERN))
    judge = Judge(schemas(avro("carts-value", 8), avro("map.City", 9)), {}, SchemaTopics(), lambda _: sample)
    found = judge.topics([uncounted()])
    assert [(part.part, part.how, part.counted) for part in found] == [("value", "decoding", False)]
    assert [v.id for v in judge.needed(found, [uncounted()])] == [8, 9], "any of them may come"
