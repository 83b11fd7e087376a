"""Records get the ids of the target's registry where a serializer wrote them, and are counted where they can't."""

from __future__ import annotations

import hashlib
import pickle
import struct
from typing import Any

import pytest
from msgspec.structs import replace

from kbackup.archive.models import DocumentRef, dump
from kbackup.archive.restores.map_parts import Cut
from kbackup.archive.restores.unmapped import UnmappedRecords, decode_unmapped, encode_unmapped, sum_unmapped
from kbackup.errors import RefusedError
from kbackup.jobs.schemas.judgement import JudgedPart
from kbackup.jobs.schemas.rewrite import ArchivedCodecs, CheckedRewrite, NewIds, SchemaRewrite
from kbackup.schemas.base import SchemaVersion
from kbackup.types import RecordBlock, TopicPartition
from tests.support.memory_store import MemoryStore
from tests.support.record_blocks import encoded, plain
from tests.support.schemas import schemas
from tests.unit.formats.reference import decode_records

T = TopicPartition("orders", 3)
CITY = '{"type": "record", "name": "City", "fields": [{"name": "name", "type": "string"}]}'
PROTO = 'syntax = "proto3"; message City { string name = 1; }'
GUID = "00000000-0000-0000-0000-00000000000a"
VERSIONS = (
    SchemaVersion(subject="orders-value", version=1, id=1, schema=CITY),
    SchemaVersion(subject="carts-value", version=1, id=2, schema=CITY),
    SchemaVersion(subject="city.proto", version=1, id=3, type="PROTOBUF", schema=PROTO),
    SchemaVersion(subject="city.json", version=1, id=4, type="JSON", schema='{"type": "object"}'),
    SchemaVersion(subject="guid", version=1, id=5, guid=GUID, schema=CITY),
    SchemaVersion(subject="broken", version=1, id=6, schema="{"),
)
NEW_GUID = "00000000-0000-0000-0000-0000000000ff"
NEW = NewIds({n: 100 + n for n in range(1, 7)}, {GUID: NEW_GUID}, {":.eu:": {1: 901}})
BERN = b"\x08Bern"


def frame(schema_id: int, payload: bytes) -> bytes:
    return struct.pack(">BI", 0, schema_id) + payload


def codecs(*versions: SchemaVersion) -> ArchivedCodecs:
    store, data = MemoryStore(), dump(schemas(*(versions or VERSIONS)))
    store.put_new("schemas.json", data)
    return ArchivedCodecs(
        store, DocumentRef(key="schemas.json", size=len(data), sha256=hashlib.sha256(data).hexdigest())
    )


def rewrite(how: Any, certain: tuple[int, ...] = (), unmapped: Any = "keep", **more: Any) -> SchemaRewrite:
    part = JudgedPart(topic="orders", part="value", how=how, certain=certain, **more)
    return SchemaRewrite(NEW, [part], unmapped, codecs())


def values_of(block: RecordBlock) -> list[bytes | None]:
    return [record.value for record in decode_records(block.data.tobytes())]


def block_of(*values: bytes) -> RecordBlock:
    return encoded(*(plain(10 + n, value=value, key=frame(1, b"key")) for n, value in enumerate(values)))


def test_ids_of_the_topics_subject_are_mapped_and_others_where_they_decode() -> None:
    given = [frame(1, b"\xff"), frame(2, BERN), frame(2, b"EU"), frame(99, BERN), b"text"]
    block, unmapped = rewrite("subject", certain=(1,))(T, block_of(*given))
    assert values_of(block) == [frame(101, b"\xff"), frame(102, BERN), *given[2:]]
    assert unmapped == (UnmappedRecords(topic="orders", part="value", unknown=1, undecoded=1, partition=3, offset=12),)


@pytest.mark.parametrize(
    ("schema_id", "fits", "does_not"),
    [
        (2, BERN, BERN + b"!"),
        (2, BERN, b""),
        (3, b"\x00\x0a\x04Bern", b"\x00\x12\x04Bern"),
        (3, b"\x02\x00\x0a\x04Bern", b"\x02\x02\x0a\x04Bern"),
        (4, b'{"name": "Bern"}', b"Bern"),
    ],
)
def test_records_are_mapped_where_they_decode_whole(schema_id: int, fits: bytes, does_not: bytes) -> None:
    block, unmapped = rewrite("decoding")(T, block_of(frame(schema_id, fits), frame(schema_id, does_not)))
    assert values_of(block) == [frame(100 + schema_id, fits), frame(schema_id, does_not)]
    assert [(each.undecoded, each.offset) for each in unmapped] == [(1, 11)]


def test_a_schema_that_can_not_be_read_here_maps_nothing() -> None:
    block, unmapped = rewrite("decoding")(T, block_of(frame(6, BERN)))
    assert values_of(block) == [frame(6, BERN)]
    assert unmapped[0].undecoded == 1


def test_headers_name_schemas_of_the_whole_value() -> None:
    def header(guid: str) -> list[tuple[str, bytes | None]]:
        return [("__value_schema_id", b"\x01" + bytes.fromhex(guid.replace("-", "")))]

    given = [plain(0, value=BERN, headers=header(GUID)), plain(1, value=b"EU", headers=header(GUID))]
    block, unmapped = rewrite("decoding")(T, encoded(*given))
    first, second = decode_records(block.data.tobytes())
    assert (first.headers, second.headers) == (header(NEW_GUID), header(GUID))
    assert [(each.undecoded, each.offset) for each in unmapped] == [(1, 1)]


def test_a_topic_that_was_asked_for_is_mapped_by_ids_alone() -> None:
    block, unmapped = rewrite("asked")(T, block_of(frame(2, b"EU"), frame(99, b"EU")))
    assert values_of(block) == [frame(102, b"EU"), frame(99, b"EU")]
    assert [(each.unknown, each.offset) for each in unmapped] == [(1, 11)]


@pytest.mark.parametrize("how", ["left", "excluded"])
def test_other_topics_are_not_touched_and_not_counted(how: str) -> None:
    block = block_of(frame(1, BERN), frame(99, BERN))
    assert rewrite(how, certain=(1,))(T, block) == (block, ())


def test_values_without_any_known_schema_are_counted() -> None:
    block, unmapped = rewrite("unknown")(T, block_of(frame(1, BERN), frame(99, BERN)))
    assert values_of(block) == [frame(1, BERN), frame(99, BERN)]
    assert [each.unknown for each in unmapped] == [2]


def test_ids_of_a_topic_with_subjects_of_a_context_are_those_of_that_context() -> None:
    block, _ = rewrite("subject", certain=(1,), context=":.eu:")(T, block_of(frame(1, BERN)))
    assert values_of(block) == [frame(901, BERN)]


@pytest.mark.parametrize(
    ("value", "why"),
    [(frame(99, BERN), "names schema 99, which the restore point lacks"), (frame(2, b"EU"), "it does not decode")],
)
def test_a_record_that_can_not_be_mapped_ends_it_with_its_place_where_it_must(value: bytes, why: str) -> None:
    with pytest.raises(RefusedError, match=f"value of orders:3:11 .*{why}") as caught:
        rewrite("subject", certain=(1,), unmapped="fail")(T, block_of(frame(1, BERN), value))
    assert "--skip orders:3:11" in caught.value.hint


def test_work_goes_to_other_processes() -> None:
    here = rewrite("decoding")
    made = pickle.loads(pickle.dumps(here))
    assert values_of(made(T, block_of(frame(2, BERN))).block) == [frame(102, BERN)]


# What a comparison expects.


def checked(how: Any, certain: tuple[int, ...] = (), target: tuple[SchemaVersion, ...] | None = None) -> CheckedRewrite:
    part = JudgedPart(topic="orders", part="value", how=how, certain=certain)
    theirs = None if target is None else schemas(*target)
    return CheckedRewrite(NEW, [part], "keep", codecs(), target=theirs)


def test_a_comparison_expects_new_ids_only_where_records_decode() -> None:
    given = [frame(2, BERN), frame(2, b"EU")]
    assert values_of(checked("decoding")(T, block_of(*given)).block) == [frame(102, BERN), frame(2, b"EU")]


@pytest.mark.parametrize(("how", "certain"), [("subject", (2,)), ("asked", ())])
def test_a_comparison_expects_new_ids_where_ids_decided_alone(how: str, certain: tuple[int, ...]) -> None:
    assert values_of(checked(how, certain)(T, block_of(frame(2, b"encrypted"))).block) == [frame(102, b"encrypted")]


def test_a_comparison_expects_that_the_targets_schema_decodes_to_the_same() -> None:
    same = replace(VERSIONS[1], id=102, schema=CITY.replace(",", " ,"))
    other = replace(VERSIONS[1], id=102, schema=CITY.replace("string", "bytes"))
    for how, certain in (("subject", (2,)), ("decoding", ())):
        assert values_of(checked(how, certain, (same,))(T, block_of(frame(2, BERN))).block) == [frame(102, BERN)]
        assert values_of(checked(how, certain, (other,))(T, block_of(frame(2, BERN))).block) == [frame(2, BERN)]


# Counts.


def count(**fields: Any) -> UnmappedRecords:
    made: dict[str, Any] = {"topic": "t", "part": "key", "partition": 1, "offset": 5}
    return UnmappedRecords(**made | fields)


def test_counts_add_up_by_topic_and_part_and_name_the_first_record() -> None:
    found = sum_unmapped([count(unknown=2), count(part="value", unknown=1), count(undecoded=3, partition=0, offset=9)])
    assert found == (count(unknown=2, undecoded=3, partition=0, offset=9), count(part="value", unknown=1))
    assert Cut(1, unmapped=found[:1]).plus(Cut(2, unmapped=found[1:])) == Cut(3, unmapped=found)
    assert decode_unmapped(encode_unmapped(found)) == found


def test_counts_are_told_in_words() -> None:
    assert count(unknown=1, undecoded=2).words == (
        "3 keys of topic t left as archived, without an id of the target: 1 with a schema that the restore point "
        "lacks and 2 that the schema with their id does not decode; one is t:1:5"
    )
