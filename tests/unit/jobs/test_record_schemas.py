"""The schemas of the records of a restore: planned, and gone on with after a kill."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace as replace_fields
from typing import Any

import pytest
from msgspec.structs import replace

from kbackup.archive.models import UsedSchemas, dump
from kbackup.archive.reader import Archive
from kbackup.archive.restores.journal import RestoreJournal
from kbackup.archive.restores.plan import RestorePlan
from kbackup.config.models import Restore
from kbackup.errors import ClusterError, MismatchError, RefusedError, UsageError
from kbackup.jobs.schemas.records import (
    RecordOptions,
    checked_schemas,
    missing_schemas,
    plan_record_schemas,
    resumed_schemas,
    rewrite_of,
    unreadable_records,
)
from kbackup.jobs.schemas.rewrite import SchemaRewrite
from kbackup.jobs.schemas.write import apply_schemas
from kbackup.mirror.flow import RemoteTopic
from kbackup.mirror.schemas import MirrorSchemas
from kbackup.schemas.base import RegistryOptions, SchemaVersion
from tests.support.archives import commit_point, make_archive
from tests.support.confluent_registry import ConfluentRegistry
from tests.support.flow_maps import flow_of
from tests.support.memory_store import MemoryStore
from tests.support.restores import make_plan
from tests.support.schemas import schemas, version

_GUID = "00000000-0000-0000-0000-000000000007"


@pytest.fixture
def running() -> Iterator[ConfluentRegistry]:
    with ConfluentRegistry() as registry:
        registry.put("theirs", 1, 7, {"schema": '"theirs"'})
        yield registry


def archive_of(
    *ids: int | str, counted: int = 100, with_schemas: bool = True, more: tuple[SchemaVersion, ...] = ()
) -> Archive:
    """An archive whose orders carry these ids."""
    archive = make_archive(MemoryStore())
    used = UsedSchemas(part="value", fields=9, framed=9, sure=9, ids={str(each): 9 for each in ids})
    (orders,) = (t for t in archive.restore_point("latest").topics if t.name == "orders")
    known = schemas(version("orders-value", 1, 7, guid=_GUID), *more) if with_schemas else None
    commit_point(archive, 3, topics=[replace(orders, schemas=(used,), counted=counted)], schemas=known)
    return archive


def planned(archive: Archive, registry: ConfluentRegistry, mode: Any, **more: Any) -> tuple[RestorePlan, Any]:
    options = Restore(restore_id="r", topics=("orders",))
    plan = make_plan(options, archive.store, "target")
    given = RecordOptions(asked=mode, **more)
    return plan, plan_record_schemas(
        given, RegistryOptions(url=registry.url), archive, plan, RestoreJournal(archive.store, "r")
    )


def test_ids_are_mapped_for_the_parts_that_name_schemas(running: ConfluentRegistry) -> None:
    archive = archive_of(7)
    plan, found = planned(archive, running, "map")
    done = apply_schemas(found.registry, RestoreJournal(archive.store, "r"), found.plan)
    assert (done.ids, done.parts) == ({7: 8}, {"orders": ("value",)})
    rewrite = rewrite_of(done, archive.store)
    assert rewrite is not None
    assert rewrite.new.ids == {7: 8}
    assert [(part.topic, part.part, part.how, part.by_subject) for part in rewrite.judged] == [
        ("orders", "value", "subject", 9)
    ]
    assert rewrite_of(resumed_schemas("map", RestoreJournal(archive.store, "r")), archive.store) == rewrite
    with pytest.raises(MismatchError, match="begun with --schemas map, now it is none"):
        resumed_schemas("none", RestoreJournal(archive.store, "r"))
    assert missing_schemas(RegistryOptions(url=running.url), False, archive, plan, archive.store) == []
    running.answer("DELETE", "/subjects/orders-value/versions/1", {})
    running.answer("DELETE", "/subjects/orders-value/versions/1?permanent=true", {})
    lost = missing_schemas(RegistryOptions(url=running.url), False, archive, plan, archive.store)
    assert lost == ["schema orders-value version 1, id 8, is not there"]
    assert len(missing_schemas(RegistryOptions(url=running.url), True, archive, plan, archive.store)) == 1


def test_schemas_that_were_registered_before_a_kill_are_those_of_the_records(running: ConfluentRegistry) -> None:
    archive = archive_of(7)
    plan, found = planned(archive, running, "map")
    apply_schemas(found.registry, RestoreJournal(archive.store, "r"), found.plan)
    _, again = planned(archive, running, None)
    assert again.plan == found.plan
    with pytest.raises(MismatchError, match="begun with --schemas map, now it is same"):
        planned(archive, running, "same")
    with pytest.raises(UsageError, match="--schemas map needs the schema registry of the target"):
        plan_record_schemas(RecordOptions(), RegistryOptions(), archive, plan, RestoreJournal(archive.store, "r"))


def test_a_restore_that_was_begun_without_schemas_goes_on_without() -> None:
    assert resumed_schemas(None, RestoreJournal(MemoryStore(), "r")) is None
    with pytest.raises(MismatchError, match="begun with --schemas none, now it is map"):
        resumed_schemas("map", RestoreJournal(MemoryStore(), "r"))


def test_an_id_that_is_taken_ends_it_before_anything_is_written(running: ConfluentRegistry) -> None:
    with pytest.raises(RefusedError, match="id 7 is taken by theirs version 1; orders-value version 1"):
        planned(archive_of(7), running, None)


@pytest.mark.parametrize(
    ("with_schemas", "error", "message"),
    [
        (True, RefusedError, "9 values of topic orders with schemas that the restore point lacks"),
        (False, UsageError, "restore point 3 has no schemas"),
    ],
)
def test_nothing_is_written_where_an_id_has_no_meaning(
    with_schemas: bool, error: type[Exception], message: str, running: ConfluentRegistry
) -> None:
    with pytest.raises(error, match=message):
        planned(archive_of(7, 8, with_schemas=with_schemas), running, "map" if with_schemas else None, unmapped="fail")


def test_records_that_nobody_counted_are_told(running: ConfluentRegistry) -> None:
    _, found = planned(archive_of(7, counted=1), running, "map")
    assert found.warnings == ("what schemas older records of orders name is not known before they are read",)


def test_a_registry_is_needed_only_where_it_is_asked_for() -> None:
    archive = archive_of(7)
    options = Restore(topics=("orders",))
    plan = make_plan(options, archive.store, "target")
    assert (
        plan_record_schemas(RecordOptions(), RegistryOptions(), archive, plan, RestoreJournal(archive.store, "r"))
        is None
    )
    with pytest.raises(UsageError, match="--schemas same needs the schema registry of the target"):
        plan_record_schemas(
            RecordOptions(asked="same"), RegistryOptions(), archive, plan, RestoreJournal(archive.store, "r")
        )


def test_a_guid_that_the_target_does_not_give_ends_it(running: ConfluentRegistry) -> None:
    archive = archive_of(_GUID)
    _, found = planned(archive, running, "map", unmapped="fail")
    done = apply_schemas(found.registry, RestoreJournal(MemoryStore(), "r"), found.plan)
    assert done.guids.keys() == {_GUID}
    running.guids = False
    with pytest.raises(RefusedError, match=f"has none for {_GUID}"):
        apply_schemas(found.registry, RestoreJournal(archive.store, "r"), found.plan)


def test_a_guid_that_the_target_does_not_give_is_left_as_it_is(running: ConfluentRegistry) -> None:
    _, found = planned(archive_of(_GUID), running, "map")
    running.guids = False
    assert apply_schemas(found.registry, RestoreJournal(MemoryStore(), "r"), found.plan).guids == {}


@pytest.mark.parametrize("mode", ["same", "map"])
def test_an_id_that_the_restore_point_lacks_does_not_block_the_others(mode: str, running: ConfluentRegistry) -> None:
    running.subjects.clear()
    _, found = planned(archive_of(7, 8), running, mode)
    assert found.warnings == (
        "9 values of topic orders with schemas that the restore point lacks: they stay as they are, and the restore "
        "ends with exit code 3",
    )
    assert [step.schema.id for step in found.plan.steps] == [7]


def test_a_restore_that_an_older_version_began_goes_on_by_ids_alone(running: ConfluentRegistry) -> None:
    archive = archive_of(7)
    _, found = planned(archive, running, "map")
    done = apply_schemas(found.registry, RestoreJournal(archive.store, "r"), found.plan)
    older = replace(done, judged=(), unmapped="fail", archived=None, contexts={})
    rewrite = rewrite_of(older, archive.store)
    assert rewrite is not None
    assert [(part.topic, part.part, part.how) for part in rewrite.judged] == [("orders", "value", "asked")]
    assert rewrite.unmapped == "fail"
    kept = rewrite_of(older, archive.store, "keep")
    assert kept is not None
    assert kept.unmapped == "keep"


def test_a_comparison_judges_anew_what_an_older_version_mapped_by_ids_alone(running: ConfluentRegistry) -> None:
    archive = archive_of(7)
    plan, found = planned(archive, running, "map")
    older = replace(
        apply_schemas(found.registry, RestoreJournal(MemoryStore(), "r"), found.plan), judged=(), archived=None
    )
    archive.store.put_new("restores/r/schemas.json", dump(older))
    rewrite = checked_schemas(plan, archive.store, archive.store, None)
    assert rewrite is not None
    assert [(part.topic, part.part, part.how) for part in rewrite.judged] == [("orders", "value", "subject")]
    assert (rewrite.target, rewrite.unmapped) == (None, "keep")
    asked = checked_schemas(plan, archive.store, archive.store, RegistryOptions(url=running.url))
    assert asked is not None
    assert asked.target is not None
    assert [(v.subject, v.id) for v in asked.target.versions] == [("orders-value", 8)]


def test_records_that_keep_their_ids_are_only_counted(running: ConfluentRegistry) -> None:
    running.subjects.clear()
    archive = archive_of(7, 8)
    _, found = planned(archive, running, "same")
    done = apply_schemas(found.registry, RestoreJournal(archive.store, "r"), found.plan)
    rewrite = rewrite_of(done, archive.store)
    assert rewrite is not None
    assert (rewrite.new.ids, [part.how for part in rewrite.judged]) == ({7: 7}, ["asked"])
    plan, _ = planned(archive, running, "same")
    assert checked_schemas(plan, archive.store, archive.store, None) is None
    _, clean = planned(archive_of(7), running, "same")
    done = apply_schemas(clean.registry, RestoreJournal(MemoryStore(), "r"), clean.plan)
    assert rewrite_of(done, archive.store) is None, "nothing is to be counted"


def test_an_odd_record_with_the_id_of_another_subject_does_not_block_the_others(running: ConfluentRegistry) -> None:
    archive = archive_of(7, 9, more=(version("carts-value", 1, 9),))
    running.subjects.clear()
    running.put("theirs", 1, 9, {"schema": '"theirs"'})
    _, found = planned(archive, running, "same")
    assert [step.schema.id for step in found.plan.steps] == [7]
    assert found.warnings[0].startswith("left out: id 9 is taken by theirs version 1")
    with pytest.raises(RefusedError, match="id 9 is taken"):
        planned(archive, running, "same", unmapped="fail")


def mirrored(archive: Archive, registry: ConfluentRegistry) -> SchemaRewrite | None:
    """What a mirror registers that was just started."""
    flow = replace_fields(flow_of(), schemas="map", target_registry=RegistryOptions(url=registry.url))
    topics = [RemoteTopic("orders", "A.orders", 1)]
    return MirrorSchemas(flow, archive.store).register(archive, archive.restore_point("latest"), topics)


def test_a_mirror_registers_again_what_its_target_has_lost(running: ConfluentRegistry) -> None:
    archive = archive_of(7)
    for due in (8, 9):
        for _ in range(2):
            rewrite = mirrored(archive, running)
            assert rewrite is not None
            assert rewrite.new.ids == {7: due}
        del running.subjects["orders-value"]


def test_mirrored_records_wait_for_a_restore_point_with_schemas(running: ConfluentRegistry) -> None:
    with pytest.raises(ClusterError, match="wait for their schemas: restore point 3 has none"):
        mirrored(archive_of(7, with_schemas=False), running)
    assert mirrored(archive_of(with_schemas=False), running) is None


def test_a_drill_names_schemas_that_are_none() -> None:
    archive = archive_of(7, 8)
    options = Restore(topics=("orders",))
    plan = make_plan(options, archive.store, "target")
    lost, broken = unreadable_records(archive, plan)
    assert "schema 8, which the restore point lacks" in lost
    assert "records name schema 7: schema 7 is no Avro schema" in broken
