"""Go on with a restore that was begun, with the options that decided its plan.

Options that mend the target, so that it takes what it refused before, may be others each time.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from kbackup.archive import layout
from kbackup.archive.query.selection import Selection
from kbackup.archive.restores.journal import RestoreJournal
from kbackup.archive.restores.plan import PlannedTopic, RestorePlan, check_same_target, without_topics
from kbackup.archive.transforms import is_same_transform, named_transform
from kbackup.config.keys import RENAMED
from kbackup.config.models import Restore
from kbackup.errors import CorruptError, MismatchError, RefusedError
from kbackup.jobs.restore.plan import with_given
from kbackup.jobs.restore.preflight import check_still_there
from kbackup.jobs.restore.report import RestoreReport, with_warning
from kbackup.jobs.restore.request import RestoreRequest, given_options
from kbackup.jobs.transform import Transform, ref_of
from kbackup.kafka.control.cluster import Cluster


class BegunRestore(NamedTuple):
    """An earlier run under the same restore id. `plan` is set once that run had written its plan, `report` once it had
    finished; both are None if the id is new."""

    plan: RestorePlan | None = None
    report: RestoreReport | None = None


def find_begun(request: RestoreRequest, journal: RestoreJournal, cluster: Cluster, cluster_id: str) -> BegunRestore:
    """Return the restore that was begun under the id of a request, after checks that it is the same one and still
    there."""
    plan = journal.begun() if request.names_restore else None
    if plan is None:
        return BegunRestore()
    check_same_target(plan, cluster_id)
    report = finished_report(journal, plan)
    check_same_options(plan, request)
    check_same_transform(plan, request.transform)
    check_same_names(plan, request)
    if report is not None:
        check_still_there(cluster, journal, without_topics(plan, report.excluded))
        return BegunRestore(plan, report)
    begun = journal.with_segments(plan)
    if not plan.transactions and not begun.keeps_offsets:
        raise RefusedError(
            f"restore {plan.restore_id} was begun without transactions: nobody knows how far it came",
            "delete its target topics and begin another one",
        )
    return BegunRestore(resumed_plan(begun, request))


def finished_report(journal: RestoreJournal, plan: RestorePlan) -> RestoreReport | None:
    """Return the report of a finished restore, with a warning that nothing is done now."""
    report = journal.read(RestoreReport, layout.REPORT)
    if report is None:
        return None
    if report.archive_id not in ("", plan.archive_id):
        key, other = journal.key(layout.REPORT), journal.key(layout.PLAN)
        raise CorruptError(
            f"file {key} is of archive {report.archive_id}, {other} of {plan.archive_id}",
            "find the file that was copied from another archive, and remove it",
        )
    return with_warning(report, f"restore {plan.restore_id} was finished before: nothing was done now")


_MENDING = ("topic_config", "replication_factor")
"""Keys that decide how topics are created, not which records go where."""
_LEAVING_OUT = ("exclude_topics",)
"""Keys to which a resumed restore may add: what they name is no longer restored."""
_SETTLED = ("schemas", "subject_prefix")
"""Keys that a resumed restore may leave unset: schemas.json has what was settled by them."""


def check_same_options(plan: RestorePlan, request: RestoreRequest) -> None:
    """Raise `MismatchError` if `plan` was made for other options; older versions did not write them down. Options that
    mend the target may be others, and more may be left out."""
    if plan.options is None:
        return
    given = given_options(request.given)
    unset = given_options(Restore())
    before = dict(unset)
    for name, value in plan.options.items():
        # under the name that a key has now
        renamed = RENAMED.get(f"restore.{name}", name)
        before[renamed.removeprefix("restore.")] = value
    same_times = _same_times(plan, request)
    different: list[str] = []
    for name, value in given.items():
        leaves_out_more = name in _LEAVING_OUT and set(value) >= set(before.get(name) or ())
        is_settled = name in _SETTLED and value == unset[name]
        may_differ = name in _MENDING or leaves_out_more or is_settled or name in same_times
        if not may_differ and before.get(name) != value:
            different.append(name)
    if different:
        changes = [f"{name} was {_text(before.get(name))}, now {_text(given[name])}" for name in different]
        raise MismatchError(
            f"restore {plan.restore_id} was begun with other options: {'; '.join(changes)}",
            "give the same options as then, or another --restore-id",
        )


def check_same_transform(plan: RestorePlan, transform: Transform | None) -> None:
    """Raise `MismatchError` if a restore was begun with another transform: some of its records went through that
    one."""
    begun = named_transform(plan.transform)
    given = ref_of(transform)
    if is_same_transform(begun, given):
        return
    name = f"restore {plan.restore_id}"
    if begun is None:
        raise MismatchError(
            f"{name} was begun without a transform, now one is given: {given}",
            "leave --transform out, or give another --restore-id and new topics",
        )
    now = f"now {given}" if given is not None else "now without one"
    raise MismatchError(
        f"{name} was begun with transform {begun}, {now}",
        "give --transform with the same bytes and function as then, or another --restore-id and new topics",
    )


def _same_times(plan: RestorePlan, request: RestoreRequest) -> set[str]:
    """Return the keys of times that mean the same moment as in the plan: a time may be written in several ways."""
    same: set[str] = set()
    if plan.choice is None:
        return same
    if plan.choice.from_time == request.window.from_time:
        same.add("from_time")
    if plan.choice.to_time == request.window.to_time:
        same.add("to_time")
    return same


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode() if value else "unset"


def check_same_names(plan: RestorePlan, request: RestoreRequest) -> None:
    """Raise `MismatchError` if a plan sends a topic elsewhere than the options do: somebody else has written it."""
    if plan.options is None:  # an older version wrote it, which did not keep the options either
        return
    targets = plan.targets
    planned = set(targets.items())
    planned.update((range_.topic, range_.target) for range_ in plan.ranges)
    for source, target in sorted(planned):
        if targets.get(source) != target or request.names.target_of(source) != target:
            raise MismatchError(
                f"the plan of restore {plan.restore_id} sends topic {source} to {target}, which its options don't",
                "find out who wrote it, and use another --restore-id",
            )


def resumed_plan(plan: RestorePlan, request: RestoreRequest) -> RestorePlan:
    """Return the plan of a restore that was begun, with the configs and the replication factor that are asked for now:
    for topics that are still to be created."""
    topics: list[PlannedTopic] = []
    for topic in plan.topics:
        configs = with_given(topic.configs, request.topic_config)
        factor = topic.replication_factor
        if request.replication_factor is not None:
            factor = request.replication_factor
        topics.append(msgspec.structs.replace(topic, configs=configs, replication_factor=factor))
    return msgspec.structs.replace(plan, topics=tuple(topics))


def excluded_targets(plan: RestorePlan, request: RestoreRequest) -> dict[str, str]:
    """Return the topics of the plan, by their names on the target, that a resumed restore is to leave out, each with
    its name in the source."""
    selection = Selection(exclude=request.topics.exclude)
    return {topic.target: topic.source for topic in plan.topics if not selection.matches(topic.source)}
