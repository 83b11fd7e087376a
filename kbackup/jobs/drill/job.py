"""Job of a drill, a restore for practice.

A drill restores a restore point under scratch names, compares every record and group with the archive, deletes its
topics and groups, and reports.
"""

from __future__ import annotations

from collections.abc import Callable

from kbackup.errors import InterruptedByUserError, KbackupError, NoArchiveError, UsageError
from kbackup.jobs.drill.report import DrillReport
from kbackup.jobs.drill.run import Drill, DrillRun
from kbackup.kafka.client.client import Properties
from kbackup.metrics.events import Listener
from kbackup.spark.tasks import Spark
from kbackup.store.base import Store


def drill(
    request: Drill,
    target: Properties,
    store: Store,
    state: Store,
    spark: Spark,
    listener: Listener,
    publish: Callable[[DrillReport], None],
) -> DrillReport:
    """Run a drill; in any case, delete its topics and groups at the end, and pass the report to `publish`.

    An interrupt, and an error that is not kbackup's, is raised afterwards.
    """
    run = DrillRun(request, target, store, state, spark, listener)
    raised: BaseException | None = None
    try:
        try:
            run.prepare()
            run.restore()
            run.compare()
        finally:
            run.clean_up()
    except BaseException as error:
        if run.scratch is None and isinstance(error, UsageError | NoArchiveError):
            raise  # there is nothing to report of, or nowhere
        raised = error
    report = run.report(_as_error(raised))
    publish(report)
    if raised is not None and not (isinstance(raised, KbackupError) and report.result == "failed"):
        raise raised
    return report


def _as_error(raised: BaseException | None) -> KbackupError | None:
    """Return the error to report; a job that an interrupt cancelled fails by the interrupt."""
    cause = raised
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            return InterruptedByUserError("interrupted", "run the drill once more")
        cause = cause.__context__
    if raised is None or isinstance(raised, KbackupError):
        return raised
    return KbackupError(f"internal error: {type(raised).__name__}: {raised}", "run again with --debug")
