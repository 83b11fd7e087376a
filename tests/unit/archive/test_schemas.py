"""The schemas of a restore point, and what the keys and values of a topic name."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from kbackup.archive.models import Schemas, TopicState, UsedSchemas, document_ref, dump, load
from kbackup.archive.schemas import (
    SchemaIndex,
    SchemaSource,
    UnknownId,
    evidently_names,
    hides_ids,
    ids_in_use,
    merged,
    names_schemas,
    schema_uses,
    unknown_ids,
)
from kbackup.errors import CorruptError, UndecodableError
from kbackup.formats.schema_ids import MOST_IDS
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


def test_counts_of_schemas_add_up_by_part_and_id() -> None:
    both = merged([used(2, {"1": 2}), used(1, {"7": 1}, part="key")], [used(3, {"1": 1, "2": 2}, fields=5, sure=0)])
    assert both == (used(1, {"7": 1}, part="key"), used(5, {"1": 3, "2": 2}, fields=7))
    assert ids_in_use([topic(*both)]) == {1, 2, 7}


def test_ids_that_were_listed_stay_and_those_without_room_are_counted() -> None:
    listed = {str(n): 1 for n in range(1, MOST_IDS + 1)}
    (many,) = merged([used(MOST_IDS, listed)], [used(4, {"1": 1, "50000": 3})])
    assert (len(many.ids), many.framed, many.ids["1"], "50000" in many.ids) == (MOST_IDS, MOST_IDS + 4, 2, False)
    assert (many.unlisted, many.odd) == (3, 0)


def test_ids_that_an_older_version_did_not_list_count_as_unlisted() -> None:
    (many,) = merged([used(1200, {str(n): 1 for n in range(1, 1001)})], [used(1, {"1": 1})])
    assert (many.framed, many.unlisted) == (1201, 200)


def test_an_entry_with_every_id_listed_is_written_as_ever() -> None:
    """Older versions refuse members that they don't know."""
    (both,) = merged([used(2, {"1": 2})], [used(1, {"20000000": 1})])
    assert msgspec.to_builtins(both).keys() == {"part", "fields", "framed", "sure", "ids"}


ODD = {str(2**24 + n): 1 for n in range(1000)}
RANDOM = replace(used(20_000, ODD, fields=10_000_000, sure=19_000), unlisted=19_000, odd=19_850)
"""As of random bytes."""


@pytest.mark.parametrize(
    ("of", "named", "hidden"),
    [
        (used(10, {"1": 10}), True, False),
        (used(10, {"1": 10}, fields=5000), True, False),  # a topic that has just begun with a serializer
        (used(10, {"1": 10}, sure=0), False, False),  # numbers
        (used(10, TEXTS := {str(int.from_bytes(b"\x07abc")): 10}), False, False),  # texts behind their length
        (RANDOM, False, False),
        (used(20_000, {str(n): 1 for n in range(1, 1001)}), True, True),  # of an older version
        (used(20_000, ODD, fields=10_000_000), False, False),  # of an older version, of random bytes
        (replace(used(20_000, {"1": 1000}), unlisted=19_000), True, True),
        (replace(used(20_000, TEXTS), unlisted=19_990, odd=20_000), False, False),
    ],
)
def test_a_serializer_is_told_from_bytes_that_look_like_one(of: UsedSchemas, named: bool, hidden: bool) -> None:
    assert (evidently_names(of), hides_ids(of, SchemaIndex(schemas()))) == (named, hidden)


def test_known_odd_ids_are_evidence_too() -> None:
    of = replace(used(3000, {str(2**24): 2000}), unlisted=1000, odd=3000)
    assert hides_ids(of, SchemaIndex(schemas(version("a", 1, 2**24))))


def test_the_registry_is_not_asked_for_ids_of_random_bytes() -> None:
    assert ids_in_use([topic(replace(RANDOM, ids=RANDOM.ids | {"5": 1, "30000000": 2}))]) == {5, 30_000_000}


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_topics_of_kafkas_own_name_no_schemas(name: str) -> None:
    own = topic(used(9, {"5": 9}), name=name)
    assert (ids_in_use([own]), list(schema_uses([own], SchemaIndex(schemas(version("a", 1, 5)))))) == (set(), [])


def test_tasks_hold_schemas_against_their_manifest() -> None:
    """Another document that is whole by its own checksum."""
    store, (ours, theirs) = MemoryStore(), (dump(schemas(version("a", 1, n))) for n in (1, 2))
    store.put("s", theirs)
    with pytest.raises(CorruptError, match="file s is not what its manifest says"):
        SchemaSource(document_ref("s", ours), RegistryOptions()).open(store)
    assert SchemaSource(document_ref("s", theirs), RegistryOptions()).open(store).index.find(2).subject == "a"
