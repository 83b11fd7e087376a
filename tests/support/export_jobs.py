"""Exports as tests ask for them."""

from __future__ import annotations

from kbackup.config.models import Export
from kbackup.jobs.export.job import ExportJob
from kbackup.metrics.registry import Silent
from kbackup.spark.tasks import Spark
from kbackup.store.base import Store


def export_job(store: Store, url: str, spark: Spark, options: Export | None = None) -> ExportJob:
    """Return an export of the archive in `store`, by default of all topics, that shows nothing of its progress."""
    return ExportJob(
        options=options or Export(), url=url, store=store, stores={}, spark=spark, listener=Silent(), lease_seconds=60
    )
