"""Which keys and values are decoded unasked: those that the archive shows to be a serializer's."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from unittest import mock

import pytest
from msgspec.structs import replace

from kbackup.archive.models import Schemas, TopicState
from kbackup.archive.topic_decoders import OpenedSchemas, TopicDecoders
from kbackup.errors import CorruptError, KbackupError
from kbackup.schemas.base import Headers, SchemaVersion
from kbackup.schemas.decoder import Decoded, Made, Undecoded
from tests.support.archives import partition_state, topic_of
from tests.support.plain_records import Plain
from tests.support.schema_archive import ORDER, avro, framed, schema_version, used_by

PEN = avro(ORDER, {"item": "pen", "count": 3})
ORDERS = schema_version("orders-value", 1, 2, ORDER)
TYPED = schema_version("orders-shop.Order", 1, 5, ORDER)
BARE = schema_version("shop.Order", 1, 7, ORDER)
"""Of no topic: by the name of its type alone."""


def a_topic(name: str, values: Iterable[bytes], *, counted: bool = True) -> TopicState:
    """Return a topic of one partition, whose values a backup has counted or not."""
    records = [Plain(None, value) for value in values]
    made = topic_of(name, [partition_state(0, 0, len(records), records=len(records), size=1)])
    if not counted:
        return made
    return replace(made, schemas=tuple(used_by(records)), counted=len(records))


@dataclass
class Opened:
    """A restore point with topics and schemas, and what its decoders say of it."""

    topics: list[TopicState]
    versions: Iterable[SchemaVersion] = (ORDERS, TYPED, BARE)
    error: Exception | None = None
    reads: int = 0
    told: list[KbackupError] = field(default_factory=list)

    def read(self) -> OpenedSchemas:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return OpenedSchemas(Schemas(captured_at="", registry="", kept="used", versions=tuple(self.versions)))

    def decoders(self) -> TopicDecoders:
        return TopicDecoders(self.topics, self.read, self.told.append)


def decoded(opened: Opened, data: bytes, topic: str = "orders", part: str = "value", headers: Headers = ()) -> Made:
    decoder = opened.decoders().decoder(topic, part)
    return None if decoder is None else decoder(data, headers)


def value_of(made: Made) -> object:
    assert isinstance(made, Decoded), made
    return made.value


def why(made: Made) -> str:
    assert isinstance(made, Undecoded), made
    return made.why


@pytest.mark.parametrize("schema_id", [2, 5])
def test_values_of_the_topics_own_subjects_are_decoded(schema_id: int) -> None:
    data = framed(schema_id, PEN)
    assert value_of(decoded(Opened([a_topic("orders", [data])]), data)) == {"item": "pen", "count": 3}


def test_a_record_that_cannot_be_decoded_has_a_reason_and_others_go_on() -> None:
    good, cut, bare, unknown = framed(2, PEN), framed(2, PEN[:-1]), b"text", framed(99, PEN)
    opened = Opened([a_topic("orders", [good, good, good, cut, bare, unknown])])
    assert "not AVRO by its schema" in why(decoded(opened, cut))
    assert why(decoded(opened, bare)) == "it names no schema"
    assert why(decoded(opened, unknown)) == "the restore point has no schema 99"
    assert value_of(decoded(opened, good)) == {"item": "pen", "count": 3}


def test_the_id_of_another_subject_is_not_believed_in_a_topic_with_a_subject() -> None:
    opened = Opened([a_topic("orders", [framed(2, PEN), framed(2, PEN), framed(7, PEN)])])
    assert why(decoded(opened, framed(7, PEN))).startswith("schema 7 is of no subject of the values of topic orders; ")


def test_a_topic_without_a_subject_is_decoded_by_ids_if_a_serializer_wrote_it() -> None:
    data = framed(7, PEN)
    assert value_of(decoded(Opened([a_topic("events", [data])]), data, "events")) == {"item": "pen", "count": 3}


def test_numbers_that_look_like_a_frame_stay_as_they_are() -> None:
    numbers = [struct.pack(">q", (2 << 24) + n) for n in range(3)] + [struct.pack(">q", -1)]
    opened = Opened([a_topic("orders", numbers), a_topic("clicks", numbers)])
    for topic in ("orders", "clicks"):
        assert decoded(opened, numbers[0], topic) is None, topic


def test_a_topic_of_numbers_alone_stays_as_it_is() -> None:
    """All of them begin like a frame of a schema that fits three bytes, and no subject is of the topic."""
    numbers = [struct.pack(">q", (8 << 24) + (0x8080 << 8) + n) for n in range(3)]
    opened = Opened([a_topic("clicks", numbers)], [schema_version("numbers", 1, 8, '"long"')])
    assert decoded(opened, numbers[0], "clicks") is None


def test_plain_topics_need_no_schemas_to_be_read() -> None:
    opened = Opened([a_topic("plain", [b"text", b"other"])])
    assert decoded(opened, b"text", "plain") is None
    assert opened.reads == 0


@pytest.mark.parametrize(
    ("topic", "data", "expected"),
    [
        ("orders", framed(2, PEN), {"item": "pen", "count": 3}),
        ("events", framed(7, PEN), {"item": "pen", "count": 3}),
        ("events", framed(7, PEN[:-1]), None),
        ("events", framed(99, PEN), None),
        ("events", b"text", None),
    ],
)
def test_what_nobody_counted_is_decoded_where_it_evidently_is_a_serializers(
    topic: str, data: bytes, expected: object
) -> None:
    made = decoded(Opened([a_topic(topic, [data], counted=False)]), data, topic)
    assert (made.value if isinstance(made, Decoded) else made) == expected


def test_a_schema_in_a_header_is_known_by_its_guid() -> None:
    version = replace(ORDERS, guid="00000000-0000-0000-0000-000000000001")
    used = replace(used_by([Plain(None, framed(2, PEN))])[1], ids={version.guid: 1})
    topic = replace(a_topic("orders", [PEN]), schemas=(used,))
    headers = [(b"__value_schema_id", b"\1" + bytes(15) + b"\1")]
    made = decoded(Opened([topic], [version]), PEN, headers=headers)
    assert value_of(made) == {"item": "pen", "count": 3}


def test_topics_of_kafka_stay_as_they_are() -> None:
    data = framed(2, PEN)
    assert decoded(Opened([a_topic("__consumer_offsets", [data])]), data, "__consumer_offsets") is None


def test_a_missing_library_is_told_once_and_records_stay_as_they_are() -> None:
    data = framed(2, PEN)
    opened = Opened([a_topic("orders", [data])])
    decoder = opened.decoders().decoder("orders", "value")
    assert decoder is not None
    with mock.patch.dict("sys.modules", {"kbackup.schemas.avro": None}):
        assert [decoder(data, ()), decoder(data, ())] == [None, None]
    (error,) = opened.told
    assert "not installed" in error.message
    assert "pip install 'kafka-kbackup[schemas]'" in error.hint


def test_damaged_schemas_are_told_once_and_records_stay_as_they_are() -> None:
    opened = Opened([a_topic("orders", [framed(2, PEN)])], error=CorruptError("schemas.json is damaged"))
    decoders = opened.decoders()
    assert [decoders.decoder("orders", part) for part in ("key", "value")] == [None, None]
    assert decoders.types("orders") == {}
    assert [error.message for error in opened.told] == ["schemas.json is damaged"]
