"""The schemas of the records of a restore: planned, and gone on with after a kill."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace as replace_fields
from typing import Any

import pytest
from msgspec.structs import replace

from kbackup.archive.models import UsedSchemas
from kbackup.archive.reader import Archive
from kbackup.archive.restores.plan import RestorePlan
from kbackup.config.models import Restore
from kbackup.errors import ClusterError, MismatchError, RefusedError, UsageError
from kbackup.jobs.mirror.flow import RemoteTopic
from kbackup.jobs.mirror.schemas import MirrorSchemas
from kbackup.jobs.replay import SchemaRewrite
from kbackup.jobs.restore.plan import plan_restore, select_content
from kbackup.jobs.schemas.records import (
    missing_schemas,
    plan_record_schemas,
    resumed_schemas,
    rewrite_of,
    unreadable_records,
)
from kbackup.jobs.schemas.write import apply_schemas
from kbackup.schemas.base import RegistryOptions
from tests.support.archives import commit_point, make_archive
from tests.support.confluent_registry import ConfluentRegistry
from tests.support.flow_maps import flow_of
from tests.support.memory_store import MemoryStore
from tests.support.schemas import schemas, version

_GUID = "00000000-0000-0000-0000-000000000007"


@pytest.fixture
def running() -> Iterator[ConfluentRegistry]:
    with ConfluentRegistry() as registry:
        registry.put("theirs", 1, 7, {"schema": '"theirs"'})
        yield registry


def archive_of(*ids: int | str, counted: int = 100, with_schemas: bool = True) -> Archive:
    """An archive whose orders carry these ids."""
    archive = make_archive(MemoryStore())
    used = UsedSchemas(part="value", fields=9, framed=9, sure=9, ids={str(each): 9 for each in ids})
    (orders,) = (t for t in archive.restore_point("latest").topics if t.name == "orders")
    known = schemas(version("orders-value", 1, 7, guid=_GUID)) if with_schemas else None
    commit_point(archive, 3, [replace(orders, schemas=(used,), counted=counted)], (), (), schemas=known)
    return archive


def planned(archive: Archive, registry: ConfluentRegistry, mode: Any, **more: Any) -> tuple[RestorePlan, Any]:
    options = Restore(restore_id="r", topics=("orders",))
    plan = plan_restore(options, select_content(options, archive.store), "target")
    store = more.pop("state", archive.store)
    return plan, plan_record_schemas(mode, "", RegistryOptions(url=registry.url), archive, plan, store)


def test_ids_are_mapped_for_the_parts_that_name_schemas(running: ConfluentRegistry) -> None:
    archive = archive_of(7)
    plan, found = planned(archive, running, "map")
    done = apply_schemas(found.registry, archive.store, "r", found.plan)
    assert (done.ids, done.parts) == ({7: 8}, {"orders": ("value",)})
    rewrite = rewrite_of(done)
    assert rewrite is not None
    assert rewrite.ids == {7: 8}
    assert rewrite_of(resumed_schemas("map", archive.store, "r")) == rewrite
    with pytest.raises(MismatchError, match="begun with --schemas map, now it is none"):
        resumed_schemas("none", archive.store, "r")
    assert missing_schemas(RegistryOptions(url=running.url), False, archive, plan, archive.store) == []
    running.answer("DELETE", "/subjects/orders-value/versions/1", {})
    running.answer("DELETE", "/subjects/orders-value/versions/1?permanent=true", {})
    lost = missing_schemas(RegistryOptions(url=running.url), False, archive, plan, archive.store)
    assert lost == ["schema orders-value version 1, id 8, is not there"]
    assert len(missing_schemas(RegistryOptions(url=running.url), True, archive, plan, archive.store)) == 1


def test_schemas_that_were_registered_before_a_kill_are_those_of_the_records(running: ConfluentRegistry) -> None:
    archive = archive_of(7)
    plan, found = planned(archive, running, "map")
    apply_schemas(found.registry, archive.store, "r", found.plan)
    assert planned(archive, running, None)[1].plan == found.plan
    with pytest.raises(MismatchError, match="begun with --schemas map, now it is same"):
        planned(archive, running, "same")
    with pytest.raises(UsageError, match="--schemas map needs the schema registry of the target"):
        plan_record_schemas(None, "", RegistryOptions(), archive, plan, archive.store)


def test_a_restore_that_was_begun_without_schemas_goes_on_without() -> None:
    assert resumed_schemas(None, MemoryStore(), "r") is None
    with pytest.raises(MismatchError, match="begun with --schemas none, now it is map"):
        resumed_schemas("map", MemoryStore(), "r")


def test_an_id_that_is_taken_ends_it_before_anything_is_written(running: ConfluentRegistry) -> None:
    with pytest.raises(RefusedError, match="id 7 is taken by theirs version 1; orders-value version 1"):
        planned(archive_of(7), running, None)


@pytest.mark.parametrize(
    ("with_schemas", "error", "message"),
    [
        (True, RefusedError, "with schema 8, which the restore point lacks"),
        (False, UsageError, "restore point 3 has no schemas"),
    ],
)
def test_nothing_is_written_where_an_id_has_no_meaning(
    with_schemas: bool, error: type[Exception], message: str, running: ConfluentRegistry
) -> None:
    with pytest.raises(error, match=message):
        planned(archive_of(7, 8, with_schemas=with_schemas), running, "map" if with_schemas else None)


def test_records_that_nobody_counted_are_told(running: ConfluentRegistry) -> None:
    _, found = planned(archive_of(7, counted=1), running, "map")
    assert found.warnings == ("what schemas older records of orders name is not known before they are read",)


def test_a_registry_is_needed_only_where_it_is_asked_for() -> None:
    archive = archive_of(7)
    options = Restore(topics=("orders",))
    plan = plan_restore(options, select_content(options, archive.store), "target")
    assert plan_record_schemas(None, "", RegistryOptions(), archive, plan, archive.store) is None
    with pytest.raises(UsageError, match="--schemas same needs the schema registry of the target"):
        plan_record_schemas("same", "", RegistryOptions(), archive, plan, archive.store)


def test_a_guid_that_the_target_does_not_give_ends_it(
    running: ConfluentRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = archive_of(_GUID)
    _, found = planned(archive, running, "map")
    done = apply_schemas(found.registry, MemoryStore(), "r", found.plan)
    assert done.guids.keys() == {_GUID}
    monkeypatch.setattr("tests.support.confluent_registry.Version.guid", "")
    with pytest.raises(RefusedError, match=f"has none for {_GUID}"):
        apply_schemas(found.registry, archive.store, "r", found.plan)


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
            assert rewrite.ids == {7: due}
        del running.subjects["orders-value"]


def test_mirrored_records_wait_for_a_restore_point_with_schemas(running: ConfluentRegistry) -> None:
    with pytest.raises(ClusterError, match="wait for their schemas: restore point 3 has none"):
        mirrored(archive_of(7, with_schemas=False), running)
    assert mirrored(archive_of(with_schemas=False), running) is None


def test_a_drill_names_schemas_that_are_none() -> None:
    archive = archive_of(7, 8)
    options = Restore(topics=("orders",))
    plan = plan_restore(options, select_content(options, archive.store), "target")
    lost, broken = unreadable_records(archive, plan)
    assert "schema 8, which the restore point lacks" in lost
    assert "records name schema 7: schema 7 is no Avro schema" in broken
