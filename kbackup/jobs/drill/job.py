"""The drill job: restore under scratch names, compare with the archive, and report."""

from __future__ import annotations

import platform
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import version
from typing import Protocol

import msgspec

from kbackup import __version__
from kbackup.archive.catalog.points import damaged_segments
from kbackup.archive.models import Manifest
from kbackup.archive.query.content import Content
from kbackup.archive.query.java import open_archive_or_folder
from kbackup.archive.reader import open_archive
from kbackup.archive.restores.plan import RestorePlan
from kbackup.archive.segments.window import Choice
from kbackup.config.models import Restore
from kbackup.errors import ClusterError, InterruptedByUserError, KbackupError, NoArchiveError, RefusedError, UsageError
from kbackup.jobs.compare.job import CompareRequest, verify_against
from kbackup.jobs.compare.report import AgainstReport
from kbackup.jobs.drill.report import DrillError, DrillReport, Result
from kbackup.jobs.finding_kinds import NOTHING_COMPARED
from kbackup.jobs.restore.job import NoScreen, RestoreResources, RestoreScreen, restore
from kbackup.jobs.restore.plan import select_content
from kbackup.jobs.restore.report import NotRestoredTopic, RestoreReport
from kbackup.jobs.restore.request import RestoreRequest
from kbackup.jobs.schemas.records import unreadable_records
from kbackup.kafka.client import Properties
from kbackup.kafka.control.cluster import Cluster
from kbackup.metrics.registry import Phases, ProgressListener
from kbackup.spark.tasks import Spark
from kbackup.store.base import Store
from kbackup.util.text import join_names
from kbackup.util.times import now

CONFIGS = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "1",
}
"""Configs under which no record expires or changes before it is compared."""


def scratch_options(options: Restore, content: Content, prefix: str, restore_id: str) -> Restore:
    """Return options that restore under names with `prefix`: all topics there are, and the groups of `content`."""
    group_names = {group: prefix + group for group in content.groups}
    return msgspec.structs.replace(
        with_fixed_choice(options, content),
        map={},
        map_regex=(f"^={prefix}",),
        map_group=group_names,
        topic_config={**CONFIGS, **options.topic_config},
        into_existing=False,
        settings=(),
        schemas="none",
        schemas_topics=(),
        no_schemas_topics=(),
        restore_id=restore_id,
    )


def with_fixed_choice(options: Restore, content: Content) -> Restore:
    """Return options that select `content` once more.

    A selection that ends by time names no restore point: a run that began before this time may still add records.
    """
    choice = content.choice or Choice()
    to_time = _moment_text(choice.to_time)
    fixed = msgspec.structs.replace(options, from_time=_moment_text(choice.from_time), to_time=to_time)
    if to_time is not None:
        # The moment selects the topics that were there then. A restore point beside it would select others.
        return fixed
    return msgspec.structs.replace(fixed, restore_point=content.restore_point or options.restore_point)


def _moment_text(moment: int | None) -> str | None:
    # With leading zeros, as ten digits would be read as seconds.
    return None if moment is None else f"{moment:013d}"


_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{3,99}")


class RunRestore(Protocol):
    def __call__(
        self, request: RestoreRequest, resources: RestoreResources, screen: RestoreScreen | None = None
    ) -> RestoreReport: ...


@dataclass(frozen=True)
class DrillTools:
    """What a drill reaches its target and restores with. Topics are deleted until none has been there for
    `quiet_seconds`, as a producer that was cut off may have asked for its topic once more; after `deletion_seconds`
    those that are still there are left."""

    open_cluster: Callable[[Properties, str], Cluster] = Cluster
    restore: RunRestore = restore
    quiet_seconds: float = 1.0
    deletion_seconds: float = 60.0


@dataclass
class Scratch:
    """The names under a prefix, which is free when the drill begins. `topics` and `groups` are all that the restore
    creates, also its progress groups: others that appear later are not deleted."""

    cluster: Cluster
    prefix: str
    tools: DrillTools
    topics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()

    def check_free(self) -> None:
        """Raise `RefusedError` if anything has the prefix already: a drill must not write into it."""
        if not _PREFIX.fullmatch(self.prefix):
            raise UsageError(f"prefix {self.prefix!r} can't be used", "use 4 to 100 letters, digits, '.', '_' and '-'")
        taken = self._all_names()
        if taken:
            names = join_names(taken, 3)
            raise RefusedError(f"prefix {self.prefix!r} is not free: {names}", "give another --prefix, or delete them")

    def _all_names(self) -> list[str]:
        """Return all names with the prefix, of the drill or not, each with its kind. `ClusterError` if a broker does
        not answer."""
        names = [f"topic {name}" for name in self.cluster.topic_names() if name.startswith(self.prefix)]
        listed, failed = self.cluster.groups.listed()
        for name, why in failed.items():
            if name.startswith("("):  # a broker, not a group
                raise ClusterError(
                    f"not every group of the target could be listed: {why}",
                    f"repeat the drill when all brokers answer: it is unknown whether {self.prefix!r} is free",
                )
        groups = set(failed)  # a group that can't be described exists all the same
        groups.update(group.group for group in listed)
        names += [f"group {name}" for name in sorted(groups) if name.startswith(self.prefix)]
        return names

    def _own_names(self) -> set[str]:
        names = {f"topic {name}" for name in self.topics}
        names.update(f"group {name}" for name in self.groups)
        return names

    def remaining(self) -> tuple[str, ...]:
        """Return the drill's own names that exist."""
        own = self._own_names()
        return tuple(name for name in self._all_names() if name in own)

    def others(self) -> list[str]:
        """Return a warning for each name with the prefix that is not the drill's own; never raises."""
        own = self._own_names()
        try:
            others = [name for name in self._all_names() if name not in own]
        except KbackupError as error:
            return [f"whether others have names {self.prefix}* could not be seen: {error.message}"]
        return [f"{name} has the drill's prefix, but is not of the drill: it was left alone" for name in others]

    def delete(self) -> tuple[str, ...]:
        """Delete the drill's own names; return the names that could not be deleted, with the reason.

        A failed deletion raises nothing; a second interrupt does.
        """
        topics = self._delete_topics()
        # Groups go after the topics: a task that is being cut off may still commit its progress, and that makes its
        # group anew.
        try:
            refused = self.cluster.groups.delete_each(self.groups)
        except KbackupError as error:
            return (f"groups {self.prefix}*: {error.message}", *topics)
        groups = [f"group {group}: {why}" for group, why in refused.items() if why]
        return (*groups, *topics)

    def _delete_topics(self) -> list[str]:
        """Delete topics until none has existed for a while; return the failures."""
        quiet_seconds = self.tools.quiet_seconds
        deadline = time.monotonic() + self.tools.deletion_seconds
        quiet_until = time.monotonic() + quiet_seconds
        own = set(self.topics)
        try:
            while time.monotonic() < quiet_until:
                names = [name for name in self.cluster.topic_names() if name in own]
                if names:
                    failures = self.cluster.delete_topics(names)
                    if time.monotonic() > deadline:
                        return [f"topic {name}: {failures[name] or 'it is still there'}" for name in names]
                    quiet_until = time.monotonic() + quiet_seconds
                time.sleep(quiet_seconds / 4)
        except KbackupError as error:
            return [f"topics {self.prefix}*: {error.message}"]
        return []


# A running drill: its steps, and their results.


@dataclass(frozen=True)
class DrillRequest:
    """A drill as it is asked for.

    `restore` selects restore point, topics and groups; its names and its id are not used. `retain`: the scratch topics
    are not deleted. `on_source` allows the cluster that was backed up.
    """

    restore: RestoreRequest
    prefix: str | None = None
    retain: bool = False
    on_source: bool = False
    show: int = 20


@dataclass
class DrillRun:
    """A running drill, and its results so far. With a `plan`, topics and groups may have been created."""

    request: DrillRequest
    target: Properties
    store: Store
    state: Store
    spark: Spark
    listener: ProgressListener
    tools: DrillTools
    id: str = field(default_factory=lambda: f"drill-{now()[:10]}-{uuid.uuid4().hex[:8]}")
    started_at: str = field(default_factory=now)
    cluster_id: str = ""
    scratch: Scratch | None = None
    content: Content | None = None
    plan: RestorePlan | None = None
    point: Manifest | None = None
    restored: RestoreReport | None = None
    refused: tuple[NotRestoredTopic, ...] = ()
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
            cluster = self.tools.open_cluster(self.target, "target")
            self.cluster_id, _ = cluster.connect()
        with self.phases.step("plan"):
            self.content = select_content(self.request.restore, self.store)
            self.point = _restore_point(self.store, self.content.restore_point)
            if self.point is not None:
                self._look_for_damage(self.point)
                self._check_target(self.point)
            scratch = Scratch(cluster, self.prefix, self.tools)
            scratch.check_free()
            self.scratch = scratch

    def _look_for_damage(self, point: Manifest) -> None:
        """Note the damaged restore points. Warn of the others: the report tells the losses of this one anyway."""
        damaged = damaged_segments(open_archive(self.store).state)
        self.damaged = tuple(sorted(damaged))
        others = [str(number) for number in self.damaged if number != point.number]
        if others:
            lacking = f"restore points {', '.join(others)} lack records that were found missing or damaged"
            self.warnings.append(f"{lacking}: see 'kbackup list'")

    def _check_target(self, point: Manifest) -> None:
        if point.cluster_id == self.cluster_id and not self.request.on_source:
            raise RefusedError(
                f"the target is cluster {self.cluster_id}, which was backed up",
                "drill on another cluster, or here with --on-source: it takes room, and as much traffic as the restore",
            )

    def restore(self) -> None:
        options = self._options()
        resources = RestoreResources(self.target, self.store, self.state, self.spark, self.listener)
        self.restored = self.tools.restore(RestoreRequest.of(options), resources, ScratchNames(self))
        self.refused = self.restored.failed
        if self.refused:
            # The target refused records of these topics. The restore ends without them under the same id, so that the
            # others can be compared.
            refused_topics = {topic.source for topic in self.refused}
            exclude = (*options.exclude_topics, *sorted(refused_topics))
            remaining = RestoreRequest.of(msgspec.structs.replace(options, exclude_topics=exclude))
            self.restored = self.tools.restore(remaining, resources)
        for name, seconds in self.restored.seconds.items():
            self.phases.seconds[f"restore: {name}"] = seconds
        self.warnings += self.restored.warnings

    def begin(self, plan: RestorePlan) -> None:
        """Check the prefix once more, and note the names to delete, before the first topic is created.

        Others may have created topics with the prefix since the first check.
        """
        assert self.scratch is not None  # noqa: S101 (everything is prepared)
        self.scratch.check_free()
        topics = [topic.target for topic in plan.topics]
        groups = [group.target for group in plan.groups]
        for name in [*topics, *groups]:
            # A run may have archived a group since the scratch names were made. That group has none, and would be set
            # under its own name.
            if not name.startswith(self.prefix):
                raise RefusedError(
                    f"{name} was added to the archive while the drill began: it has no scratch name",
                    "run the drill again",
                )
        self.scratch.topics = tuple(topics)
        self.scratch.groups = (*groups, *plan.progress_group_names)
        self.plan = plan
        self.point = _restore_point(self.store, plan.restore_point)

    def compare(self) -> None:
        with_groups = self.request.restore.groups is not None
        request = CompareRequest("target", self._options(), groups=with_groups, exact=True, show=self.request.show)
        with self.phases.step("verify"):
            self.comparison = verify_against(request, self.target, self.store, self.state, self.spark, self.listener)
        self.warnings += self.comparison.notes
        assert self.plan is not None  # noqa: S101 (it was restored)
        archive = open_archive_or_folder(self.store)
        if archive is not None:
            # The restore registers no schemas: whether records can be read by the archived ones is looked at here.
            self.warnings += unreadable_records(archive, self.plan)

    def _options(self) -> Restore:
        assert self.content is not None  # noqa: S101 (everything is prepared)
        return scratch_options(self.request.restore.given, self.content, self.prefix, self.id)

    def clean_up(self) -> None:
        if self.scratch is None or self.plan is None:
            return
        with self.phases.step("clean up"):
            if self.request.retain:
                self.retained = self.scratch.remaining()
                return
            # A second interrupt ends the deletion: then the report says this.
            self.undeleted = (f"topics and groups {self.prefix}*: not looked at any more",)
            self.undeleted = self.scratch.delete()
            self.warnings += self.scratch.others()

    def report(self, error: KbackupError | None) -> DrillReport:
        findings = self._findings()
        result: Result = "passed"
        if isinstance(error, InterruptedByUserError):
            result = "interrupted"
        elif error is not None or findings:
            result = "failed"
        # A drill that ends early knows its restore point by the content alone, or not at all.
        archive_id, restore_point, choice = "", 0, None
        selected = self.plan or self.content
        if selected is not None:
            archive_id, restore_point, choice = selected.archive_id, selected.restore_point, selected.choice
        point_at, data_age = None, None
        if self.point is not None:
            point_at = self.point.committed_at
            age = datetime.fromisoformat(self.started_at) - datetime.fromisoformat(point_at)
            data_age = age.total_seconds()
        restored_records = restored_bytes = 0
        if self.restored is not None:
            restored_records, restored_bytes = self.restored.records, self.restored.bytes
        losses: list[str] = []
        if self.content is not None:
            losses = [loss.message for loss in self.content.damaged]
        warnings = dict.fromkeys(self.warnings)  # a restore may be repeated, with the same warnings
        return DrillReport(
            drill_id=self.id,
            result=result,
            started_at=self.started_at,
            ended_at=now(),
            archive=self.store.url,
            archive_id=archive_id,
            restore_point=restore_point,
            restore_point_at=point_at,
            choice=choice,
            data_age=data_age,
            target=self.target.get("bootstrap.servers", ""),
            target_cluster_id=self.cluster_id,
            prefix=self.prefix,
            restored_records=restored_records,
            restored_bytes=restored_bytes,
            comparison=self.comparison,
            findings=tuple(findings),
            warnings=tuple(warnings),
            losses=tuple(losses),
            damaged=self.damaged,
            left=self.undeleted,
            kept=self.retained,
            error=DrillError.of(error) if error is not None else None,
            versions=_versions(),
            seconds=self.phases.seconds,
        )

    def _findings(self) -> list[str]:
        """Return in words what did not come back as it is in the archive, and what is left on the target."""
        findings = [topic.sentence for topic in self.refused]
        if self.restored is not None:
            for message in self.restored.missing:
                # The drill deletes its groups: a command that would set a group later has nothing to set.
                problem, _, _ = message.partition(", then: kbackup ")
                findings.append(problem)
        if self.comparison is not None:
            findings += self.comparison.findings
            if not self.comparison.records:
                findings.append(NOTHING_COMPARED)
        findings += [f"left on the target: {name}" for name in self.undeleted]
        return findings


def _versions() -> dict[str, str]:
    """Return the versions of what took part in the drill."""
    versions = {"kbackup": __version__, "python": platform.python_version()}
    for name in ("pyspark", "confluent-kafka"):
        versions[name] = version(name)
    return versions


class ScratchNames(NoScreen):
    """Learns what a drill's restore creates from its plan, which the restore shows before it writes anything."""

    def __init__(self, run: DrillRun) -> None:
        self._run = run

    def show_plan(self, plan: RestorePlan, warnings: list[str]) -> None:
        self._run.begin(plan)


def _restore_point(store: Store, number: int) -> Manifest | None:
    """Return the restore point of the drill; None for a folder of the Java tool."""
    try:
        return open_archive(store).restore_point(number)
    except NoArchiveError:
        return None


def drill(
    request: DrillRequest,
    target: Properties,
    store: Store,
    state: Store,
    spark: Spark,
    listener: ProgressListener,
    publish: Callable[[DrillReport], None],
    tools: DrillTools = DrillTools(),
) -> DrillReport:
    """Run a drill: restore under scratch names, compare every record and group with the archive. In any case, delete
    its topics and groups at the end, and pass the report to `publish`.

    An interrupt, and an error that is not kbackup's, is raised afterwards.
    """
    run = DrillRun(request, target, store, state, spark, listener, tools)
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
            raise  # nothing has begun that a report could tell of, or there is no archive to keep it
        raised = error
    report = run.report(_as_error(raised))
    publish(report)
    is_reported = isinstance(raised, KbackupError) and report.result == "failed"
    if raised is not None and not is_reported:
        raise raised
    return report


def _as_error(raised: BaseException | None) -> KbackupError | None:
    """Return the error to report."""
    # A job that an interrupt cancelled fails with an error of its own: the interrupt stands behind it.
    cause = raised
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            return InterruptedByUserError("interrupted", "run the drill once more")
        cause = cause.__context__
    if raised is None or isinstance(raised, KbackupError):
        return raised
    return KbackupError(f"internal error: {type(raised).__name__}: {raised}", "run again with --debug")
