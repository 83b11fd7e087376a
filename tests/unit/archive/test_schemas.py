"""The schemas of a restore point, and what the keys and values of a topic name."""

from __future__ import annotations

import pytest

from kbackup.archive.models import Schemas, TopicState, UsedSchemas, document_ref, dump, load
from kbackup.archive.schemas import (
    SchemaIndex,
    SchemaSource,
    UnknownId,
    ids_in_use,
    merged,
    names_schemas,
    naming_parts,
    schema_uses,
    unknown_ids,
)
from kbackup.errors import CorruptError, UndecodableError
from kbackup.schemas.base import RegistryOptions, SchemaVersion
from tests.support.memory_store import MemoryStore
from tests.support.schemas import schemas, version


def used(
    framed: int, ids: dict[str, int], fields: int | None = None, sure: int = 1, part: str = "value"
) -> UsedSchemas:
    fields = framed if fields is None else fields
    return UsedSchemas(part=part, fields=fields, framed=framed, sure=sure, ids=ids)  # type: ignore[arg-type]


def topic(*schemas: UsedSchemas, name: str = "t") -> TopicState:
    return TopicState(
        name=name, id="", incarnation=1, captured=1, state="present", partitions=(), schemas=schemas, counted=1
    )


def test_a_document_is_read_as_it_was_written() -> None:
    whole = schemas(version("a", 1, 1, "b", guid="00000000-0000-0000-0000-000000000001"), version("b", 1, 2))
    assert load(Schemas, dump(whole), "schemas.json").versions == whole.versions


def test_an_id_means_the_default_context_and_what_is_there() -> None:
    index = SchemaIndex(
        schemas(version(":.x:a", 1, 5), version("old", 1, 5, state="gone"), version("b", 1, 5), version(":.x:c", 1, 6))
    )
    assert index.find(5).subject == "b"
    assert index.find(6).subject == ":.x:c"
    with pytest.raises(UndecodableError, match="no schema 7"):
        index.find(7)


@pytest.mark.parametrize(
    ("versions", "order"),
    [
        ([version("a", 1, 1, "b", "c"), version("b", 1, 2, "c"), version("c", 1, 3)], ["c.proto", "b.proto"]),
        ([version("a", 1, 1, "b"), version("b", 1, 2, "c"), version("c", 1, 3, "b")], ["c.proto", "b.proto"]),
        ([version("a", 1, 1, "a")], []),
        ([version(":.x:a", 1, 1, "b"), version(":.x:b", 1, 2)], ["b.proto"]),
    ],
    ids=["shared", "circle", "itself", "context"],
)
def test_references_come_after_what_they_need(versions: list[SchemaVersion], order: list[str]) -> None:
    schema = SchemaIndex(schemas(*versions)).schema(1)
    assert [name for name, _ in schema.references] == order


def test_references_may_be_thousands_deep() -> None:
    chain = [version(f"s{n}", 1, n + 1, f"s{n + 1}") for n in range(5000)]
    assert len(SchemaIndex(schemas(*chain, version("s5000", 1, 5001))).schema(1).references) == 5000


def test_a_reference_that_is_not_there_is_named() -> None:
    with pytest.raises(UndecodableError, match="schema a version 1 refers to b version 1"):
        SchemaIndex(schemas(version("a", 1, 1, "b"))).schema(1)


@pytest.mark.parametrize(
    ("of", "named", "unknown"),
    [
        (used(10, {"1": 10}), True, []),
        (used(10, {"1": 6, "9": 4}), True, ["9"]),
        (used(10, {"9": 10}), False, ["9"]),  # the schema was deleted
        (used(10, {"9": 10}, fields=100), False, []),  # data that begins like a frame by chance
        (used(10, {"9": 10}, sure=0), False, []),  # numbers of eight bytes
        (used(10, {"1": 10}, fields=100, sure=0), False, []),  # a number looks like a known id
        (used(10, {"1": 10}, sure=0), True, []),  # Avro's texts of two letters
        (used(2000, {"1": 900, "9": 100}), False, ["9"]),  # most ids are beyond what is listed
    ],
)
def test_keys_or_values_are_judged_as_a_whole(of: UsedSchemas, named: bool, unknown: list[str]) -> None:
    index = SchemaIndex(schemas(version("a", 1, 1)))
    assert names_schemas(of, index) is named
    assert unknown_ids([topic(of)], index) == [UnknownId("t", "value", i, of.ids[i]) for i in unknown]


TEXT = {str(int.from_bytes(b"\x07B39")): 10}  # a key's first bytes are 0, 7 and a text
TIMES = used(10, {"1": 10})  # a version of two bytes, 0, and a time of eight


@pytest.mark.parametrize(
    ("name", "of", "own"),
    [
        ("heartbeats", (used(10, TEXT, part="key"), TIMES), True),
        ("A.heartbeats", (used(10, TEXT, part="key"), TIMES), True),
        ("B.checkpoints.internal", (used(10, TEXT, part="key"),), True),
        ("mm2-offset-syncs.B.internal", (used(10, TEXT, part="key"), TIMES), True),
        ("heartbeats", (TIMES,), False),  # of devices, with keys of another form, or none
        ("heartbeats", (used(10, {"1": 9} | TEXT, part="key"), TIMES), False),
        ("heartbeats", (used(10, TEXT, fields=12, part="key"), TIMES), False),
        ("hearts", (used(10, TEXT, part="key"), TIMES), False),
    ],
)
def test_topics_of_mirror_maker_name_no_schemas(name: str, of: tuple[UsedSchemas, ...], own: bool) -> None:
    mirrors, index = topic(*of, name=name), SchemaIndex(schemas(version("a", 1, 1)))
    assert (not ids_in_use([mirrors]), not list(schema_uses([mirrors], index))) == (own, own)
    assert (not naming_parts([mirrors], index)) is own


def test_counts_add_up() -> None:
    both = merged([used(2, {"1": 2}), used(1, {"7": 1}, part="key")], [used(3, {"1": 1, "2": 2}, fields=5, sure=0)])
    assert both == (used(1, {"7": 1}, part="key"), used(5, {"1": 3, "2": 2}, fields=7))
    assert ids_in_use([topic(*both)]) == {1, 2, 7}


def test_ids_beyond_a_thousand_are_not_listed() -> None:
    many = merged([used(1000, {str(n): 1 for n in range(1, 1001)})], [used(2, {"1": 1, "5000": 1})])
    assert (len(many[0].ids), many[0].framed, many[0].ids["1"], "5000" in many[0].ids) == (1000, 1002, 2, False)


def test_tasks_hold_schemas_against_their_manifest() -> None:
    """Another document that is whole by its own checksum."""
    store, (ours, theirs) = MemoryStore(), (dump(schemas(version("a", 1, n))) for n in (1, 2))
    store.put("s", theirs)
    with pytest.raises(CorruptError, match="file s is not what its manifest says"):
        SchemaSource(document_ref("s", ours), RegistryOptions()).open(store)
    assert SchemaSource(document_ref("s", theirs), RegistryOptions()).open(store).index.find(2).subject == "a"
