"""The coordinator keeps groups apart, bounds them, and does in time what is due."""

from __future__ import annotations

import logging
import math

import pytest

from kbackup.serve.groups import coordinator as module
from kbackup.serve.groups.classic import FIRST_REBALANCE_SECONDS, Joined
from kbackup.serve.groups.coordinator import CommitCall, Coordinator, GroupSummary
from kbackup.serve.groups.errors import GroupRequestError
from kbackup.serve.groups.offsets import GroupOffsets
from kbackup.serve.groups.patterns import matching_topics
from kbackup.serve.protocol import ErrorCode
from kbackup.types import TopicPartition
from tests.unit.serve.groups.builders import (
    SESSION,
    Clock,
    Contents,
    a_join,
    a_member_call,
    a_sync,
    committed,
    partitions,
)


def refused(code: ErrorCode) -> pytest.RaisesExc[GroupRequestError]:
    return pytest.raises(GroupRequestError, check=lambda error: error.code is code)


class Groups:
    """A coordinator over topic a with four partitions, where group archived has committed."""

    def __init__(self, *, refuses_commits: bool = False) -> None:
        self.clock = Clock()
        self.contents = Contents(a=4)
        self.contents.archived = {"archived": [committed("a", 0, 10), committed("a", 1, 20)]}
        self.offsets = GroupOffsets(self.contents, refuses_commits=refuses_commits)
        self.coordinator = Coordinator(self.contents, self.offsets, matching_topics, self.clock)

    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds
        self.coordinator.pass_time()

    def join(self, group: str) -> Joined:
        pending = self.coordinator.join(group, a_join())
        self.pass_time(FIRST_REBALANCE_SECONDS)
        return pending.result()

    def stable(self, group: str) -> Joined:
        joined = self.join(group)
        self.coordinator.sync(group, a_sync(joined, {joined.member_id: b"all"}))
        return joined

    def commit(self, group: str, offset: int, member_id: str = "", generation: int = -1) -> ErrorCode:
        call = CommitCall(
            group_id=group, member_id=member_id, instance_id=None, generation=generation, knows_epochs=True
        )
        return self.coordinator.commit(call, [committed("a", 0, offset)])[TopicPartition("a", 0)]

    def committed(self, group: str) -> dict[int, int]:
        return {each.tp.partition: each.offset for each in self.coordinator.committed(group, None, -1)}


@pytest.fixture
def groups() -> Groups:
    return Groups()


# Archived groups.


def test_an_archived_group_is_empty_and_has_its_offsets_before_somebody_joins(groups: Groups) -> None:
    assert groups.coordinator.list_groups() == [GroupSummary("archived", "classic", "consumer", "Empty")]
    assert groups.committed("archived") == {0: 10, 1: 20}
    described = groups.coordinator.classic_group("archived")
    assert (described.state.value, described.protocol_type, described.members) == ("Empty", "consumer", {})


def test_a_commit_takes_the_place_of_the_archived_offset_of_its_partition(groups: Groups) -> None:
    assert groups.commit("archived", 15) is ErrorCode.NONE
    assert groups.committed("archived") == {0: 15, 1: 20}


def test_offsets_of_a_later_restore_point_count_where_nobody_has_committed(groups: Groups) -> None:
    groups.commit("archived", 15)
    groups.contents.archived = {"archived": [committed("a", 0, 100), committed("a", 1, 200)]}
    assert groups.committed("archived") == {0: 15, 1: 200}


def test_a_member_commits_and_the_next_one_goes_on_there(groups: Groups) -> None:
    joined = groups.stable("new")
    assert groups.commit("new", 7, joined.member_id, joined.generation) is ErrorCode.NONE
    groups.coordinator.leave("new", joined.member_id, None)
    assert groups.committed("new") == {0: 7}
    assert groups.coordinator.summary("new").state == "Empty"


def test_it_is_logged_once_per_group_what_becomes_of_commits(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="kbackup")
    for groups in (Groups(), Groups(refuses_commits=True)):
        for _ in range(3):
            for name in ("one", "two"):
                try:
                    groups.commit(name, 5)
                except GroupRequestError as error:
                    assert groups.committed(name) == {}
                    if error.code is not ErrorCode.GROUP_AUTHORIZATION_FAILED:
                        raise
    assert caplog.messages == [
        "commits of group one are kept in memory until the end, not in the archive",
        "commits of group two are kept in memory until the end, not in the archive",
        "commits of group one are refused: --commits refuse",
        "commits of group two are refused: --commits refuse",
    ]


def test_commits_for_what_is_not_served_are_refused_one_by_one(groups: Groups) -> None:
    call = CommitCall(group_id="g", member_id="", instance_id=None, generation=-1, knows_epochs=True)
    wanted = [
        committed("a", 0, 1),
        committed("a", 4, 1),
        committed("a", -1, 1),
        committed("missing", 0, 1),
        committed("a", 1, 1, metadata="x" * 4097),
    ]
    results = groups.coordinator.commit(call, wanted)
    assert [results[each.tp] for each in wanted] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
    ]
    assert groups.committed("g") == {0: 1}


def test_a_group_whose_commits_all_fail_is_unknown(groups: Groups) -> None:
    call = CommitCall(group_id="g", member_id="", instance_id=None, generation=-1, knows_epochs=True)
    groups.coordinator.commit(call, [committed("missing", 0, 1)])
    with refused(ErrorCode.GROUP_ID_NOT_FOUND):
        groups.coordinator.summary("g")


def test_offsets_in_memory_are_bounded(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbackup.serve.groups.offsets.MOST_COMMITTED", 2)
    assert groups.commit("one", 1) is ErrorCode.NONE
    assert groups.commit("two", 1) is ErrorCode.NONE
    assert groups.commit("three", 1) is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert groups.commit("one", 2) is ErrorCode.NONE


# Both protocols.


def test_a_group_has_members_of_one_protocol_at_a_time(groups: Groups) -> None:
    joined = groups.stable("g")
    with refused(ErrorCode.GROUP_ID_NOT_FOUND):
        groups.coordinator.consumer_heartbeat("g", a_member_call("m1"))
    groups.coordinator.leave("g", joined.member_id, None)
    groups.coordinator.consumer_heartbeat("g", a_member_call("m1"))
    with refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL):
        groups.coordinator.join("g", a_join())
    groups.coordinator.consumer_heartbeat("g", a_member_call("m1", -1))
    assert groups.join("g").generation == 1


def test_an_archived_group_may_be_joined_by_either_protocol(groups: Groups) -> None:
    answer = groups.coordinator.consumer_heartbeat("archived", a_member_call("m1"))
    assert answer.assigned == partitions("a", 0, 1, 2, 3)
    assert groups.coordinator.summary("archived") == GroupSummary("archived", "consumer", "consumer", "Stable")
    assert groups.committed("archived") == {0: 10, 1: 20}


def test_each_kind_of_description_is_for_its_protocol(groups: Groups) -> None:
    groups.coordinator.consumer_heartbeat("new", a_member_call("m1"))
    groups.stable("old")
    assert groups.coordinator.consumer_group("new").members
    assert groups.coordinator.classic_group("old").members
    for name in ("old", "archived", "missing"):
        with refused(ErrorCode.GROUP_ID_NOT_FOUND):
            groups.coordinator.consumer_group(name)
    for name in ("new", "missing"):
        with refused(ErrorCode.GROUP_ID_NOT_FOUND):
            groups.coordinator.classic_group(name)


def test_members_of_the_new_protocol_read_and_commit_in_their_epoch(groups: Groups) -> None:
    answer = groups.coordinator.consumer_heartbeat("g", a_member_call("m1"))
    assert groups.commit("g", 3, "m1", answer.epoch) is ErrorCode.NONE
    assert [each.offset for each in groups.coordinator.committed("g", "m1", answer.epoch)] == [3]
    with refused(ErrorCode.STALE_MEMBER_EPOCH):
        groups.commit("g", 3, "m1", answer.epoch + 1)
    with refused(ErrorCode.STALE_MEMBER_EPOCH):
        groups.coordinator.committed("g", "m1", answer.epoch + 1)
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        groups.coordinator.committed("g", "made-up", answer.epoch)
    older = CommitCall(group_id="g", member_id="m1", instance_id=None, generation=answer.epoch, knows_epochs=False)
    with refused(ErrorCode.UNSUPPORTED_VERSION):
        groups.coordinator.commit(older, [])


def test_an_administrator_removes_a_member_of_the_new_protocol(groups: Groups) -> None:
    groups.coordinator.consumer_heartbeat("g", a_member_call("m1", instance_id="one"))
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        groups.coordinator.leave("g", "m2", None)
    assert groups.coordinator.leave("g", "", "one") == "m1"


# Unknown groups.


def test_what_asks_for_a_group_that_is_not_there_is_refused(groups: Groups) -> None:
    joined = groups.join("other")
    with refused(ErrorCode.INVALID_GROUP_ID):
        groups.coordinator.join("", a_join())
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        groups.coordinator.join("g", a_join("made-up"))
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        groups.coordinator.sync("g", a_sync(joined))
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        groups.coordinator.heartbeat("g", "m", None, 1)
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        groups.coordinator.leave("g", "m", None)
    with refused(ErrorCode.GROUP_ID_NOT_FOUND):
        groups.coordinator.consumer_heartbeat("g", a_member_call("m1", 1))
    with refused(ErrorCode.ILLEGAL_GENERATION):
        groups.commit("g", 1, "m", 1)
    assert groups.committed("g") == {}
    assert [each.group_id for each in groups.coordinator.list_groups()] == ["archived", "other"]


def test_a_group_that_everybody_has_left_without_a_commit_is_forgotten(groups: Groups) -> None:
    joined = groups.stable("g")
    groups.coordinator.leave("g", joined.member_id, None)
    with refused(ErrorCode.GROUP_ID_NOT_FOUND):
        groups.coordinator.summary("g")
    assert groups.coordinator.next_deadline() == math.inf or groups.coordinator.next_deadline() > groups.clock.now


# Time and bounds.


def test_sessions_of_all_groups_end_in_time(groups: Groups) -> None:
    for name in ("one", "two"):
        joined = groups.stable(name)
        groups.commit(name, 1, joined.member_id, joined.generation)
    groups.coordinator.consumer_heartbeat("three", a_member_call("m1"))
    groups.clock.now += SESSION / 2
    two = groups.coordinator.classic_group("two")
    groups.coordinator.heartbeat("two", next(iter(two.members)), None, two.generation)
    end = groups.clock.now + SESSION / 2
    while groups.coordinator.next_deadline() <= end:
        groups.clock.now = groups.coordinator.next_deadline()
        groups.coordinator.pass_time()
    states = {each.group_id: each.state for each in groups.coordinator.list_groups()}
    assert states == {"archived": "Empty", "one": "Empty", "two": "Stable", "three": "Stable"}


def test_groups_are_bounded_and_those_without_members_make_room(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_GROUPS", 2)
    first = groups.stable("one")
    groups.commit("one", 1, first.member_id, first.generation)
    groups.stable("two")
    with refused(ErrorCode.GROUP_MAX_SIZE_REACHED):
        groups.coordinator.join("three", a_join())
    groups.coordinator.leave("one", first.member_id, None)
    groups.stable("three")
    assert groups.committed("one") == {0: 1}


def test_what_clients_say_is_bounded_over_all_groups(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_HELD_BYTES", 1000)
    large = (("range", bytes(600)),)
    first = groups.coordinator.join("one", a_join(protocols=large))
    with refused(ErrorCode.GROUP_MAX_SIZE_REACHED):
        groups.coordinator.join("two", a_join(protocols=large))
    groups.pass_time(FIRST_REBALANCE_SECONDS)
    joined = first.result()
    with refused(ErrorCode.GROUP_MAX_SIZE_REACHED):
        groups.coordinator.sync("one", a_sync(joined, {joined.member_id: bytes(600)}))
    groups.coordinator.leave("one", joined.member_id, None)
    assert not groups.coordinator.join("two", a_join(protocols=large)).is_given
