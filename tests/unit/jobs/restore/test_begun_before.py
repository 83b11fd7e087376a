"""Restores that the version before began are resumed, reported and undone: by the documents that it wrote."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from kbackup.archive import layout
from kbackup.archive.restores.journal import RestoreJournal
from kbackup.archive.restores.offset_map import runs_by_partition
from kbackup.archive.restores.proof import with_proof
from kbackup.errors import MismatchError, RefusedError
from kbackup.jobs.groups.documents import Captures
from kbackup.jobs.groups.undo import GroupsUndo
from kbackup.jobs.restore.request import RestoreRequest
from kbackup.jobs.restore.resume import find_begun
from kbackup.jobs.schemas.documents import schema_map
from kbackup.jobs.schemas.undo import SchemasUndo
from kbackup.jobs.schemas.write import apply_schemas
from kbackup.jobs.settings import undo as settings_undo
from kbackup.jobs.settings.documents import SettingsCaptures
from kbackup.jobs.settings.plan import Changes
from kbackup.jobs.settings.undo import SettingsUndo
from kbackup.kafka.control.cluster import Cluster
from kbackup.kafka.control.topics import Topic
from kbackup.metadata.entities import BrokerConfig, ClientMetrics, ClientQuota, GroupConfig, Reading
from kbackup.store import Store
from kbackup.types import TopicPartition
from tests.support.begun import KINDS, TARGET, BegunArchive, begun_archive
from tests.support.kafka_raw import FakeCluster, FakeGroups, Held, Place
from tests.support.memory_store import MemoryStore
from tests.support.schemas import Client
from tests.unit.jobs.test_schema_writes import of_others, plan_for, states


@pytest.fixture(params=KINDS)
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> BegunArchive:
    return begun_archive(request.param, tmp_path / "archive")


NOWHERE = cast(Cluster, None)
"""A cluster that nothing is asked of."""


def test_one_with_a_plan_alone_is_resumed_with_the_same_options(archive: BegunArchive) -> None:
    request = RestoreRequest.of(archive.options("begun"))
    begun = find_begun(request, RestoreJournal(archive.store, "begun"), NOWHERE, TARGET)
    assert begun.report is None
    assert begun.plan is not None
    assert [topic.target for topic in begun.plan.topics] == [
        f"{archive.kind}-begun-clicks",
        f"{archive.kind}-begun-orders",
    ]
    segments = [segment for unit in begun.plan.units for part in unit for segment in part.segments]
    assert sum(segment.count for segment in segments) == 37


def test_other_options_than_it_was_begun_with_are_refused(archive: BegunArchive) -> None:
    options = msgspec.structs.replace(archive.options("begun"), to_time=None, topic_config={"x": "1"})
    journal = RestoreJournal(archive.store, "begun")
    with pytest.raises(MismatchError, match='options: to_time was "2100-01-01T00:00:00Z", now unset'):
        find_begun(RestoreRequest.of(options), journal, NOWHERE, TARGET)


def test_another_target_is_refused(archive: BegunArchive) -> None:
    request = RestoreRequest.of(archive.options("begun"))
    with pytest.raises(RefusedError, match=f"restore begun was begun into cluster {TARGET}, this is another"):
        find_begun(request, RestoreJournal(archive.store, "begun"), NOWHERE, "another")


class Target:
    """A cluster with the topics of restore `done`, whose logs hold what it has restored."""

    def topics(self, names: Any) -> dict[str, Topic]:
        return {name: Topic(name, "", False, (0, 1, 2), 1) for name in names}

    def log_starts(self, partitions: Any) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def log_ends(self, partitions: Any, isolation: str) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 100)


def test_a_finished_one_is_reported_and_not_done_again(archive: BegunArchive) -> None:
    journal, request = RestoreJournal(archive.store, "done"), RestoreRequest.of(archive.options("done"))
    report = find_begun(request, journal, cast(Cluster, Target()), TARGET).report
    assert report is not None
    assert (report.status, report.records) == ("restored", 34)
    assert report.warnings[-1] == "restore done was finished before: nothing was done now"


def test_its_offset_map_is_read(archive: BegunArchive) -> None:
    plan, offsets = RestoreJournal(archive.store, "mapped").finished()
    runs = runs_by_partition(offsets)
    assert {tp.topic for tp in runs} == {topic.target for topic in plan.topics}
    assert sum(int(count.sum()) for _, _, count in runs.values()) == 34


WRITTEN = {"clicks": (0, 1), "orders": (0, 3), "orders 1": (1, 5)}


def groups_of(archive: BegunArchive) -> FakeGroups:
    """Return groups as the restore was about to set them; they had nothing before."""
    held: dict[Place, Held] = {
        (f"{archive.kind}-mapped-{name.partition(' ')[0]}", partition): (offset, None, "")
        for name, (partition, offset) in WRITTEN.items()
    }
    return FakeGroups({archive.group: held})


def test_the_groups_that_it_set_are_put_back(archive: BegunArchive) -> None:
    groups, journal = groups_of(archive), RestoreJournal(archive.store, "mapped")
    steps = GroupsUndo(FakeCluster(groups, TARGET).cluster, journal)
    planned = journal.undo(steps, confirm=False, accept_unproven=False)
    assert [(group.group, group.status, group.removed) for group in planned.groups] == [(archive.group, "planned", 3)]
    assert archive.group in groups.held
    undone = journal.undo(steps, confirm=True, accept_unproven=False)
    assert [(group.group, group.status) for group in undone.groups] == [(archive.group, "deleted")]
    assert groups.held == {}
    assert Captures(journal).numbers() == [1, 2]


def settings_of(archive: BegunArchive) -> Reading:
    """Return the settings of a target as the restore has set them."""
    changes = SettingsCaptures(RestoreJournal(archive.store, "mapped")).read(1).changes
    metrics = {c.name: c.after for c in changes.configs if c.kind == "client metrics" and c.after is not None}
    brokers = [BrokerConfig(broker=None, name=c.name, value=c.after) for c in changes.configs if c.kind == "broker"]
    groups = [GroupConfig(group=c.owner, name=c.name, value=c.after) for c in changes.configs if c.kind == "group"]
    quotas = [
        ClientQuota(entity=dict(q.entity), quotas={q.name: q.after}) for q in changes.quotas if q.after is not None
    ]
    return Reading(
        source="brokers",
        cluster_id=TARGET,
        acls=(),
        broker_configs=tuple(brokers),
        group_configs=tuple(groups),
        client_metrics=(ClientMetrics(name="latencies", configs=metrics),) if metrics else (),
        client_quotas=tuple(quotas),
    )


@dataclass
class SettingsTarget:
    """A target that has the settings `now`, and notes what is written to it."""

    now: Reading
    written: list[Changes] = field(default_factory=list)

    def undo_of(self, journal: RestoreJournal) -> SettingsUndo:
        cluster = SimpleNamespace(connect=lambda: (TARGET, 1), connection=SimpleNamespace(address="h:1"))
        return SettingsUndo(cast(Cluster, cluster), journal)

    def write(self, cluster: object, changes: Changes) -> tuple[Changes, tuple[str, ...]]:
        self.written.append(changes)
        return changes, ()


@pytest.fixture
def target(archive: BegunArchive, monkeypatch: pytest.MonkeyPatch) -> SettingsTarget:
    made = SettingsTarget(settings_of(archive))
    monkeypatch.setattr(settings_undo, "capture_settings", lambda *_: made.now)
    monkeypatch.setattr(settings_undo, "write_changes", made.write)
    return made


def test_settings_that_the_target_does_not_tell_are_not_put_back(archive: BegunArchive, target: SettingsTarget) -> None:
    target.now = replace(target.now, group_configs=None)
    journal = RestoreJournal(archive.store, "mapped")
    with pytest.raises(RefusedError, match="h:1 does not tell its group configs: nobody knows why"):
        journal.undo(target.undo_of(journal), confirm=True, accept_unproven=False)
    assert target.written == []


def test_the_settings_that_it_changed_are_put_back(archive: BegunArchive, target: SettingsTarget) -> None:
    written = target.written
    journal = RestoreJournal(archive.store, "mapped")
    steps = target.undo_of(journal)
    planned = journal.undo(steps, confirm=False, accept_unproven=False)
    assert (written, planned.confirmed, planned.missing) == ([], False, ())
    undone = journal.undo(steps, confirm=True, accept_unproven=False)
    (changes,) = written
    assert undone.changes == changes
    assert {change.name for change in changes.configs} >= {"consumer.session.timeout.ms"}
    assert {change.after for change in changes.configs} == {None}
    assert SettingsCaptures(journal).numbers() == [1, 2]


def test_documents_of_another_machine_need_the_operators_word(tmp_path: Path) -> None:
    plain = begun_archive("plain", tmp_path / "archive")
    groups, journal = groups_of(plain), RestoreJournal(with_proof(plain.store, tmp_path / "digests"), "mapped")
    steps = GroupsUndo(FakeCluster(groups, TARGET).cluster, journal)
    planned = journal.undo(steps, confirm=False, accept_unproven=False)
    assert planned.unproven == ("restores/mapped/groups-before-1.json", "restores/mapped/plan.json")
    with pytest.raises(RefusedError, match=r"nothing proves that restores/mapped/groups-before-1\.json"):
        journal.undo(steps, confirm=True, accept_unproven=False)
    assert groups.calls == []
    assert len(groups.held[plain.group]) == len(WRITTEN)
    undone = journal.undo(steps, confirm=True, accept_unproven=True)
    assert (undone.unproven, groups.held) == (planned.unproven, {})


# The schemas of a registry.


@pytest.fixture
def plain(tmp_path: Path) -> Store:
    return begun_archive("plain", tmp_path / "archive").store


def test_schemas_that_it_planned_are_registered(plain: Store) -> None:
    server = of_others()
    client, journal = Client(server), RestoreJournal(plain, "schemas-begun")
    done = apply_schemas(client, journal, plan_for(client, "map"))
    finished = schema_map(RestoreJournal(plain, "schemas"))
    assert finished is not None
    assert (done.ids, done.schemas) == (finished.ids, finished.schemas)
    assert journal.key(layout.SCHEMAS) in {entry.key for entry in plain.list()}


def test_schemas_that_it_registered_are_deleted(plain: Store) -> None:
    left: list[dict[str, tuple[int, bool]]] = []
    own = RestoreJournal(MemoryStore(), "schemas")
    for journal in (own, RestoreJournal(plain, "schemas")):
        server = of_others()
        client = Client(server)
        apply_schemas(client, RestoreJournal(own.state, "schemas"), plan_for(client, "map"))
        undone = journal.undo(SchemasUndo(client, journal), confirm=True, accept_unproven=False)
        assert undone.left == ()
        assert len(undone.deleted) == 4
        left.append(states(server))
        own.state.delete([own.key(layout.SCHEMAS), own.key(layout.SCHEMAS_BEFORE)])
    assert left[0] == left[1]
