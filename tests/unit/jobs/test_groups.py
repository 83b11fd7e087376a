"""Planned offsets of groups: the reasons, leader epochs, and skipped offsets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive import layout
from kbackup.archive.models import GroupOffset
from kbackup.archive.query.selection import Selection
from kbackup.archive.restores.journal import RestoreJournal
from kbackup.archive.restores.offset_map import OffsetMap, SameLog
from kbackup.archive.restores.plan import PlannedGroup, PlannedTopic, RestorePlan, write_plan
from kbackup.archive.restores.proof import with_proof
from kbackup.errors import ClusterError, CorruptError, RefusedError, UsageError
from kbackup.jobs.groups.documents import NONE, By, Captures, GroupBefore
from kbackup.jobs.groups.job import set_groups
from kbackup.jobs.groups.plan import GroupOffsetResult, GroupPlan, OffsetPlan, plan_groups, wants_epoch, with_epochs
from kbackup.jobs.groups.report import GroupResult, GroupsReport, not_applied
from kbackup.jobs.groups.undo import GroupsUndo, GroupUndoReport, undo_of
from kbackup.kafka.control.cluster import Cluster
from kbackup.store import Store
from kbackup.types import TopicPartition
from tests.support.kafka_raw import FakeCluster, FakeGroups, Held, Place
from tests.support.memory_store import MemoryStore

A0, A1 = TopicPartition("a", 0), TopicPartition("new", 1)


def _map(start: int = 0) -> OffsetMap:
    """Source offsets 10 to 14 went to 100 to 104; the next is 105."""
    source, target, count = (np.array([number], np.int64) for number in (10, 100, 5))
    return OffsetMap(source, target, count, 105, start)


def _group(*offsets: GroupOffset) -> PlannedGroup:
    return PlannedGroup(source="g", target="h", offsets=offsets)


def test_names_metadata_and_reasons_go_with_the_offset() -> None:
    """Offsets that can't be mapped are skipped, and the rest is set."""
    group = _group(
        GroupOffset(topic="old", partition=1, offset=14, leader_epoch=9, metadata="time"),
        GroupOffset(topic="a", partition=0, offset=3),
    )
    maps: dict[TopicPartition, OffsetMap | SameLog] = {A1: _map(), A0: SameLog(0, 8)}
    (plan,) = plan_groups([group], {"old": "new", "a": "a"}, maps, {})
    assert (plan.source, plan.group, plan.skipped) == ("g", "h", ())
    assert [(o.tp, o.source, o.target, o.how, o.metadata) for o in plan.offsets] == [
        (A1, 14, 104, "exact", "time"),
        (A0, 3, 3, "exact", ""),
    ]
    del maps[A1]
    (plan,) = plan_groups([group], {"old": "new", "a": "a"}, maps, {A1: "new-1 is not on the target"})
    assert [o.tp for o in plan.offsets] == [A0]
    assert plan.skipped == ("new-1 is not on the target",)


@pytest.mark.parametrize("same_log", [False, True])
def test_leader_epochs_are_those_of_the_target_log(same_log: bool) -> None:
    group = _group(
        GroupOffset(topic="a", partition=0, offset=3, leader_epoch=7),
        GroupOffset(topic="a", partition=1, offset=99, leader_epoch=7),
        GroupOffset(topic="a", partition=2, offset=3),
    )
    maps = {TopicPartition("a", p): SameLog(0, 8) for p in range(3)}
    plans = plan_groups([group], {"a": "a"}, maps, {})
    assert wants_epoch(plans) == {TopicPartition("a", 0), TopicPartition("a", 1)}
    epochs: dict[TopicPartition, int | None] = {TopicPartition("a", 0): 2, TopicPartition("a", 1): 3}
    (plan,) = with_epochs(plans, epochs, same_log)
    # a clamped offset is another place than the one that the archived epoch was of
    assert [o.leader_epoch for o in plan.offsets] == [7 if same_log else 2, 3, None]


@pytest.mark.parametrize(
    ("committed", "target", "how"), [(4, 5, "expired"), (5, 5, "exact"), (8, 8, "exact"), (9, 8, "log end")]
)
def test_same_log_is_clamped_to_what_is_there(committed: int, target: int, how: str) -> None:
    assert SameLog(5, 8).map(committed) == (target, how)


@pytest.mark.parametrize(
    ("committed", "target", "how"),
    [(9, 103, "expired"), (12, 103, "expired"), (13, 103, "exact"), (14, 104, "exact"), (15, 105, "log end")],
)
def test_offsets_deleted_from_the_target_map_to_its_log_start(committed: int, target: int, how: str) -> None:
    assert _map(start=103).map(committed) == (target, how)


def test_wholly_expired_target_is_read_from_its_start() -> None:
    emptied = _map(start=140)
    assert emptied.map(14) == emptied.map(99) == (140, "expired")


# Messages about groups that were not set end with the command that sets them.


OFFSET = GroupOffsetResult(topic="a", partition=0, source=1, target=2, how="exact")


def test_messages_of_groups_that_were_not_set_or_lack_offsets() -> None:
    def result(source: str, group: str, status: Any, why: str, *offsets: GroupOffsetResult, **more: Any) -> GroupResult:
        return GroupResult(source=source, group=group, status=status, why=why, offsets=offsets, **more)

    results = [
        result("g", "g", "left alone", "it has 1 live member", OFFSET),
        result("g", "g", "refused", "it can't be read", OFFSET),
        result("my g", "h", "left alone", "it has 2 live members", OFFSET),
        result("g", "g", "left alone", "it gets no offset"),
        result("g", "g", "applied", "", OFFSET, left_out=("b-0 is not on the target",)),
    ]
    command = "kbackup groups apply --restore-id quiet --group"
    assert not_applied(results, "--restore-id", "quiet") == [
        f"group g was not set: it has 1 live member; stop it, then: {command} g",
        f"group g was not set: it can't be read; mend the cause, then: {command} g",
        f"group h was not set: it has 2 live members; stop it, then: {command} 'my g' --map-group 'my g=h'",
        "group g was not set: it gets no offset",
        "group g lacks an offset: b-0 is not on the target",
    ]


# Captures before writes, and putting them back: against groups in memory and by their definition.


EVERY = Selection()


@pytest.fixture
def store() -> Store:
    return MemoryStore()


def _plan(group: str, **offsets: int) -> GroupPlan:
    """Offsets of partition 0 by topic."""
    return GroupPlan(
        source=group,
        group=group,
        type="share" if group.startswith("share") else "classic",
        offsets=tuple(
            OffsetPlan(topic=topic, partition=0, source=1, target=offset, how="exact", metadata="set")
            for topic, offset in offsets.items()
        ),
    )


def _set(groups: FakeGroups, store: Store, *plans: GroupPlan, by: By = "apply") -> tuple[Any, int]:
    return set_groups(FakeCluster(groups).cluster, Captures(RestoreJournal(store, "r")), by, "target", plans)


def _undo(groups: FakeGroups, store: Store, number: int | None = None, of: Selection = EVERY) -> GroupUndoReport:
    return undo(FakeCluster(groups).cluster, store, number, of)


def undo(
    cluster: Cluster,
    store: Store,
    number: int | None = None,
    of: Selection = EVERY,
    *,
    confirm: bool = True,
    accept_unproven: bool = False,
) -> GroupUndoReport:
    journal = RestoreJournal(store, "r")
    return journal.undo(GroupsUndo(cluster, journal, number, of), confirm=confirm, accept_unproven=accept_unproven)


def _status(report: GroupUndoReport) -> dict[str, str]:
    return {g.group: g.status for g in report.groups}


def test_a_group_of_which_some_offsets_are_refused_is_set_in_part(store: Store) -> None:
    groups = FakeGroups({"g": {}}, refused={("b", 0)})
    (result,), _ = _set(groups, store, _plan("g", a=5, b=6))
    assert (result.status, result.not_set) == ("applied in part", ("b-0",))
    assert result.why == "b-0: the metadata is too large"
    (message,) = not_applied([result], "--restore-id", "r")
    assert message.startswith("group g was not set in b-0: b-0: the metadata is too large; mend the cause, then: ")


def test_a_group_of_which_every_offset_is_refused_is_refused(store: Store) -> None:
    groups = FakeGroups({"g": {}}, refused={("a", 0)})
    (result,), _ = _set(groups, store, _plan("g", a=5))
    assert (result.status, result.not_set) == ("refused", ())


def test_the_command_for_a_group_that_was_not_set_keeps_the_id_of_the_undo(store: Store) -> None:
    groups = FakeGroups({"g": {}}, refused={("a", 0)})
    results, number = _set(groups, store, _plan("g", a=5))
    report = GroupsReport(
        restore_id="mine",
        restore_point=2,
        captured_at=None,
        target_cluster_id="c",
        capture=number,
        same_offsets=True,
        groups=results,
    )
    (message,) = report.missing
    assert message.endswith("kbackup groups apply --same-offsets --restore-point 2 --restore-id mine --group g")


def test_an_undo_that_is_refused_in_part_tells_what_it_put_back(store: Store) -> None:
    held: dict[Place, Held] = {("a", 0): (1, None, ""), ("b", 0): (2, None, "")}
    groups = FakeGroups({"g": held})
    _set(groups, store, _plan("g", a=5, b=6))
    groups.refused = {("b", 0)}
    report = _undo(groups, store)
    (undone,) = report.groups
    assert (undone.status, undone.set_back) == ("put back in part", 1)
    assert len(report.missing) == 1


def test_undo_puts_back_what_was_there_and_deletes_what_was_not(store: Store) -> None:
    positions: dict[str, dict[Place, Held]] = {
        "old": {("a", 0): (5, 3, "m"), ("other", 1): (9, None, "")},
        "mixed": {("other", 1): (7, None, "x")},
    }
    groups = FakeGroups({group: dict(own) for group, own in positions.items()})
    results, number = _set(groups, store, _plan("old", a=50), _plan("mixed", a=60), _plan("new", a=70))
    assert ([r.status for r in results], number) == (["applied"] * 3, 1)
    assert groups.held["mixed"] == {("other", 1): (7, None, "x"), ("a", 0): (60, None, "set")}
    report = _undo(groups, store)
    assert groups.held == positions
    assert _status(report) == {"old": "put back", "mixed": "put back", "new": "deleted"}
    assert [(g.set_back, g.removed) for g in report.groups] == [(1, 0), (0, 1), (0, 1)]
    assert (report.undone, report.number, report.missing) == (1, 2, [])


def test_share_groups_are_known_as_such_by_every_request(store: Store) -> None:
    before: dict[Place, Held] = {("a", 0): (5, None, "")}
    groups = FakeGroups({"share": dict(before)}, shared={"share", "share new"})
    plans = (_plan("share", a=50, b=60), _plan("plain", a=1), _plan("share new", a=7))
    for _ in range(2):  # a restore that is repeated
        _set(groups, store, *plans, by="restore")
    undone = _undo(groups, store)
    assert groups.held == {"share": before}
    _undo(groups, store, undone.number)
    assert {group: len(own) for group, own in groups.held.items()} == {"share": 2, "plain": 1, "share new": 1}


def test_undo_again_has_nothing_to_do_and_an_undo_can_be_undone(store: Store) -> None:
    groups = FakeGroups({"g": {("a", 0): (5, None, "")}})
    _set(groups, store, _plan("g", a=50, b=51), _plan("new", a=1))
    applied = {group: dict(own) for group, own in groups.held.items()}
    undone = _undo(groups, store)
    again = _undo(groups, store)
    assert (again.undone, again.number) == (1, 0)
    assert set(_status(again).values()) == {"nothing to do"}
    _undo(groups, store, undone.number)
    assert groups.held == applied


def test_positions_committed_elsewhere_since_are_kept(store: Store) -> None:
    groups = FakeGroups()
    _set(groups, store, _plan("new", a=1))
    groups.held["new"]["since", 0] = (3, 1, "mine")
    report = _undo(groups, store)
    assert groups.held == {"new": {("since", 0): (3, 1, "mine")}}
    assert [(g.status, g.removed, g.kept) for g in report.groups] == [("put back", 1, 1)]


def test_captures_are_stored_before_the_first_write(store: Store) -> None:
    class Watching(FakeGroups):
        def commit_all(self, commits: Any, share: Any = ()) -> dict[str, str]:
            assert Captures(RestoreJournal(store, "r")).numbers() == [1]
            return super().commit_all(commits, share)

    groups = Watching()
    _set(groups, store, _plan("g", a=1))
    assert groups.calls == [("commit", "g")]


def test_groups_with_members_are_left_alone_both_ways(store: Store) -> None:
    groups = FakeGroups({"busy": {("a", 0): (5, None, "")}}, live={"busy": 2})
    results, number = _set(groups, store, _plan("busy", a=50), _plan("free", a=1))
    assert [(r.group, r.status, r.why) for r in results] == [
        ("busy", "left alone", "it has 2 live members"),
        ("free", "applied", ""),
    ]
    assert [g.group for g in Captures(RestoreJournal(store, "r")).read(number).groups] == ["free"]
    groups.live = {"free": 1}
    report = _undo(groups, store)
    assert _status(report) == {"free": "left alone"}
    assert (groups.calls, report.number) == ([("commit", "free")], 0)
    assert report.missing == [
        "group free was not put back: it has 1 live member; stop it, then: "
        "kbackup groups undo --confirm --restore-id r 1 --group free"
    ]


def test_groups_that_can_not_be_read_or_get_nothing_are_not_written(store: Store) -> None:
    groups = FakeGroups(unreadable={"g"})
    results, number = _set(groups, store, _plan("g", a=1), _plan("nothing"))
    assert [(r.status, r.why) for r in results] == [
        ("refused", "it can't be read"),
        ("left alone", "it gets no offset"),
    ]
    assert (groups.calls, number) == ([], 0)


def test_resumed_restore_knows_what_was_there_before_its_first_try(store: Store) -> None:
    groups = FakeGroups({"begun": {("a", 0): (5, None, "")}, "moved": {("a", 0): (6, None, "")}})
    plans = (_plan("begun", a=50), _plan("moved", a=60), _plan("new", a=70))
    _set(groups, store, *plans, by="restore")
    groups.held["moved"]["a", 0] = (61, None, "")  # by its application
    _, number = _set(groups, store, *plans, by="restore")
    assert number == 2
    _undo(groups, store)
    assert groups.held == {"begun": {("a", 0): (5, None, "")}, "moved": {("a", 0): (61, None, "")}}


def test_resumed_restore_knows_what_was_there_before_a_try_cut_off_between_two_portions(store: Store) -> None:
    """Twice; and one partition's application has gone on meanwhile."""

    class CutOff(FakeGroups):
        portion = 0

        def commit_all(self, commits: Any, share: Any = ()) -> dict[str, str]:
            super().commit_all({group: offsets[: self.portion] for group, offsets in commits.items()})
            raise ClusterError("killed")

    positions: dict[Place, Held] = {("a", 0): (5, None, ""), ("b", 0): (6, None, ""), ("d", 0): (8, None, "")}
    groups = CutOff({"g": dict(positions)})
    plan = _plan("g", a=50, b=60, c=70, d=80)
    for groups.portion in (1, 3):
        with pytest.raises(ClusterError):
            _set(groups, store, plan, by="restore")
    groups.held["g"]["b", 0] = (61, None, "")
    whole = FakeGroups(groups.held)
    _set(whole, store, plan, by="restore")
    assert {place: offset for place, (offset, *_) in whole.held["g"].items()} == {
        ("a", 0): 50,
        ("b", 0): 60,
        ("c", 0): 70,
        ("d", 0): 80,
    }
    _undo(whole, store)
    assert whole.held == {"g": positions | {("b", 0): (61, None, "")}}


def test_without_confirmation_an_undo_only_shows_its_plan(store: Store) -> None:
    groups = FakeGroups({"g": {("a", 0): (1, None, "")}})
    _set(groups, store, _plan("g", a=5))
    groups.calls.clear()
    report = undo(FakeCluster(groups).cluster, store, confirm=False)
    assert (_status(report), report.number, report.confirmed) == ({"g": "planned"}, 0, False)
    assert groups.calls == []
    assert Captures(RestoreJournal(store, "r")).numbers() == [1]


def offsets_of(groups: FakeGroups) -> dict[Place, int]:
    """Return where group g stands."""
    return {place: offset for place, (offset, *_) in groups.held["g"].items()}


def test_an_undo_leaves_offsets_that_were_moved_since(store: Store) -> None:
    groups = FakeGroups({"g": {("a", 0): (1, None, ""), ("b", 0): (1, None, "")}})
    _set(groups, store, _plan("g", a=5, b=6))
    groups.held["g"]["a", 0] = (77, None, "")
    report = _undo(groups, store)
    (undone,) = report.groups
    assert (undone.status, undone.set_back, undone.moved) == ("put back in part", 1, 1)
    assert offsets_of(groups) == {("a", 0): 77, ("b", 0): 1}
    assert report.missing == ["group g was not put back: its offsets in a-0 were changed since, and stay"]


@pytest.mark.parametrize(
    ("plan_groups", "plan_topics", "named"),
    [(["other"], {"a": 1}, "group g"), (["g"], {"b": 1}, "a-0 of group g"), (["g"], {"a": 0}, "a-0 of group g")],
)
def test_an_undo_of_what_the_restore_did_not_plan_is_refused(
    store: Store, plan_groups: list[str], plan_topics: dict[str, int], named: str
) -> None:
    groups = FakeGroups({"g": {("a", 0): (1, None, "")}})
    _set(groups, store, _plan("g", a=5), by="restore")
    write_plan(store, restore_plan(plan_topics, plan_groups))
    groups.calls.clear()
    with pytest.raises(RefusedError, match=f"capture 1 of restore r names {named}, which the restore's plan does not"):
        _undo(groups, store)
    assert groups.calls == []


def restore_plan(topics: dict[str, int], groups: Sequence[str]) -> RestorePlan:
    """Return the plan of restore r: of `topics` with so many partitions, and of `groups`, all under their own names."""
    planned = [
        PlannedTopic(
            source=topic,
            incarnation=1,
            as_of=1,
            target=topic,
            partitions=partitions,
            records=0,
            bytes=0,
            configs={},
            replication_factor=1,
        )
        for topic, partitions in topics.items()
    ]
    return RestorePlan(
        restore_id="r",
        archive_id="a" * 32,
        restore_point=1,
        target_cluster_id="target",
        created_at="2026-01-01T00:00:00.000Z",
        transactions=True,
        transaction_bytes=1,
        into_existing=False,
        topics=tuple(planned),
        units=(),
        groups=tuple(PlannedGroup(source=group, target=group, offsets=()) for group in groups),
    )


def test_an_undo_goes_by_no_document_that_nothing_proves(tmp_path: Path) -> None:
    """The archive's owner ran the restore on another machine, or somebody else has written its documents."""
    bucket = MemoryStore()
    groups = FakeGroups({"g": {("a", 0): (1, None, "")}})
    _set(groups, with_proof(bucket, tmp_path / "here"), _plan("g", a=5))
    elsewhere = with_proof(bucket, tmp_path / "elsewhere")
    cluster = FakeCluster(groups).cluster
    shown = undo(cluster, elsewhere, confirm=False)
    assert shown.unproven == ("restores/r/groups-before-1.json",)
    with pytest.raises(RefusedError, match=r"nothing proves that restores/r/groups-before-1\.json"):
        undo(cluster, elsewhere)
    assert offsets_of(groups) == {("a", 0): 5}
    undo(cluster, elsewhere, accept_unproven=True)
    assert offsets_of(groups) == {("a", 0): 1}


def test_only_the_groups_asked_for_are_undone(store: Store) -> None:
    groups = FakeGroups()
    _set(groups, store, _plan("one", a=1), _plan("two", a=1))
    assert _status(_undo(groups, store, of=Selection.of(["one"], []))) == {"one": "deleted"}
    assert list(groups.held) == ["two"]


def test_groups_that_the_capture_has_not_are_a_usage_error(store: Store) -> None:
    groups = FakeGroups()
    _set(groups, store, _plan("shipping", a=1))
    for entry, said in (("shiping", "did you mean shipping"), ("/x.*/", "leave --group out")):
        with pytest.raises(UsageError, match=f"in capture 1 of restore r.*{said}"):
            _undo(groups, store, of=Selection.of([entry], []))


def test_undo_on_another_cluster_or_of_nothing_is_refused(store: Store) -> None:
    with pytest.raises(UsageError, match="nothing was written to groups by restore r"):
        _undo(FakeGroups(), store)
    _set(FakeGroups(), store, _plan("g", a=1))
    with pytest.raises(UsageError, match="no capture 7"):
        _undo(FakeGroups(), store, 7)
    with pytest.raises(RefusedError, match="is of cluster target, this is elsewhere"):
        undo(FakeCluster(FakeGroups(), "elsewhere").cluster, store)


def test_damaged_capture_is_refused(store: Store) -> None:
    groups = FakeGroups()
    _set(groups, store, _plan("g", a=1234))
    key = layout.restore_key("r", "groups-before-1.json")
    store.put(key, store.get(key).replace(b"1234", b"4321"))
    with pytest.raises(CorruptError, match=key):
        _undo(groups, store)
    assert groups.calls == [("commit", "g")]


def test_captures_are_never_replaced(store: Store) -> None:
    captures = Captures(RestoreJournal(store, "r"))
    key = layout.restore_key("r", "groups-before-2.json")
    assert captures.write("apply", "target", groups=()) == 1

    class Late(Captures):
        def numbers(self) -> list[int]:
            return [1]

    store.put_new(key, b"another's")
    assert Late(RestoreJournal(store, "r")).write("apply", "target", groups=()) == 3
    assert store.get(key) == b"another's"


_PLACES = st.sampled_from([("a", 0), ("a", 1), ("b", 0)])
_HELD = st.dictionaries(
    _PLACES, st.tuples(st.integers(0, 3), st.sampled_from([None, 0, 1]), st.sampled_from(["", "m"]))
)


def _offsets(held: dict[Place, Held]) -> tuple[GroupOffset, ...]:
    return tuple(
        GroupOffset(topic=t, partition=p, offset=o, leader_epoch=e, metadata=m) for (t, p), (o, e, m) in held.items()
    )


def _is_as_written(writes: dict[Place, Held], now: dict[Place, Held], key: Place) -> bool:
    return key in writes and (now[key][0] if key in now else NONE) == writes[key][0]


@given(before=_HELD, writes=_HELD, now=_HELD)
def test_undo_gives_places_back_that_are_as_they_were_written(
    before: dict[Place, Held], writes: dict[Place, Held], now: dict[Place, Held]
) -> None:
    """Whatever happened to the group since."""
    plan = undo_of(GroupBefore(group="g", offsets=_offsets(before), writes=_offsets(writes)), _offsets(now))
    removed = {(o.topic, o.partition) for o in plan.removes}
    end = {key: held for key, held in now.items() if key not in removed}
    end |= {(o.topic, o.partition): (o.offset, o.leader_epoch, o.metadata) for o in plan.sets}
    assert plan.deletes == (bool(now) and not end)
    back = {key for key in writes if _is_as_written(writes, now, key)}
    wanted = {key: held for key, held in now.items() if key not in back}
    wanted |= {key: held for key, held in before.items() if key in back}
    assert end == wanted
    assert {(o.topic, o.partition) for o in plan.writes if o.offset == NONE} == {
        key for key in now if key in back and key not in before
    }
    assert set(plan.moved) == {key for key in writes.keys() - back if now.get(key) != before.get(key)}
