"""Try parts of a configuration that is being written, as a check does; leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable

from kbackup.archive import layout
from kbackup.config.models import Config
from kbackup.errors import KbackupError
from kbackup.jobs.check.archive import check_archive
from kbackup.jobs.check.clusters import check_source, check_topic_names
from kbackup.jobs.check.steps import Step, Steps
from kbackup.store import open_store

__all__ = ["Configured", "Step", "Steps", "try_archive", "try_cluster", "try_selection"]

Configured = Callable[[], Config]
"""Returns the configuration. Raises `KbackupError` for an invalid value."""


def try_cluster(steps: Steps, configured: Configured) -> None:
    """Connect to the cluster and list its topics."""
    if (config := _load(steps, configured)) is not None:
        check_topic_names(steps, config.source)


def try_archive(steps: Steps, configured: Configured) -> None:
    """Write, read, list and delete in the archive's store."""
    if (config := _load(steps, configured)) is not None:
        address, key = config.archive or "", config.encryption.key or ""
        check_archive(steps, lambda: open_store(address, config.s3, key, key_class=layout.key_class))


def try_selection(steps: Steps, configured: Configured) -> None:
    """Read what a backup of the selected topics and groups reads first."""
    if (config := _load(steps, configured)) is not None:
        check_source(steps, config, None)


def _load(steps: Steps, configured: Configured) -> Config | None:
    """Return the configuration; after an invalid value None, and a failed step."""
    try:
        return configured()
    except KbackupError as error:
        steps.fail("configuration", error)
        return None
