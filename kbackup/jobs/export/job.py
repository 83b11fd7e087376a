"""The export job: tables of an archive's records, as Delta tables or as Parquet files."""

from __future__ import annotations

from kbackup.jobs.export.delta import DeltaFormat
from kbackup.jobs.export.parquet import ParquetFormat
from kbackup.jobs.export.run import ExportJob, ExportReport, run_export

__all__ = ["ExportJob", "ExportReport", "export_delta", "export_parquet"]


def export_delta(job: ExportJob) -> ExportReport:
    """Export an archive as Delta tables."""
    return run_export(job, DeltaFormat())


def export_parquet(job: ExportJob) -> ExportReport:
    """Export an archive as Parquet files."""
    return run_export(job, ParquetFormat())
