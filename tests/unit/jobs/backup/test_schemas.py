"""What a backup takes of a schema registry, by its requests to one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from kbackup.archive.models import Schemas, TopicState, UsedSchemas
from kbackup.archive.schemas import NOT_READ, SchemaIndex
from kbackup.errors import UnreachableError, UsageError
from kbackup.jobs.backup.schemas import BackupSchemas, Keep, capture_schemas
from kbackup.kafka.schema_registry import SchemaRegistry
from kbackup.schemas.base import RegistryOptions
from tests.support.archives import partition_state, topic_of
from tests.support.confluent_registry import ConfluentRegistry


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[ConfluentRegistry]:
    """Subjects orders-value (which stands on money), clicks-value, and one of another context."""
    monkeypatch.setattr("kbackup.kafka.schema_registry._PAUSE", 0)
    with ConfluentRegistry() as registry:
        register(registry, "money", "money")
        register(registry, "orders-value", "orders 1", "money")
        register(registry, "orders-value", "orders 2", "money")
        register(registry, "clicks-value", "clicks")
        register(registry, ":.x:other", "other")
        yield registry


def register(registry: ConfluentRegistry, subject: str, text: str, *needs: str) -> int:
    references = [{"name": need, "subject": need, "version": 1} for need in needs]
    answer = registry.register(subject, {"schema": f'"{text}"', "references": references})
    return int(answer["id"])


def topic(*ids: int | str, name: str = "orders", counted: int = 9, sure: int = 1, fields: int = 9) -> TopicState:
    used = UsedSchemas(part="value", fields=fields, framed=9, sure=sure, ids={str(each): 9 for each in ids})
    return replace(topic_of(name, [partition_state(0, 0, 9, records=9)]), schemas=(used,), counted=counted)


def reference(subject: str, number: int) -> dict[str, object]:
    return {"name": subject, "subject": subject, "version": number}


def source(registry: ConfluentRegistry, keep: Keep = "used") -> BackupSchemas:
    return BackupSchemas(RegistryOptions(url=registry.url), keep)


def places(schemas: Schemas | None) -> list[str]:
    assert schemas is not None
    return [f"{v.subject} {v.version} {v.state}" for v in schemas.versions]


ORDERS = ["money 1 active", "orders-value 1 active", "orders-value 2 active"]


def test_the_subjects_of_used_ids_are_kept_with_what_they_refer_to(running: ConfluentRegistry) -> None:
    running.answer("PUT", "/config/orders-value", {"compatibility": "FULL"})
    taken = source(running).take([topic(2)], None)
    assert taken.schemas is not None
    assert (places(taken.schemas), taken.warnings, taken.schemas.kept) == (ORDERS, (), "used")
    settings = {s.subject: ((s.config or {}).get("compatibilityLevel"), s.mode) for s in taken.schemas.settings}
    assert settings == {"": ("BACKWARD", "READWRITE"), "orders-value": ("FULL", None)}
    assert SchemaIndex(taken.schemas).schema(2).references == (("money", '"money"'),)


def test_a_guid_names_a_schema_too(running: ConfluentRegistry) -> None:
    guid = running.subjects["clicks-value"][1].guid
    assert places(source(running).take([topic(guid)], None).schemas) == ["clicks-value 1 active"]


def test_an_id_may_be_of_another_context(running: ConfluentRegistry) -> None:
    (other,) = running.subjects[":.x:other"].values()
    assert ":.x:other 1 active" in places(source(running).take([topic(other.id)], None).schemas)


@pytest.mark.parametrize(("keep", "counted"), [("all", 9), ("used", 8)])
def test_all_subjects_are_kept_where_it_is_asked_for_and_where_records_were_not_counted(
    keep: Keep, counted: int, running: ConfluentRegistry
) -> None:
    taken = source(running, keep).take([topic(2, counted=counted)], None)
    assert places(taken.schemas) == [":.x:other 1 active", "clicks-value 1 active", *ORDERS]


def test_versions_that_are_known_are_not_read_again(running: ConfluentRegistry) -> None:
    before = source(running).take([topic(2)], None).schemas
    running.asked.clear()
    again = source(running).take([topic(2)], before)
    assert again.schemas is before, "equal: the same document"
    assert "GET /subjects/orders-value/versions/2?deleted=true" in running.asked
    assert not [path for path in running.asked if "/orders-value/versions/1" in path]


def test_a_subject_that_was_made_anew_is_read_anew(running: ConfluentRegistry) -> None:
    before = source(running).take([topic(2)], None).schemas
    del running.subjects["orders-value"]
    for text in ("new 1", "new 2"):
        register(running, "orders-value", text, "money")
    new = [v.id for v in running.subjects["orders-value"].values()]
    taken = source(running).take([topic(2, *new)], before).schemas
    assert places(taken) == ["money 1 active", "orders-value 1 active", "orders-value 1 gone", "orders-value 2 active"]
    assert SchemaIndex(taken or before).schema(2).text == '"orders 1"'  # type: ignore[arg-type]


def test_what_was_deleted_is_marked_and_what_is_gone_is_kept_while_it_is_needed(running: ConfluentRegistry) -> None:
    before = source(running).take([topic(2, 4)], None).schemas
    running.answer("DELETE", "/subjects/clicks-value/versions/1", {})
    deleted = source(running).take([topic(2, 4)], before).schemas
    assert places(deleted) == ["clicks-value 1 deleted", *ORDERS]
    del running.subjects["clicks-value"]
    gone = source(running).take([topic(2, 4)], deleted)
    assert (places(gone.schemas), gone.warnings) == (["clicks-value 1 gone", *ORDERS], ())
    assert places(source(running).take([topic(2)], gone.schemas).schemas) == ORDERS


def test_what_a_schema_refers_to_is_kept_when_it_is_gone(running: ConfluentRegistry) -> None:
    """The registry still has the schema itself."""
    register(running, "currency", "currency")
    register(running, "money", "money 2", "currency")
    running.put("orders-value", 3, 9, {"schema": '"orders 3"', "references": [reference("money", 2)]})
    before = source(running).take([topic(9)], None).schemas
    del running.subjects["money"], running.subjects["currency"]
    for _ in range(2):  # what is kept is kept again
        before = source(running).take([topic(9)], before).schemas
        found = places(before)
        assert {"currency 1 gone", "money 1 gone", "money 2 gone", "orders-value 3 active"} <= {*found}
        assert len(found) == len({*found}) == 6
    assert before is not None
    assert [name for name, _ in SchemaIndex(before).schema(9).references] == ["currency", "money"]


def test_a_reference_that_is_deleted_softly_is_no_other_one(running: ConfluentRegistry) -> None:
    before = source(running).take([topic(2)], None).schemas
    running.subjects["money"][1].deleted = True
    assert places(source(running).take([topic(2)], before).schemas) == ["money 1 deleted", *ORDERS[1:]]


def test_an_id_in_another_context_is_not_the_one_that_is_gone(running: ConfluentRegistry) -> None:
    running.put(":.x:other", 1, 4, {"schema": '"other"'})
    before = source(running).take([topic(4)], None).schemas
    del running.subjects["clicks-value"]
    after = source(running).take([topic(4)], before).schemas
    assert places(after) == [":.x:other 1 active", "clicks-value 1 gone"]
    assert after is not None
    assert SchemaIndex(after).find(4).subject == "clicks-value"


def test_ids_that_the_registry_lacks_are_warnings(running: ConfluentRegistry) -> None:
    taken = source(running).take([topic(2, 77)], None)
    assert taken.warnings == ("values of orders carry schema 77 (9 records), which the registry does not have",)
    assert source(running).take([topic(77, name="counters", sure=0, fields=10)], None).warnings == (), (
        "numbers of eight bytes"
    )


def test_a_registry_that_is_down_costs_the_schemas_alone(running: ConfluentRegistry) -> None:
    before = source(running).take([topic(2)], None).schemas
    running.failures = [503] * 9
    taken = source(running).take([topic(2)], before)
    assert (taken.schemas, taken.failed) == (before, True)
    assert taken.warnings[0].startswith(f"{NOT_READ} are those of the restore point before: ")
    running.failures = [503] * 9
    first = source(running).take([topic(2)], None)
    assert (first.schemas, first.failed) == (None, True)
    assert first.warnings[0].startswith(f"{NOT_READ} are not in it: ")


def test_without_a_registry_one_line_says_what_is_missing(running: ConfluentRegistry) -> None:
    note = BackupSchemas(keep="used").take([topic(2)], None).note
    assert note.startswith("records of orders name schemas of a registry")
    unsure = BackupSchemas(keep="used").take([topic(2, sure=0, fields=10)], None)
    assert (unsure.note, BackupSchemas(keep="none").take([topic(2)], None).note) == ("", "")


def test_a_follower_asks_again_for_new_ids_alone(running: ConfluentRegistry) -> None:
    follower = source(running)
    before = follower.take([topic(2)], None, again=False).schemas
    running.asked.clear()
    assert follower.take([topic(2)], before, again=False).schemas is before
    assert running.asked == []
    assert "clicks-value 1 active" in places(follower.take([topic(2, 4)], before, again=False).schemas)
    follower.take([topic(2, 4, 77)], before, again=False)
    running.asked.clear()
    taken = follower.take([topic(2, 77)], before, again=False)
    assert (len(taken.warnings), running.asked) == (1, []), "an id that is not there is not asked for in each round"
    assert "clicks-value 1 active" in places(taken.schemas), "no restore point was committed with it yet"


def test_references_in_a_circle_end(running: ConfluentRegistry) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        content = {"schema": f'"{name}"', "references": [{"name": other, "subject": other, "version": 1}]}
        running.put(name, 1, ord(name), content)
    taken = source(running).take([topic(ord("a"))], None)
    assert places(taken.schemas) == ["a 1 active", "b 1 active"]


@pytest.mark.parametrize("size", [65 << 20, 1 << 30])
def test_an_answer_has_a_bound(size: int, running: ConfluentRegistry) -> None:
    running.huge = size
    taken = source(running).take([topic(2)], None)
    assert taken.failed
    assert "is larger than 64 MiB" in taken.warnings[0]


def test_a_registry_without_an_end_is_left(running: ConfluentRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbackup.jobs.backup.schemas._MOST_VERSIONS", 2)
    with pytest.raises(UnreachableError, match="more than 2 versions"):
        capture_schemas(SchemaRegistry(RegistryOptions(url=running.url)), {2}, None, "used")


def test_options_are_checked_before_the_backup() -> None:
    with pytest.raises(UsageError, match="no URL of a schema registry"):
        BackupSchemas(RegistryOptions(url="here"), "used").check()
    BackupSchemas(RegistryOptions(url="here"), "none").check()


def test_a_follower_does_not_wait_for_a_dead_registry_in_each_round(running: ConfluentRegistry) -> None:
    follower = source(running)
    running.failures = [503] * 3
    first = follower.take([topic(2)], None, again=False)
    asked = len(running.asked)
    assert follower.take([topic(2)], None, again=False) == first
    assert (first.failed, len(running.asked)) == (True, asked)
    assert places(follower.take([topic(2)], None).schemas) == ORDERS, "the last round asks"


def with_counts(of: TopicState, **counts: object) -> TopicState:
    return replace(of, schemas=tuple(replace(used, **counts) for used in of.schemas))


def test_records_with_more_ids_than_are_listed_keep_all_subjects_and_say_so(running: ConfluentRegistry) -> None:
    many = with_counts(topic(2), unlisted=4, framed=13)
    taken = source(running).take([many], None)
    assert places(taken.schemas) == [":.x:other 1 active", "clicks-value 1 active", *ORDERS]
    assert taken.unlisted
    (warning,) = taken.warnings
    assert warning.startswith("values of orders carry more schema ids than are listed: unknown are those of 4 records")
    by_choice = source(running, "all").take([many], None)
    assert (by_choice.unlisted, by_choice.warnings) == (False, ())


def test_odd_ids_are_found_to_be_too_many_once_the_registry_knows_them(running: ConfluentRegistry) -> None:
    running.put("odd-value", 1, 2**25, {"schema": '"odd"'})
    many = with_counts(topic(2**25), unlisted=4, framed=13, odd=13)
    taken = source(running).take([many], None)
    assert (taken.unlisted, "clicks-value 1 active" in places(taken.schemas)) == (True, True)


def test_random_bytes_neither_keep_all_subjects_nor_warn(running: ConfluentRegistry) -> None:
    random = with_counts(topic(*range(2**24, 2**24 + 50), fields=10**6), unlisted=950, framed=1400, odd=1390)
    running.asked.clear()
    taken = source(running).take([topic(2), random], None)
    assert (places(taken.schemas), taken.warnings, taken.unlisted) == (ORDERS, (), False)
    assert BackupSchemas(keep="used").take([random], None).note == ""


def test_schemas_of_apicurios_own_forms_are_kept_and_named_as_not_mapped(running: ConfluentRegistry) -> None:
    apart = with_counts(topic(name="apart"), framed=0, sure=0, apicurio={"contentId 4": 9})
    eight = with_counts(topic(name="eight"), framed=0, sure=0, apicurio={"eightBytes 2": 9})
    taken = source(running).take([apart, eight], None)
    assert places(taken.schemas) == ["clicks-value 1 active", *ORDERS]
    assert [warning.split(" name ")[0] for warning in taken.warnings] == ["values of apart", "values of eight"]
    note = BackupSchemas(keep="used").take([apart, eight], None).note
    assert note.startswith("records of apart name schemas of a registry"), "ids of eight bytes are no evidence"


def test_global_ids_that_the_registry_does_not_tell_keep_all_subjects(running: ConfluentRegistry) -> None:
    apart = with_counts(topic(name="apart"), framed=0, sure=0, apicurio={"globalId 4": 9})
    assert places(source(running).take([apart], None).schemas) == [
        ":.x:other 1 active",
        "clicks-value 1 active",
        *ORDERS,
    ]
