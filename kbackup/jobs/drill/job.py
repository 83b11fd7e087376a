"""The drill job: a restore for practice. Restores a restore point under scratch names, compares every record and group
with the archive, deletes what it made, and reports. What can go wrong on the worst day goes wrong here first."""

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
    asked: Drill,
    target: Properties,
    store: Store,
    state: Store,
    spark: Spark,
    listener: Listener,
    publish: Callable[[DrillReport], None],
) -> DrillReport:
    """Whatever happens after the first topic is made, all that the drill made is deleted in the end, and `publish`
    gets the report; then an interrupt, or what is no error of kbackup's, goes on."""
    run = DrillRun(asked, target, store, state, spark, listener)
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
    """The error to report. What fails because its job was cancelled by an interrupt is that interrupt."""
    cause = raised
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            return InterruptedByUserError("interrupted")
        cause = cause.__context__
    if raised is None or isinstance(raised, KbackupError):
        return raised
    return KbackupError(f"internal error: {type(raised).__name__}: {raised}", "run again with --debug")
