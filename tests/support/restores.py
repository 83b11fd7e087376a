"""Restores as tests ask for them: by the keys of `[restore]`, without a configuration."""

from __future__ import annotations

from typing import Any

from kbackup.archive.reader import Archive
from kbackup.archive.restores.plan import RestorePlan
from kbackup.config.models import Restore
from kbackup.jobs.restore.job import RestoreResources, restore
from kbackup.jobs.restore.plan import plan_restore, select_content
from kbackup.jobs.restore.report import Restored, RestoreReport, make_report, planned
from kbackup.jobs.restore.request import RestoreRequest
from kbackup.kafka.client import Properties
from kbackup.metrics.registry import ProgressListener
from kbackup.spark.tasks import Spark
from kbackup.store.base import Store


def make_plan(options: Restore, store: Store, cluster_id: str, archive: Archive | None = None) -> RestorePlan:
    """Return the plan of a restore of the archive in `store` into the cluster of that id."""
    request = RestoreRequest.of(options)
    return plan_restore(request, select_content(request, store, archive), cluster_id)


def run_restore(
    options: Restore, target: Properties, store: Store, state: Store, spark: Spark, listener: ProgressListener
) -> RestoreReport:
    """Restore the archive in `store` into the cluster of `target`; the restore's documents go to `state`."""
    return restore(RestoreRequest.of(options), RestoreResources(target, store, state, spark, listener))


def a_report(plan: RestorePlan, done: Restored | None = None, **more: Any) -> RestoreReport:
    """Return the report of a finished restore in which all went as planned, but for what is given."""
    usual: dict[str, Any] = {"groups": (), "warnings": (), "seconds": {}, "status": "restored"}
    return make_report(plan, "here", done or planned(plan), **usual | more)
