"""A restore that the version before began is resumed to its end, with the documents that it wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from kbackup.archive import layout
from kbackup.archive.models import dump
from kbackup.archive.restores.journal import RestoreJournal
from kbackup.jobs.groups.undo import GroupsUndo
from kbackup.jobs.settings.undo import SettingsUndo
from kbackup.kafka.control.cluster import Cluster
from scripts.dev.kafka import Broker
from tests.faults.conftest import Counting
from tests.support.begun import KINDS, begun_archive
from tests.support.restores import run_restore
from tests.support.truth import in_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker of its own: the restore sets the retention of all topics for a while, and others have old records."""
    with Broker() as own:
        yield own


@pytest.mark.parametrize("kind", KINDS)
def test_one_with_a_plan_alone_is_resumed_and_undone(
    kind: str, broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    begun, target = begun_archive(kind, tmp_path / "archive"), broker.client()
    cluster = Cluster(target, "target")
    cluster_id, _ = cluster.connect()
    journal = RestoreJournal(begun.store, "begun")
    plan = journal.begun()
    assert plan is not None
    # the cluster that it was begun into is gone: this one is as empty as that one was
    here = msgspec.structs.replace(plan, target_cluster_id=cluster_id)
    begun.store.put(journal.key(layout.PLAN), dump(here))

    report = run_restore(begun.options("begun"), target, begun.store, begun.store, lambda: spark, Counting())
    assert (report.status, report.records) == ("restored", 34)
    topics = [topic.target for topic in report.topics]
    assert sum(map(len, in_cluster(broker.bootstrap, topics).values())) == 34
    assert [(group.group, group.status) for group in report.groups] == [(f"{kind}-begun-billing", "applied")]

    again = run_restore(begun.options("begun"), target, begun.store, begun.store, lambda: spark, Counting())
    assert again.warnings[-1] == "restore begun was finished before: nothing was done now"
    groups = journal.undo(GroupsUndo(cluster, journal), confirm=True, accept_unproven=False)
    assert [(group.group, group.status) for group in groups.groups] == [(f"{kind}-begun-billing", "deleted")]
    settings = journal.undo(SettingsUndo(cluster, journal), confirm=True, accept_unproven=False)
    assert settings.missing == ()
    assert settings.changes
