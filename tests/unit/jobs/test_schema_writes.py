"""Schemas written to a registry, resumed after a kill at any request, and undone."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from kbackup.archive.models import Schemas
from kbackup.archive.query.selection import Selection
from kbackup.archive.restores.journal import RestoreJournal
from kbackup.errors import KbackupError, RefusedError, UnreachableError, UsageError
from kbackup.jobs.schemas.documents import begun_plan, schema_map
from kbackup.jobs.schemas.plan import Mode, SchemaPlan, prepare_schemas
from kbackup.jobs.schemas.undo import SchemasUndo, SchemasUndone
from kbackup.jobs.schemas.write import OwnIdsError, apply_schemas
from kbackup.schemas.base import SchemaReference, SchemaVersion, SubjectSettings
from tests.support.confluent_registry import ConfluentRegistry
from tests.support.confluent_registry import RefusedError as Refusal
from tests.support.memory_store import MemoryStore
from tests.support.schemas import Client, Killed, put


def version(subject: str, number: int, schema_id: int, *needs: tuple[str, int], **more: Any) -> SchemaVersion:
    references = tuple(SchemaReference(name=f"{name}.avsc", subject=name, version=n) for name, n in needs)
    fields = {"schema": json.dumps({"name": f"s{schema_id}"}), "references": references} | more
    return SchemaVersion(subject=subject, version=number, id=schema_id, **fields)


VERSIONS = (
    version("inner", 3, 50),
    version("old", 1, 70, state="gone"),
    version("orders", 1, 60, ("inner", 3)),
    version("orders", 2, 61, ("inner", 3), state="deleted"),
    version("orders", 4, 62, ("inner", 3)),
)
SETTINGS = (
    SubjectSettings(subject="", config={"compatibilityLevel": "FULL"}),
    SubjectSettings(subject="orders", config={"compatibilityLevel": "BACKWARD"}, mode="READONLY"),
)
POINT = Schemas(captured_at="", registry="http://s", kept="all", versions=VERSIONS, settings=SETTINGS)
ALL = Selection()


def empty() -> ConfluentRegistry:
    return ConfluentRegistry()


def of_others() -> ConfluentRegistry:
    """A registry with subjects of others, and a part of ours, of which one version was deleted."""
    other = version("other", 1, 50, schema=VERSIONS[0].schema)
    return put(ConfluentRegistry(), other, VERSIONS[0], replace(VERSIONS[2], state="deleted"))


def content(server: ConfluentRegistry) -> Any:
    """All that a registry tells, apart from subjects without versions."""
    return deepcopy(({name: v for name, v in server.subjects.items() if v}, server.configs, server.modes))


def plan_for(client: Client, mode: Mode, prefix: str = "") -> SchemaPlan:
    return prepare_schemas(client, POINT, carried=(), mode=mode, prefix=prefix, subjects=ALL)


def put_back(client: Client, state: MemoryStore, restore_id: str) -> SchemasUndone:
    """Undo the schemas of a restore."""
    journal = RestoreJournal(state, restore_id)
    return journal.undo(SchemasUndo(client, journal), confirm=True, accept_unproven=False)


def states(server: ConfluentRegistry) -> dict[str, tuple[int, bool]]:
    """Id, and whether it is deleted, of each version."""
    return {f"{v.subject} {v.number}": (v.id, v.deleted) for each in server.subjects.values() for v in each.values()}


@pytest.mark.parametrize(
    ("make", "mode", "prefix", "there"),
    [
        (
            *(empty, "same", ""),
            {
                **{"inner 3": (50, False), "old 1": (70, True)},
                **{"orders 1": (60, False), "orders 2": (61, True), "orders 4": (62, False)},
            },
        ),
        (
            *(empty, "map", ":.re:"),
            {
                **{":.re:inner 1": (1, False), ":.re:old 1": (2, True)},
                **{":.re:orders 1": (3, False), ":.re:orders 2": (4, True), ":.re:orders 3": (5, False)},
            },
        ),
        (
            *(of_others, "same", ""),
            {
                **{"other 1": (50, False), "inner 3": (50, False), "old 1": (70, True)},
                **{"orders 1": (60, False), "orders 2": (61, True), "orders 4": (62, False)},
            },
        ),
        (
            *(of_others, "map", ""),
            {
                **{"other 1": (50, False), "inner 3": (50, False), "old 1": (61, True)},
                **{"orders 2": (60, False), "orders 3": (62, True), "orders 4": (63, False)},
            },
        ),
    ],
)
def test_what_a_registry_has_afterwards(
    make: Callable[[], ConfluentRegistry], mode: Mode, prefix: str, there: dict[str, tuple[int, bool]]
) -> None:
    server, state = make(), MemoryStore()
    client = Client(server)
    plan = plan_for(client, mode, prefix)
    done = apply_schemas(client, RestoreJournal(state, "r"), plan)
    assert states(server) == there
    ids = {name: schema_id for name, (schema_id, _) in there.items()}
    assert {s.version: s.id for s in done.schemas if s.source == "orders"} == {
        s.version: ids[f"{s.subject} {s.target_version}"] for s in done.schemas if s.source == "orders"
    }
    assert done.ids == {
        v.id: s.id for v in VERSIONS for s in done.schemas if (s.source, s.version) == (v.subject, v.version)
    }
    assert server.modes[f"{prefix}orders"] == {"mode": "READONLY"}
    assert server.configs[f"{prefix}orders"] == {"compatibilityLevel": "BACKWARD"}
    assert server.configs[""]["compatibilityLevel"] == ("FULL" if make is empty and not prefix else "BACKWARD")
    assert set(server.modes) == {"", f"{prefix}orders"}, "mode IMPORT is put back"
    before = content(server)
    assert apply_schemas(client, RestoreJournal(state, "r"), plan_for(client, mode, prefix)) == schema_map(
        RestoreJournal(state, "r")
    )
    assert content(server) == before, "a second time writes nothing"


KINDS = [(empty, "same", ""), (of_others, "same", ""), (of_others, "map", ""), (empty, "map", ":.re:")]


def comparable(server: ConfluentRegistry, mode: Mode) -> Any:
    """What an undo brings back. In `map`, a version that is registered again takes the place of the deleted one."""
    subjects, *settings = content(server)
    if mode == "map":
        subjects = {name: {(v.id, v.deleted) for v in versions.values()} for name, versions in subjects.items()}
    return subjects, settings


@pytest.mark.parametrize(("make", "mode", "prefix"), KINDS)
def test_a_kill_at_any_request(make: Callable[[], ConfluentRegistry], mode: Mode, prefix: str) -> None:
    """Going on has the result, and the ids, of a restore that was not killed. Undone, the registry is as it was."""
    whole, state = make(), MemoryStore()
    client = Client(whole)
    plan = plan_for(client, mode, prefix)
    first = client.asked
    expected = apply_schemas(client, RestoreJournal(state, "r"), plan)
    for until in range(1, client.asked - first + 1):
        for undone in (False, True):
            server, state = make(), MemoryStore()
            with pytest.raises(Killed):
                apply_schemas(Client(server, until), RestoreJournal(state, "r"), plan)
            client = Client(server)
            if undone:
                assert put_back(client, state, "r").left == ()
                assert comparable(server, mode) == comparable(make(), mode), f"killed at request {until}"
                continue
            done = apply_schemas(client, RestoreJournal(state, "r"), plan_for(client, mode, prefix))
            assert (done.ids, done.schemas) == (expected.ids, expected.schemas)
            assert content(server) == content(whole), f"killed at request {until}"
            assert begun_plan(RestoreJournal(state, "r")) == plan


@pytest.mark.parametrize(("make", "mode", "prefix"), KINDS)
def test_an_undo_that_is_killed_is_done_again(make: Callable[[], ConfluentRegistry], mode: Mode, prefix: str) -> None:
    for until in count(1):
        server, state = make(), MemoryStore()
        client = Client(server)
        plan = plan_for(client, mode, prefix)
        apply_schemas(client, RestoreJournal(state, "r"), plan)
        try:
            put_back(Client(server, until), state, "r")
            break
        except Killed:
            assert put_back(client, state, "r").left == ()
            assert comparable(server, mode) == comparable(make(), mode), f"killed at request {until}"
    put(server, version(f"{prefix}old", 9, 900, schema=VERSIONS[1].schema))  # by others
    again = put_back(client, state, "r")
    assert (again.deleted, again.settings, again.left) == ((), (), ())
    if make is empty:
        with pytest.raises(RefusedError, match=r"of restore r, schema .* is not there"):
            apply_schemas(client, RestoreJournal(state, "r"), plan)


class OwnIds(ConfluentRegistry):
    """Takes mode IMPORT, and gives ids and versions of its own, as Apicurio does."""

    def register(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        modes, self.modes = self.modes, {"": {"mode": "READWRITE"}}
        answer = super().register(subject, {k: v for k, v in body.items() if k not in ("id", "version")})
        self.modes = modes
        return answer


def test_a_registry_with_ids_of_its_own_is_left_as_it_was() -> None:
    server, state = put(OwnIds(), version("inner", 1, 40, schema='"another"')), MemoryStore()
    before = comparable(server, "map")
    client = Client(server)
    told = "gives ids and versions of its own: inner version 3 with id 50 got id 41; use --schemas map"
    with pytest.raises(OwnIdsError, match=told):
        apply_schemas(client, RestoreJournal(state, "r"), plan_for(client, "same"))
    assert comparable(server, "map") == before
    with pytest.raises(RefusedError, match="restore r was begun with other schemas"):
        apply_schemas(client, RestoreJournal(state, "r"), plan_for(client, "map"))
    assert apply_schemas(client, RestoreJournal(state, "r2"), plan_for(client, "map")).ids[50] == 42


class Contracts(ConfluentRegistry):
    """Adds metadata to what is registered, as rules of a data contract make Confluent's do."""

    def register(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        return super().register(subject, body | {"metadata": {"properties": {"owner": "us"}}})


@pytest.mark.parametrize("mode", ["same", "map"])
def test_a_registry_that_adds_metadata(mode: Mode) -> None:
    server, state = Contracts(), MemoryStore()
    client = Client(server)
    done = apply_schemas(client, RestoreJournal(state, "r"), plan_for(client, mode))
    assert len(states(server)) == len(VERSIONS)
    assert apply_schemas(client, RestoreJournal(state, "r"), plan_for(client, mode)).ids == done.ids
    assert len(put_back(client, state, "r").deleted) == len(VERSIONS)
    assert states(server) == {}


@pytest.mark.parametrize("mode", ["same", "map"])
def test_an_undo_of_a_killed_restore_into_a_registry_that_adds_metadata(mode: Mode) -> None:
    server, state = Contracts(), MemoryStore()
    plan = plan_for(Client(server), mode)
    for until in count(1):
        server, state = Contracts(), MemoryStore()
        with pytest.raises(Killed):
            apply_schemas(Client(server, until), RestoreJournal(state, "r"), plan)
        if len(states(server)) == 3:
            break
    left = put_back(Client(server), state, "r").left
    due = {} if mode == "same" else {"inner 1": (1, False), "old 1": (2, False), "orders 1": (3, False)}
    assert states(server) == due
    told = (
        "it may be of this restore, with metadata or rules of the registry's own; end the restore with --restore-id r"
    )
    named = {place.replace(" ", " version ") for place in due}
    assert {*left} == {f"{name} is left: {told}, then undo it" for name in named}
    apply_schemas(Client(server), RestoreJournal(state, "r"), plan)
    assert len(put_back(Client(server), state, "r").deleted) == len(VERSIONS)
    assert states(server) == {}


class Compact(ConfluentRegistry):
    """Tells texts without white space, and knows them with theirs alone, as Apicurio does with Avro."""

    def answer(self, method: str, path: str, body: dict[str, Any]) -> Any:
        told = super().answer(method, path, body)
        if method == "GET" and isinstance(told, dict) and "schema" in told:
            told["schema"] = json.dumps(json.loads(told["schema"]), separators=(",", ":"))
        return told


def test_a_registry_that_tells_a_text_in_another_form() -> None:
    server = Compact()
    put(server, version("orders", 1, 5, schema='{"name":   "o"}'))
    known = replace(POINT, versions=(version("orders", 4, 5, schema='{"name":"o"}'),), settings=())
    plan = prepare_schemas(Client(server), known, carried=(), mode="map", prefix="", subjects=ALL)
    assert [step.action for step in plan.steps] == ["exists"]
    assert apply_schemas(Client(server), RestoreJournal(MemoryStore(), "r"), plan).ids == {5: 5}


def test_texts_that_differ_in_their_form_alone_keep_their_ids() -> None:
    versions = (version("orders", 1, 5, schema='{"a":1,"b":2}'), version("orders", 2, 6, schema='{"b":2,"a":1}'))
    client = Client(put(ConfluentRegistry(), *versions))
    plan = prepare_schemas(
        client, replace(POINT, versions=versions, settings=()), carried=(), mode="map", prefix="", subjects=ALL
    )
    assert apply_schemas(client, RestoreJournal(MemoryStore(), "r"), plan).ids == {5: 5, 6: 6}


@pytest.mark.parametrize("mode", ["same", "map"])
def test_a_text_that_was_registered_deleted_and_registered_again(mode: Mode) -> None:
    server, state = ConfluentRegistry(), MemoryStore()
    versions = (version("users", 1, 5, state="deleted"), version("users", 2, 5))
    plan = prepare_schemas(
        Client(server), replace(POINT, versions=versions, settings=()), carried=(), mode=mode, prefix="", subjects=ALL
    )
    apply_schemas(Client(server), RestoreJournal(state, "r"), plan)
    assert states(server) == (
        {"users 1": (5, True), "users 2": (5, False)} if mode == "same" else {"users 1": (1, False)}
    )
    assert len(put_back(Client(server), state, "r").deleted) == (2 if mode == "same" else 1)
    assert states(server) == {}


class OneMode(ConfluentRegistry):
    """Has a mode for all subjects alone."""

    def _setting(self, kind: str, method: str, scope: str, body: dict[str, Any], yes: set[str]) -> Any:
        if kind == "mode" and scope and method != "GET":
            raise Refusal(422, 42204, "no mode of a subject")
        return super()._setting(kind, method, scope, body, yes)


def test_a_registry_with_one_mode_for_all_subjects() -> None:
    server, state = OneMode(), MemoryStore()
    client = Client(server)
    done = apply_schemas(client, RestoreJournal(state, "r"), plan_for(client, "same"))
    assert set(done.ids.items()) == {(v.id, v.id) for v in VERSIONS}
    assert server.modes == {"": {"mode": "READWRITE"}}
    (refused,) = done.not_set
    assert refused.startswith("compatibility BACKWARD and mode READONLY of orders: the schema registry http://registry")


class Liar(ConfluentRegistry):
    """Says that a schema has an id that it does not have."""

    def register(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        return super().register(subject, body) | {"id": 9}


@pytest.mark.parametrize(("mode", "told"), [("same", "got id 9"), ("map", "but it has it under id 1")])
def test_no_answer_of_a_registry_is_believed(mode: Mode, told: str) -> None:
    server, state = Liar(), MemoryStore()
    client = Client(server)
    with pytest.raises(RefusedError, match=told):
        apply_schemas(client, RestoreJournal(state, "r"), plan_for(client, mode))
    assert server.modes == {"": {"mode": "READWRITE"}}
    assert schema_map(RestoreJournal(state, "r")) is None


def test_a_mode_that_can_not_be_put_back_is_told() -> None:
    class Stuck(ConfluentRegistry):
        def _setting(self, kind: str, method: str, scope: str, body: dict[str, Any], yes: set[str]) -> Any:
            if kind == "mode" and method == "DELETE" and self.subjects:
                raise Refusal(422, 42205, "stuck")
            return super()._setting(kind, method, scope, body, yes)

    client = Client(Stuck())
    with pytest.raises(
        KbackupError, match=r"the settings of .* were changed to write schemas, and are not put back: .*stuck"
    ):
        apply_schemas(client, RestoreJournal(MemoryStore(), "r"), plan_for(client, "same"))


def test_an_undo_leaves_what_others_have_changed_or_need() -> None:
    server, state = ConfluentRegistry(), MemoryStore()
    client = Client(server)
    apply_schemas(client, RestoreJournal(state, "r"), plan_for(client, "map"))
    server.modes.pop("orders")
    server.configs["orders"] = {"compatibilityLevel": "NONE"}
    put(server, version("orders", 9, 90), version("theirs", 1, 91, ("inner", 1)))
    undone = put_back(client, state, "r")
    assert undone.deleted == ("old version 1",)
    assert undone.settings == ("all",)
    later = "others have registered version 9 since"
    assert undone.left[:4] == (
        "the settings of orders are left: others have changed them",
        *(f"orders version {n} is left: {later}" for n in (3, 2, 1)),
    )
    assert undone.left[4].startswith("inner version 1 is left: the schema registry http://registry refuses DELETE")
    assert states(server)["orders 1"] == (3, False)


def test_a_newer_version_that_others_have_deleted_again_does_not_stop_an_undo() -> None:
    server, state = ConfluentRegistry(), MemoryStore()
    client = Client(server)
    apply_schemas(client, RestoreJournal(state, "r"), plan_for(client, "map"))
    put(server, version("orders", 9, 90))
    server.subjects["orders"][9].deleted = True
    assert put_back(client, state, "r").left == ()
    assert states(server) == {"orders 9": (90, True)}


def test_newer_versions_from_before_a_restore_do_not_stop_its_undo() -> None:
    server, state = put(ConfluentRegistry(), version("orders", 9, 90)), MemoryStore()
    client = Client(server)
    apply_schemas(client, RestoreJournal(state, "r"), plan_for(client, "same"))
    assert put_back(client, state, "r").left == ()
    assert states(server) == {"orders 9": (90, False)}


@pytest.mark.parametrize(
    ("restore_id", "url", "error", "told"),
    [
        ("other", "http://registry", UsageError, "restore other restored no schemas"),
        (
            "r",
            "http://elsewhere",
            RefusedError,
            "wrote to the schema registry http://registry, this is http://elsewhere",
        ),
    ],
)
def test_an_undo_of_something_else(restore_id: str, url: str, error: type[KbackupError], told: str) -> None:
    state = MemoryStore()
    client = Client(ConfluentRegistry())
    apply_schemas(client, RestoreJournal(state, "r"), plan_for(client, "same"))
    client.url = url
    with pytest.raises(error, match=told):
        put_back(client, state, restore_id)


@pytest.mark.parametrize(
    "answer", [{"mode": 5}, {"mode": ["IMPORT"]}, ["IMPORT"], "x", {"mode": "IMPORT", "more": {"a": [None] * 9}}]
)
def test_a_registry_with_other_answers(answer: Any) -> None:
    """It is told to be none, or what it says is kept as it is."""

    class Hostile(ConfluentRegistry):
        def _setting(self, kind: str, method: str, scope: str, body: dict[str, Any], yes: set[str]) -> Any:
            return answer if kind == "mode" else {"compatibilityLevel": answer, "x" * 9: answer}

    client, state = Client(Hostile()), MemoryStore()
    if isinstance(answer, dict) and answer["mode"] == "IMPORT":
        plan = plan_for(client, "map")
        assert apply_schemas(client, RestoreJournal(state, "r"), plan).schemas
        assert begun_plan(RestoreJournal(state, "r")) == plan
    else:
        with pytest.raises(UnreachableError, match="is no schema registry"):
            plan_for(client, "map")


def test_guids_are_mapped_too() -> None:
    server, state = ConfluentRegistry(), MemoryStore()
    guid = "00000000-0000-0000-0000-000000000001"
    schemas = replace(POINT, versions=(replace(VERSIONS[0], guid=guid),), settings=())
    client = Client(server)
    done = apply_schemas(
        client,
        RestoreJournal(state, "r"),
        prepare_schemas(client, schemas, carried=(), mode="map", prefix="", subjects=ALL),
    )
    assert done.guids == {guid: server.subjects["inner"][1].guid}
