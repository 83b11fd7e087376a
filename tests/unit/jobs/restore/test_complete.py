"""The counts of a finished restore: by the broker's offsets in the map, by the archive and by the tasks."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from kbackup.archive.query.content import ArchivedPartition, ArchivedTopic, Content, narrowed
from kbackup.archive.restores.offset_map import Cut, MapPartName, runs_table
from kbackup.archive.restores.plan import RestorePlan
from kbackup.archive.segments.table import Segment
from kbackup.archive.segments.window import Choice, Window
from kbackup.errors import ClusterError, KbackupError
from kbackup.jobs.restore.job import check_complete
from kbackup.jobs.restore.plan import make_units, plan_topic
from kbackup.jobs.restore.report import late_warnings, make_report, planned, restored
from kbackup.jobs.restore.task import _last_part
from kbackup.kafka.kernel_protocol import CommittedProgress
from kbackup.types import Int64Array, TopicPartition

NAMES = {"orders": "o", "pay": "p"}


def segment(topic: str, partition: int) -> Segment:
    return Segment(topic, 1, partition, 0, 99, 100, 1000, 1000, 5, 50, 30, "0" * 16, "0" * 16, "key")


def content() -> Content:
    topics = [
        ArchivedTopic(
            name, 1, 1, "present", tuple(ArchivedPartition(n, 0, 100, (segment(name, n),)) for n in range(2)), {}, 1
        )
        for name in NAMES
    ]
    return Content("x", 1, tuple(topics), {})


def plan_of(made: Content) -> RestorePlan:
    return RestorePlan(
        restore_id="r",
        archive_id="x",
        restore_point=1,
        target_cluster_id="c",
        created_at="",
        transactions=True,
        transaction_bytes=1,
        into_existing=False,
        topics=tuple(plan_topic(t, NAMES[t.name], {}, None) for t in made.topics),
        units=make_units(made, NAMES),
        groups=(),
        choice=made.choice,
    )


def went(*counts: tuple[str, int, int]) -> dict[TopicPartition, tuple[Int64Array, Int64Array, Int64Array]]:
    """Target topic, partition and how many of its records have a place in the map, in two runs."""
    return {
        TopicPartition(topic, partition): (
            np.array([0, 50]),
            np.array([0, 70]),
            np.array([count - count // 2, count // 2]),
        )
        for topic, partition, count in counts
    }


def test_without_a_window_every_record_of_the_archive_must_be_in_the_map() -> None:
    plan = plan_of(content())
    whole = runs_table(went(("o", 0, 100), ("o", 1, 100), ("p", 0, 100), ("p", 1, 100)))
    done = restored(plan, whole, [Cut(), Cut()])
    assert (dict(done.topics), done.bytes) == ({"o": 200, "p": 200}, 4000)
    check_complete(plan, done)
    short = restored(plan, runs_table(went(("o", 0, 100), ("o", 1, 99), ("p", 0, 100), ("p", 1, 100))), [])
    with pytest.raises(KbackupError, match="r has 399 records in its offset map, 400 were to be restored"):
        check_complete(plan, short)


@pytest.mark.parametrize("mapped", [29, 31])
def test_with_a_window_it_must_be_what_the_tasks_selected(mapped: int) -> None:
    made = narrowed(
        content(), lambda *_: Window(from_time=10, ranges=((0, 20),)), {}, Choice(left_out=("x is left out",))
    )
    plan = plan_of(made)
    assert (plan.records, planned(plan).records) == (80, 80)
    done = restored(plan, runs_table(went(("o", 1, 30))), [Cut(10, 500, 1), Cut(20, 800, 2)])
    check_complete(plan, done)
    assert (done.records, done.bytes) == (30, 1300)
    assert late_warnings(done, 0, [])[0].startswith("at least 3 record(s) without a timestamp were left out")
    report = make_report(plan, "here", done, (), ["more"], {}, "restored")
    assert [(t.target, t.records) for t in report.topics] == [("o", 30), ("p", 0)]
    assert (report.choice, report.warnings) == (made.choice, ("x is left out", "more"))
    other = restored(plan, runs_table(went(("o", 1, mapped))), [Cut(10, 500, 1), Cut(20, 800, 2)])
    with pytest.raises(KbackupError, match=f"r has {mapped} records in its offset map, 30 were to be restored"):
        check_complete(plan, other)


def test_a_plan_keeps_its_windows() -> None:
    made = narrowed(content(), lambda t, p: Window(ranges=((p, 9),)), {}, Choice(notes=("why",), to_time=7))
    plan = plan_of(made)
    again = msgspec.json.decode(msgspec.json.encode(plan), type=RestorePlan)
    assert again == plan
    assert {part.window for unit in again.units for part in unit} == {
        Window(ranges=((0, 9),)),
        Window(ranges=((1, 9),)),
    }


@pytest.mark.parametrize(
    "notes", [[""], ["x"], ["a-1\0"], ["a-1", "a-2"], ["a-1", ""]], ids=lambda notes: "+".join(map(repr, notes))
)
def test_progress_that_names_no_part_of_the_map_is_refused(notes: list[str]) -> None:
    """The restore would continue from there, without the records before it in its map and count."""
    progress = {TopicPartition("o", p): CommittedProgress(5, note) for p, note in enumerate(notes)}
    with pytest.raises(ClusterError, match="progress of unit 7 on the target names no part of its offset map"):
        _last_part(7, progress)


def test_progress_names_the_last_part() -> None:
    assert _last_part(7, {}) is None
    progress = {TopicPartition("o", p): CommittedProgress(5, "abc-3") for p in range(3)}
    assert _last_part(7, progress) == MapPartName("abc", 3)
