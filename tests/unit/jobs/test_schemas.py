"""Which schemas of a restore point a registry lacks, and what stands against writing them there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from kbackup.archive.models import Schemas, TopicState, UsedSchemas
from kbackup.archive.query.selection import Selection
from kbackup.archive.schemas import SchemaIndex
from kbackup.archive.uncovered_schemas import uncovered
from kbackup.errors import RefusedError, UsageError
from kbackup.jobs.schemas.plan import (
    Mode,
    SchemaPlan,
    carried_versions,
    ids_of_records,
    plan_schemas,
    planned_versions,
    renamed,
    versions_beside,
)
from kbackup.schemas.base import SchemaReference, SchemaVersion, SubjectSettings
from tests.support.confluent_registry import ConfluentRegistry
from tests.support.schemas import Client, put

ALL = Selection()


def schema(place: str, schema_id: int, *needs: str, **more: Any) -> SchemaVersion:
    """Return a version: `place` is `subject version`, as are those that it needs."""
    subject, number = place.split(" ")
    references = tuple(
        SchemaReference(name=f"{name}.avsc", subject=name, version=int(n))
        for name, n in (need.split(" ") for need in needs)
    )
    fields = {"schema": f'{{"name": "s{schema_id}"}}', "references": references} | more
    return SchemaVersion(subject=subject, version=int(number), id=schema_id, **fields)


INNER = schema("inner 3", 50)
ORDERS = (
    schema("orders 1", 60, "inner 3"),
    schema("orders 2", 61, "inner 3", state="deleted"),
    schema("orders 4", 62, "inner 3"),
)
USERS = schema("users 1", 70)
POINT = (*ORDERS, INNER, USERS)


def document(versions: Sequence[SchemaVersion], settings: Sequence[SubjectSettings] = ()) -> Schemas:
    settings = tuple(settings)
    return Schemas(captured_at="", registry="http://s", kept="all", versions=tuple(versions), settings=settings)


def topic(*ids: int | str) -> TopicState:
    counts: dict[str, Any] = dict.fromkeys(("fields", "framed", "sure"), 3 * len(ids))
    used = UsedSchemas(part="value", ids={str(each): 3 for each in ids}, **counts)
    fields: dict[str, Any] = {"id": "", "incarnation": 1, "captured": 1, "state": "present", "partitions": ()}
    return TopicState(name="t", schemas=(used,), counted=9, **fields)


def carried(versions: Sequence[SchemaVersion], *ids: int) -> list[SchemaVersion]:
    """Return the schemas of these ids, which records carry."""
    return carried_versions([topic(*ids)] if ids else [], SchemaIndex(document(versions)))


def places(versions: Sequence[tuple[str, SchemaVersion]]) -> list[str]:
    return [f"{v.subject} {v.version}" for _, v in versions]


def target(*there: SchemaVersion, settings: Sequence[SubjectSettings] = ()) -> Client:
    server = put(ConfluentRegistry(), *there)
    server.configs |= {s.subject: s.config for s in settings if s.config}
    server.modes |= {s.subject: {"mode": s.mode} for s in settings if s.mode}
    return Client(server)


def plan(
    there: Client,
    versions: Sequence[SchemaVersion] = POINT,
    mode: Mode = "same",
    prefix: str = "",
    settings: Sequence[SubjectSettings] = (),
) -> SchemaPlan:
    wanted, problems = planned_versions(document(versions), (), prefix, ALL)
    return plan_schemas(there, wanted, settings, mode, prefix, problems)


@pytest.mark.parametrize(
    ("ids", "subjects", "wanted"),
    [
        ((), ALL, ["inner 3", "users 1", "orders 1", "orders 2", "orders 4"]),
        ((62,), None, ["inner 3", "orders 1", "orders 2", "orders 4"]),
        ((70,), None, ["users 1"]),
        ((70,), Selection(("inner",)), ["inner 3"]),
        ((), None, []),
    ],
)
def test_what_is_wanted_comes_whole_and_after_what_it_needs(
    ids: tuple[int, ...], subjects: Selection | None, wanted: list[str]
) -> None:
    versions, problems = planned_versions(document(POINT), carried(POINT, *ids), "", subjects)
    assert (places(versions), problems) == (wanted, [])


def with_counts(of: TopicState, **counts: Any) -> TopicState:
    return replace(of, schemas=tuple(replace(used, **counts) for used in of.schemas))


def test_records_with_more_ids_than_are_listed_may_need_any_subject() -> None:
    many = with_counts(topic(70), unlisted=4, framed=7)
    versions, problems = planned_versions(document(POINT), versions_beside([many], document(POINT)))
    assert {*places(versions)} == {"inner 3", "orders 1", "orders 2", "orders 4", "users 1"}
    assert problems == []
    assert versions_beside([topic(70)], document(POINT)) == []


def test_schemas_of_apicurios_own_forms_come_along_and_are_named_as_not_mapped() -> None:
    apart = with_counts(topic(), fields=9, apicurio={"contentId 70": 9})
    assert versions_beside([apart], document(POINT)) == [USERS]
    (words,) = uncovered([apart], document(POINT))
    assert words.startswith("values of t name their schemas by the header apicurio.value.contentId")


def test_an_id_of_a_subject_that_was_made_anew_gets_a_place_of_its_own() -> None:
    old = schema("users 1", 5, state="gone", schema='"old"')
    versions, problems = planned_versions(document([USERS, old]), carried([USERS, old], 5, 70))
    assert [(f"{v.subject} {v.version}", v.id, v.state) for _, v in versions] == [
        ("users 1", 70, "active"),
        ("users 2", 5, "gone"),
    ]
    assert problems == []


LOST = schema("a 1", 1, "gone 7")


@pytest.mark.parametrize(
    ("versions", "ids", "problems"),
    [
        ([LOST], (1,), ["schema a version 1 refers to gone version 7, which the restore point lacks"]),
        ([replace(LOST, state="deleted"), schema("a 2", 2)], (2,), []),
        (
            [replace(LOST, state="deleted"), schema("a 2", 2)],
            (1, 2),
            ["schema a version 1 refers to gone version 7, which the restore point lacks"],
        ),
        (
            [schema("a 1", 1, "b 1"), schema("b 1", 2, "a 1")],
            (1,),
            ["schemas refer to one another in a circle: a version 1, b version 1, a version 1"],
        ),
    ],
)
def test_nothing_is_written_where_an_id_would_mean_nothing(
    versions: list[SchemaVersion], ids: tuple[int, ...], problems: list[str]
) -> None:
    _, found = planned_versions(document(versions), carried(versions, *ids))
    assert found == problems


def test_an_id_that_the_restore_point_lacks_is_told() -> None:
    lost = ids_of_records([topic(70, 71)], SchemaIndex(document([USERS])))[1]
    assert lost == ["3 values of topic t with schema 71, which the restore point lacks"]


@pytest.mark.parametrize(
    ("subject", "prefix", "name"),
    [
        ("orders", "", "orders"),
        ("orders", "rehearsal.", "rehearsal.orders"),
        (":.x:orders", "rehearsal.", ":.x:rehearsal.orders"),
        ("orders", ":.rehearsal:", ":.rehearsal:orders"),
        (":.x:orders", ":.rehearsal:", ":.rehearsal:orders"),
        (":.x:a:b", ":.y:z.", ":.y:z.a:b"),
    ],
)
def test_a_prefix_goes_before_a_subject(subject: str, prefix: str, name: str) -> None:
    assert renamed(subject, prefix) == name


def test_references_get_the_prefix_too() -> None:
    in_context = schema(":.x:orders 1", 80, "inner 1")
    versions, _ = planned_versions(document([*POINT, in_context, schema(":.x:inner 1", 81)]), (), "re.", ALL)
    referred = {v.subject: {r.subject for r in v.references} for _, v in versions}
    assert referred["re.orders"] == {"re.inner"}
    assert referred[":.x:re.orders"] == {":.x:re.inner"}
    _, problems = planned_versions(document([USERS, schema(":.x:users 1", 9)]), (), ":.y:", ALL)
    assert problems == ["subjects :.x:users and users would both become :.y:users"]
    with pytest.raises(UsageError, match="is no context"):
        planned_versions(document(POINT), (), ":.y", ALL)


@pytest.mark.parametrize(
    ("mode", "there", "actions"),
    [
        ("same", [], "create create create create create"),
        ("same", [INNER, USERS], "exists exists create create create"),
        ("same", [INNER, USERS, *ORDERS], "exists exists exists exists exists"),
        ("same", [INNER, replace(ORDERS[0], state="deleted"), ORDERS[1]], "exists create undelete exists create"),
        ("map", [INNER, replace(ORDERS[0], state="deleted"), ORDERS[1]], "exists create undelete exists create"),
    ],
)
def test_what_is_there_is_not_created(mode: Mode, there: list[SchemaVersion], actions: str) -> None:
    made = plan(target(*there), mode=mode)
    assert " ".join(step.action for step in made.steps) == actions
    assert made.problems == ()


@pytest.mark.parametrize(
    ("there", "problem"),
    [
        (
            schema("z 1", 70, schema='"z"'),
            "id 70 is taken by z version 1; users version 1 of the restore point has it too",
        ),
        (
            replace(USERS, id=5),
            "users version 1 is another schema, with id 5; users version 1 of the restore point has id 70",
        ),
        (
            replace(USERS, schema='"other"'),
            "users version 1 is another schema, with id 70; users version 1 of the restore point has id 70",
        ),
        (replace(USERS, schema='{ "name":\n"s70" }'), ""),
        (replace(USERS, subject="z"), ""),
        (schema(":.x:z 1", 70, schema='"z"'), ""),
    ],
)
def test_same_ends_where_an_id_or_a_version_is_taken(there: SchemaVersion, problem: str) -> None:
    made = plan(target(there))
    assert made.problems == ((problem,) if problem else ())
    assert plan(target(there), mode="map").problems == ()
    if problem:
        with pytest.raises(RefusedError, match=r"the schemas can't be restored: .*; use --schemas map"):
            made.check()


def test_an_archive_in_which_an_id_means_two_schemas_is_only_mapped() -> None:
    versions = [USERS, schema("z 1", 70, schema='"z"')]
    assert plan(target(), versions).problems == (
        "id 70 is taken by users version 1; z version 1 of the restore point has it too",
    )


FULL, NONE = {"compatibilityLevel": "FULL"}, {"compatibilityLevel": "NONE"}
GLOBAL, OF_USERS = (
    SubjectSettings(subject="", config=FULL),
    SubjectSettings(subject="users", config=NONE, mode="READONLY"),
)


@pytest.mark.parametrize(
    ("there", "prefix", "after", "notes"),
    [
        (target(), "", [OF_USERS, replace(GLOBAL, mode="READWRITE")], []),
        (target(USERS), "", [OF_USERS], ["compatibility FULL of all subjects is not set: others depend on it"]),
        (target(USERS, settings=[GLOBAL, OF_USERS]), "", [], []),
        (
            target(),
            "re.",
            [replace(OF_USERS, subject="re.users")],
            ["compatibility FULL of all subjects is not set: others depend on it"],
        ),
    ],
)
def test_settings_of_all_are_set_in_an_empty_registry_alone(
    there: Client, prefix: str, after: list[SubjectSettings], notes: list[str]
) -> None:
    made = plan(
        there, [USERS], prefix=prefix, settings=[GLOBAL, OF_USERS, SubjectSettings(subject="other", config=NONE)]
    )
    assert list(made.after) == after
    assert list(made.notes) == notes
    assert {s.subject for s in made.before} == {"", renamed("users", prefix)}
