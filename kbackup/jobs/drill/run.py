"""A drill under way: its steps, and what is known by now."""

from __future__ import annotations

import platform
import uuid
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import version

from kbackup import __version__
from kbackup.archive.models import Manifest
from kbackup.archive.query.content import Content
from kbackup.archive.query.points import damaged_segments
from kbackup.archive.reader import open_archive
from kbackup.archive.restores.plan import RestorePlan
from kbackup.config.jobs import Restore
from kbackup.errors import InterruptedByUserError, KbackupError, NoArchiveError, RefusedError
from kbackup.jobs.compare.job import verify_against
from kbackup.jobs.compare.plan import CompareRequest
from kbackup.jobs.compare.report import AgainstReport
from kbackup.jobs.drill.options import scratch_options
from kbackup.jobs.drill.report import DrillError, DrillReport, Result
from kbackup.jobs.drill.scratch import Names, Scratch
from kbackup.jobs.restore.content import select_content
from kbackup.jobs.restore.job import RestoreJob, restore
from kbackup.jobs.restore.report import RestoreReport
from kbackup.kafka.admin.cluster import Cluster
from kbackup.kafka.client.client import Properties
from kbackup.metrics.events import Listener, Phases
from kbackup.spark.tasks import Spark
from kbackup.store.base import Store
from kbackup.util.times import now


@dataclass(frozen=True)
class Drill:
    """Options of a drill.

    `options` select restore point, topics and groups; their names and ids are not used. `retain`: the scratch topics
    are not deleted. `on_source` allows the cluster that was backed up.
    """

    options: Restore
    prefix: str | None = None
    retain: bool = False
    on_source: bool = False
    show: int = 20


@dataclass
class DrillRun:
    """A running drill, and its results so far."""

    request: Drill
    target: Properties
    store: Store
    state: Store
    spark: Spark
    listener: Listener
    id: str = field(default_factory=lambda: f"drill-{now()[:10]}-{uuid.uuid4().hex[:8]}")
    started_at: str = field(default_factory=now)
    cluster_id: str = ""
    scratch: Scratch | None = None
    made: Names | None = None
    content: Content | None = None
    plan: RestorePlan | None = None
    point: Manifest | None = None
    restored: RestoreReport | None = None
    comparison: AgainstReport | None = None
    warnings: list[str] = field(default_factory=list)
    damaged: tuple[int, ...] = ()
    undeleted: tuple[str, ...] = ()
    retained: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.phases = Phases(self.listener)
        self.prefix = self.id + "." if self.request.prefix is None else self.request.prefix

    def prepare(self) -> None:
        """Check everything that can be refused before the first topic is created."""
        with self.phases.step("connect"):
            cluster = Cluster(self.target, "target")
            self.cluster_id, _ = cluster.connect()
        with self.phases.step("plan"):
            self.content = select_content(self.request.options, self.store)
            self.point = _restore_point(self.store, self.content.restore_point)
            self._look_for_damage()
            self._check_cluster()
            scratch = Scratch(cluster, self.prefix)
            scratch.check_free()
            self.scratch = scratch

    def _look_for_damage(self) -> None:
        if self.point is None:
            return
        self.damaged = tuple(sorted(damaged_segments(open_archive(self.store).state)))
        others = [str(number) for number in self.damaged if number != self.point.number]
        if others:
            self.warnings.append(
                f"restore points {', '.join(others)} lack records that were found missing or damaged: "
                "see 'kbackup list'"
            )

    def _check_cluster(self) -> None:
        if self.point is None or self.point.cluster_id != self.cluster_id or self.request.on_source:
            return
        raise RefusedError(
            f"the target is cluster {self.cluster_id}, which was backed up",
            "drill on another cluster, or here with --on-source: it takes room, and as much traffic as the restore",
        )

    def restore(self) -> None:
        ends = self._options(), self.target, self.store, self.state
        self.restored = restore(RestoreJob(*ends, self.spark, self.listener, show_plan=self._begin))
        self.phases.seconds |= {f"restore: {name}": s for name, s in self.restored.seconds.items()}
        self.warnings += self.restored.warnings

    def _begin(self, plan: RestorePlan, _warnings: list[str]) -> None:
        """Check the prefix once more, and note the names to delete, before the first topic is created.

        Others may have created topics with the prefix since the first check.
        """
        assert self.scratch is not None  # noqa: S101 (everything is prepared)
        self.scratch.check_free()
        self._check_names(plan)
        self.plan, self.made = plan, Names.of(plan)
        self.point = _restore_point(self.store, plan.restore_point)

    def _check_names(self, plan: RestorePlan) -> None:
        """A group that a run archived since the names were made would be set under its own."""
        for name in (*(t.target for t in plan.topics), *(g.target for g in plan.groups)):
            if not name.startswith(self.prefix):
                raise RefusedError(
                    f"{name} came into the archive while the drill began: it has no scratch name",
                    "run the drill again",
                )

    def compare(self) -> None:
        request = CompareRequest(
            "target",
            self._options(),
            groups=not self.request.options.no_groups,
            exact=True,
            show=self.request.show,
        )
        with self.phases.step("verify"):
            self.comparison = verify_against(
                request, self.target, self.store, self.state, self.spark, self.listener
            )
        self.warnings += self.comparison.notes

    def _options(self) -> Restore:
        assert self.content is not None  # noqa: S101 (everything is prepared)
        return scratch_options(self.request.options, self.content, self.prefix, self.id)

    def clean_up(self) -> None:
        if self.scratch is None or self.made is None:
            return
        with self.phases.step("clean up"):
            if self.request.retain:
                self.retained = self.scratch.remaining(self.made)
                return
            self.undeleted = (f"topics and groups {self.prefix}*: not looked at any more",)
            self.undeleted = self.scratch.delete(self.made)
            self.warnings += self.scratch.others(self.made)

    def findings(self) -> list[str]:
        missing = self.restored.missing if self.restored is not None else ()
        # the drill deletes its groups: the command that would set a group has nothing to set
        lines = [message.partition(", then: kbackup ")[0] for message in missing]
        if self.comparison is not None:
            lines += self.comparison.findings
            if not self.comparison.records:
                lines.append("nothing was compared: there is no record in what was chosen")
        return lines + [f"left on the target: {name}" for name in self.undeleted]

    def report(self, error: KbackupError | None) -> DrillReport:
        findings = self.findings()
        result: Result = "failed" if error is not None or findings else "passed"
        if isinstance(error, InterruptedByUserError):
            result = "interrupted"
        at = self.point.committed_at if self.point is not None else None
        chosen = self.plan or self.content
        return DrillReport(
            drill_id=self.id,
            result=result,
            started_at=self.started_at,
            ended_at=now(),
            archive=self.store.url,
            archive_id=chosen.archive_id if chosen is not None else "",
            restore_point=chosen.restore_point if chosen is not None else 0,
            restore_point_at=at,
            choice=chosen.choice if chosen is not None else None,
            data_age=_seconds_between(at, self.started_at) if at is not None else None,
            target=self.target.get("bootstrap.servers", ""),
            target_cluster_id=self.cluster_id,
            prefix=self.prefix,
            restored_records=self.restored.records if self.restored is not None else 0,
            restored_bytes=self.restored.bytes if self.restored is not None else 0,
            comparison=self.comparison,
            findings=tuple(findings),
            warnings=tuple(dict.fromkeys(self.warnings)),
            losses=tuple(loss.message for loss in self.content.damaged) if self.content is not None else (),
            damaged=self.damaged,
            left=self.undeleted,
            kept=self.retained,
            error=DrillError.of(error) if error is not None else None,
            versions=_versions(),
            seconds=self.phases.seconds,
        )


def _restore_point(store: Store, number: int) -> Manifest | None:
    """Return the restore point of the drill; None for a folder of the Java tool."""
    try:
        return open_archive(store).restore_point(number)
    except NoArchiveError:
        return None


def _seconds_between(earlier: str, later: str) -> float:
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()


def _versions() -> dict[str, str]:
    return {
        "kbackup": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in ("pyspark", "confluent-kafka")},
    }
