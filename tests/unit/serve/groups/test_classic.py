"""Groups of the classic protocol follow the rules of a broker."""

from __future__ import annotations

import pytest

from kbackup.serve.groups.classic import FIRST_REBALANCE_SECONDS, MOST_MEMBERS, ClassicGroup, ClassicState
from kbackup.serve.groups.errors import GroupRequestError
from kbackup.serve.protocol import ErrorCode
from tests.unit.serve.groups.builders import (
    RANGE,
    REBALANCE,
    SESSION,
    a_join,
    a_sync,
    error_of,
    first_generation,
    settle,
    stable_group,
)

NOW = 1000.0


def refused(code: ErrorCode) -> pytest.RaisesExc[GroupRequestError]:
    return pytest.raises(GroupRequestError, check=lambda error: error.code is code)


# Joining.


def test_a_new_member_has_to_join_again_with_the_id_that_it_gets() -> None:
    group = ClassicGroup("g")
    with refused(ErrorCode.MEMBER_ID_REQUIRED) as error:
        group.join(a_join(needs_known_id=True, client_id="kcat"), NOW)
    member_id = error.value.member_id
    assert member_id.startswith("kcat-")
    assert not group.members
    pending = group.join(a_join(member_id, needs_known_id=True), NOW)
    group.pass_time(NOW + FIRST_REBALANCE_SECONDS)
    assert pending.result().member_id == member_id


def test_an_id_that_nobody_joins_with_is_forgotten_after_the_session_timeout() -> None:
    group = ClassicGroup("g")
    with refused(ErrorCode.MEMBER_ID_REQUIRED) as error:
        group.join(a_join(needs_known_id=True), NOW)
    assert group.next_deadline() == NOW + SESSION
    group.pass_time(NOW + SESSION)
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        group.join(a_join(error.value.member_id), NOW + SESSION)


def test_a_rebalance_waits_for_who_has_an_id_and_has_yet_to_join() -> None:
    group, [leader] = stable_group(NOW)
    with refused(ErrorCode.MEMBER_ID_REQUIRED) as error:
        group.join(a_join(needs_known_id=True), NOW)
    again = group.join(a_join(leader.member_id), NOW)
    assert not again.is_given
    newcomer = group.join(a_join(error.value.member_id), NOW)
    assert again.result().generation == newcomer.result().generation == 2


def test_an_older_client_is_a_member_by_its_first_request() -> None:
    [joined] = first_generation(ClassicGroup("g"), NOW)
    assert joined.member_id.startswith("client-")
    assert joined.leader == joined.member_id


def test_the_first_rebalance_waits_for_more_members() -> None:
    group = ClassicGroup("g")
    first = group.join(a_join(), NOW)
    second = group.join(a_join(), NOW + FIRST_REBALANCE_SECONDS / 2)
    assert not first.is_given
    group.pass_time(NOW + FIRST_REBALANCE_SECONDS)
    assert first.result().generation == second.result().generation == 1


def test_the_leader_alone_hears_of_the_members_and_their_subscriptions() -> None:
    group = ClassicGroup("g")
    leader, follower = first_generation(group, NOW, 2)
    assert [each.member_id for each in leader.members] == [leader.member_id, follower.member_id]
    assert {each.subscription for each in leader.members} == {b"range of a"}
    assert follower.members == ()
    assert follower.leader == leader.member_id


@pytest.mark.parametrize("seconds", [5.9, 1800.1])
def test_a_session_timeout_out_of_bounds_is_refused(seconds: float) -> None:
    with refused(ErrorCode.INVALID_SESSION_TIMEOUT):
        ClassicGroup("g").join(a_join(session_seconds=seconds), NOW)


def test_a_join_without_a_protocol_is_refused() -> None:
    with refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL):
        ClassicGroup("g").join(a_join(protocols=()), NOW)
    with refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL):
        ClassicGroup("g").join(a_join(protocol_type=""), NOW)


def test_a_member_that_shares_no_protocol_with_the_others_is_refused() -> None:
    group, _ = stable_group(NOW)
    with refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL):
        group.join(a_join(protocols=(("sticky", b""),)), NOW)
    with refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL):
        group.join(a_join(protocol_type="connect"), NOW)
    assert len(group.members) == 1


def test_a_member_that_is_alone_may_change_its_protocol() -> None:
    group, [member] = stable_group(NOW)
    again = group.join(a_join(member.member_id, protocols=(("sticky", b"s"),)), NOW)
    assert again.result().protocol == "sticky"


def test_members_choose_the_protocol_by_votes() -> None:
    group = ClassicGroup("g")
    both = (("range", b""), ("sticky", b""))
    pending = [
        group.join(a_join(protocols=both), NOW),
        group.join(a_join(protocols=(*reversed(both), ("own", b""))), NOW),
        group.join(a_join(protocols=tuple(reversed(both))), NOW),
    ]
    group.pass_time(NOW + FIRST_REBALANCE_SECONDS)
    assert {each.result().protocol for each in pending} == {"sticky"}


def test_a_group_is_bounded() -> None:
    group = ClassicGroup("g")
    for _ in range(MOST_MEMBERS):
        with refused(ErrorCode.MEMBER_ID_REQUIRED):
            group.join(a_join(needs_known_id=True), NOW)
    with refused(ErrorCode.GROUP_MAX_SIZE_REACHED):
        group.join(a_join(needs_known_id=True), NOW)
    with refused(ErrorCode.GROUP_MAX_SIZE_REACHED):
        group.join(a_join(instance_id="static"), NOW)


def test_an_unknown_member_can_not_join() -> None:
    group, _ = stable_group(NOW)
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        group.join(a_join("made-up"), NOW)


def test_a_follower_that_joins_again_unchanged_gets_the_present_generation() -> None:
    group, [_, follower] = stable_group(NOW, 2)
    again = group.join(a_join(follower.member_id), NOW)
    assert again.result() == follower
    assert group.state is ClassicState.STABLE


def test_a_leader_that_joins_again_begins_a_rebalance() -> None:
    group, [leader, follower] = stable_group(NOW, 2)
    pending = group.join(a_join(leader.member_id), NOW)
    assert not pending.is_given
    with refused(ErrorCode.REBALANCE_IN_PROGRESS):
        group.heartbeat(follower.member_id, None, follower.generation, NOW)
    group.join(a_join(follower.member_id), NOW)
    assert pending.result().generation == 2


def test_a_member_with_a_new_subscription_begins_a_rebalance() -> None:
    group, [leader, follower] = stable_group(NOW, 2)
    group.join(a_join(follower.member_id, protocols=(("range", b"range of b"),)), NOW)
    again = group.join(a_join(leader.member_id), NOW)
    assert [each.subscription for each in again.result().members] == [b"range of a", b"range of b"]


def test_a_request_to_join_that_is_sent_anew_takes_the_place_of_the_first() -> None:
    group, [leader, _] = stable_group(NOW, 2)
    lost = group.join(a_join(leader.member_id), NOW)
    waiting = group.join(a_join(leader.member_id), NOW)
    assert error_of(lost) is ErrorCode.REBALANCE_IN_PROGRESS
    assert not waiting.is_given


# Rebalances.


def test_who_does_not_join_again_in_time_is_removed() -> None:
    group, [leader, follower] = stable_group(NOW, 2, session_seconds=100.0)
    pending = group.join(a_join(leader.member_id), NOW)
    assert group.next_deadline() == NOW + REBALANCE
    group.pass_time(NOW + REBALANCE)
    assert [each.member_id for each in pending.result().members] == [leader.member_id]
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        group.heartbeat(follower.member_id, None, 2, NOW + REBALANCE)


def test_a_leader_that_does_not_join_again_is_replaced() -> None:
    group, [leader, follower] = stable_group(NOW, 2, session_seconds=100.0)
    pending = group.join(a_join(follower.member_id, protocols=(("range", b"b"),)), NOW)
    group.pass_time(NOW + REBALANCE)
    assert pending.result().leader == follower.member_id
    assert leader.member_id not in group.members


def test_the_rebalance_timeout_is_the_longest_of_the_members() -> None:
    group = ClassicGroup("g")
    first = group.join(a_join(session_seconds=500.0), NOW)
    group.join(a_join(rebalance_seconds=300.0, session_seconds=500.0), NOW)
    group.pass_time(NOW + FIRST_REBALANCE_SECONDS)
    group.join(a_join(first.result().member_id, protocols=(("range", b"b"),)), NOW)
    assert group.next_deadline() == NOW + 300.0


def test_a_group_whose_last_member_leaves_is_empty() -> None:
    group, [member] = stable_group(NOW)
    group.leave(member.member_id, None, NOW)
    assert group.state is ClassicState.EMPTY
    assert group.generation == 2
    assert group.protocol == ""


def test_a_member_that_leaves_makes_the_others_join_again() -> None:
    group, [leader, follower] = stable_group(NOW, 2)
    group.leave(leader.member_id, None, NOW)
    with refused(ErrorCode.REBALANCE_IN_PROGRESS):
        group.heartbeat(follower.member_id, None, follower.generation, NOW)
    again = group.join(a_join(follower.member_id), NOW)
    assert again.result().leader == follower.member_id


def test_a_member_that_leaves_while_the_others_have_joined_ends_the_rebalance() -> None:
    group, [leader, follower] = stable_group(NOW, 2)
    pending = group.join(a_join(leader.member_id), NOW)
    group.leave(follower.member_id, None, NOW)
    assert pending.result().generation == 2


def test_who_has_an_id_only_may_leave() -> None:
    group = ClassicGroup("g")
    with refused(ErrorCode.MEMBER_ID_REQUIRED) as error:
        group.join(a_join(needs_known_id=True), NOW)
    group.leave(error.value.member_id, None, NOW)
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        group.leave(error.value.member_id, None, NOW)


# Assignments.


def test_members_get_what_the_leader_assigns() -> None:
    group = ClassicGroup("g")
    joined = first_generation(group, NOW, 3)
    synced = settle(group, joined, NOW)
    assert {each.assignment for each in synced} == {each.member_id.encode() for each in joined}
    assert group.state is ClassicState.STABLE


def test_a_follower_waits_for_the_leader() -> None:
    group = ClassicGroup("g")
    leader, follower = first_generation(group, NOW, 2)
    pending = group.sync(a_sync(follower), NOW)
    assert not pending.is_given
    group.sync(a_sync(leader, {follower.member_id: b"0"}), NOW)
    assert pending.result().assignment == b"0"


def test_a_follower_that_syncs_late_gets_its_assignment_at_once() -> None:
    group = ClassicGroup("g")
    leader, follower = first_generation(group, NOW, 2)
    group.sync(a_sync(leader, {follower.member_id: b"0"}), NOW)
    assert group.sync(a_sync(follower), NOW).result().assignment == b"0"


def test_a_member_that_the_leader_leaves_out_gets_nothing() -> None:
    group = ClassicGroup("g")
    leader, follower = first_generation(group, NOW, 2)
    group.sync(a_sync(leader, {leader.member_id: b"all"}), NOW)
    assert group.sync(a_sync(follower), NOW).result().assignment == b""


def test_a_sync_of_another_generation_or_protocol_is_refused() -> None:
    group = ClassicGroup("g")
    [joined] = first_generation(group, NOW)
    with refused(ErrorCode.ILLEGAL_GENERATION):
        group.sync(a_sync(joined, generation=0), NOW)
    with refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL):
        group.sync(a_sync(joined, protocol="sticky"), NOW)
    with refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL):
        group.sync(a_sync(joined, protocol_type="connect"), NOW)
    assert group.sync(a_sync(joined, protocol=None, protocol_type=None), NOW).is_given


def test_a_sync_during_a_rebalance_is_told_to_join_again() -> None:
    group, [leader, follower] = stable_group(NOW, 2)
    group.join(a_join(leader.member_id), NOW)
    with refused(ErrorCode.REBALANCE_IN_PROGRESS):
        group.sync(a_sync(follower), NOW)


def test_a_follower_that_waits_hears_of_the_next_rebalance() -> None:
    group = ClassicGroup("g")
    _, follower = first_generation(group, NOW, 2)
    pending = group.sync(a_sync(follower), NOW)
    group.join(a_join(), NOW)
    assert error_of(pending) is ErrorCode.REBALANCE_IN_PROGRESS


def test_who_joins_and_never_syncs_is_removed_after_the_rebalance_timeout() -> None:
    group = ClassicGroup("g")
    leader, follower = first_generation(group, NOW, 2, session_seconds=100.0, rebalance_seconds=20.0)
    joined_at = NOW + FIRST_REBALANCE_SECONDS
    pending = group.sync(a_sync(follower), joined_at)
    group.heartbeat(leader.member_id, None, leader.generation, joined_at + 19)
    group.pass_time(joined_at + 20)
    assert error_of(pending) is ErrorCode.REBALANCE_IN_PROGRESS
    assert list(group.members) == [follower.member_id]


# Sessions.


def test_a_silent_member_is_removed_and_the_others_rebalance() -> None:
    group, [leader, follower] = stable_group(NOW, 2)
    group.heartbeat(leader.member_id, None, leader.generation, NOW + SESSION - 1)
    group.pass_time(NOW + SESSION)
    assert list(group.members) == [leader.member_id]
    assert group.state is ClassicState.PREPARING
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        group.heartbeat(follower.member_id, None, follower.generation, NOW + SESSION)


def test_a_member_that_waits_for_an_answer_does_not_have_to_send_heartbeats() -> None:
    group, [leader, follower] = stable_group(NOW, 2)
    pending = group.join(a_join(leader.member_id), NOW)
    for seconds in range(1, 50):
        with refused(ErrorCode.REBALANCE_IN_PROGRESS):
            group.heartbeat(follower.member_id, None, follower.generation, NOW + seconds)
        group.pass_time(NOW + seconds)
    assert not pending.is_given
    assert leader.member_id in group.members


def test_heartbeats_of_strangers_are_refused() -> None:
    group, [member] = stable_group(NOW)
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        group.heartbeat("made-up", None, member.generation, NOW)
    with refused(ErrorCode.ILLEGAL_GENERATION):
        group.heartbeat(member.member_id, None, member.generation + 1, NOW)


# Static members.


def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance() -> None:
    group, [leader] = stable_group(NOW, instance_id="one")
    again = group.join(a_join(instance_id="one"), NOW).result()
    assert again.member_id != leader.member_id
    assert again.generation == leader.generation
    assert again.skip_assignment
    synced = group.sync(a_sync(again, instance_id="one"), NOW)
    assert synced.result().assignment == leader.member_id.encode()


def test_an_older_static_leader_that_comes_back_does_not_hear_of_its_leadership() -> None:
    group, [leader] = stable_group(NOW, instance_id="one")
    again = group.join(a_join(instance_id="one", can_skip_assignment=False), NOW).result()
    assert again.leader == leader.member_id
    assert again.members == ()


def test_a_static_member_that_comes_back_with_another_protocol_begins_a_rebalance() -> None:
    group, [leader] = stable_group(NOW, instance_id="one")
    again = group.join(a_join(instance_id="one", protocols=(("sticky", b""),)), NOW).result()
    assert again.generation == leader.generation + 1
    assert again.protocol == "sticky"


def test_a_static_member_that_comes_back_before_the_assignment_begins_a_rebalance() -> None:
    group = ClassicGroup("g")
    static = group.join(a_join(instance_id="one"), NOW)
    follower = group.join(a_join(), NOW)
    group.pass_time(NOW + FIRST_REBALANCE_SECONDS)
    waiting = group.sync(a_sync(follower.result()), NOW)
    again = group.join(a_join(instance_id="one"), NOW)
    assert error_of(waiting) is ErrorCode.REBALANCE_IN_PROGRESS
    group.join(a_join(follower.result().member_id), NOW)
    assert again.result().generation == static.result().generation + 1


def test_the_former_life_of_a_static_member_is_fenced() -> None:
    group, [leader] = stable_group(NOW, instance_id="one")
    waiting = group.join(a_join(leader.member_id, instance_id="one"), NOW)
    assert waiting.is_given
    group.join(a_join(instance_id="one"), NOW)
    with refused(ErrorCode.FENCED_INSTANCE_ID):
        group.heartbeat(leader.member_id, "one", leader.generation, NOW)
    with refused(ErrorCode.FENCED_INSTANCE_ID):
        group.join(a_join(leader.member_id, instance_id="one"), NOW)
    with refused(ErrorCode.FENCED_INSTANCE_ID):
        group.leave(leader.member_id, "one", NOW)


def test_a_request_of_the_former_life_that_still_waits_is_fenced() -> None:
    group = ClassicGroup("g")
    former = group.join(a_join(instance_id="one"), NOW)
    again = group.join(a_join(instance_id="one"), NOW)
    assert error_of(former) is ErrorCode.FENCED_INSTANCE_ID
    group.pass_time(NOW + FIRST_REBALANCE_SECONDS)
    assert again.result().generation == 1


def test_a_static_member_may_be_away_through_a_rebalance() -> None:
    group = ClassicGroup("g")
    static = group.join(a_join(instance_id="one", session_seconds=1000.0), NOW)
    dynamic = group.join(a_join(session_seconds=1000.0), NOW)
    group.pass_time(NOW + FIRST_REBALANCE_SECONDS)
    settle(group, [static.result(), dynamic.result()], NOW)
    changed = a_join(dynamic.result().member_id, session_seconds=1000.0, protocols=(("range", b"b"),))
    again = group.join(changed, NOW)
    group.pass_time(NOW + REBALANCE)
    assert [each.instance_id for each in again.result().members] == ["one", None]
    assert again.result().leader == dynamic.result().member_id


def test_static_members_that_are_all_away_keep_the_rebalance_going_until_their_sessions_end() -> None:
    group, [member] = stable_group(NOW, instance_id="one", session_seconds=100.0)
    other = group.join(a_join(), NOW)
    assert not other.is_given
    group.leave(next(each for each in group.members if each != member.member_id), None, NOW)
    group.pass_time(NOW + REBALANCE)
    assert group.state is ClassicState.PREPARING
    group.pass_time(NOW + 100.0)
    assert not group.members


def test_an_administrator_removes_a_static_member_by_its_instance_id() -> None:
    group, [member] = stable_group(NOW, instance_id="one")
    assert group.leave("", "one", NOW) == member.member_id
    assert not group.members
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        group.leave("", "one", NOW)


# Commits.


def test_members_commit_in_their_generation() -> None:
    group, [member] = stable_group(NOW)
    group.check_commit(member.member_id, None, member.generation, NOW)
    with refused(ErrorCode.ILLEGAL_GENERATION):
        group.check_commit(member.member_id, None, member.generation - 1, NOW)
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        group.check_commit("made-up", None, member.generation, NOW)


def test_a_commit_keeps_a_member_alive() -> None:
    group, [member] = stable_group(NOW)
    group.check_commit(member.member_id, None, member.generation, NOW + SESSION - 1)
    group.pass_time(NOW + SESSION)
    assert member.member_id in group.members


def test_members_may_commit_while_the_others_join_and_not_while_partitions_are_assigned() -> None:
    group, [leader, follower] = stable_group(NOW, 2)
    group.join(a_join(leader.member_id), NOW)
    group.check_commit(follower.member_id, None, follower.generation, NOW)
    group.join(a_join(follower.member_id), NOW)
    with refused(ErrorCode.REBALANCE_IN_PROGRESS):
        group.check_commit(follower.member_id, None, follower.generation + 1, NOW)


def test_tools_commit_to_groups_without_members_only() -> None:
    group, _ = stable_group(NOW)
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        group.check_commit("", None, -1, NOW)
    ClassicGroup("empty").check_commit("", None, -1, NOW)
    with refused(ErrorCode.ILLEGAL_GENERATION):
        ClassicGroup("empty").check_commit("gone", None, 3, NOW)


def test_what_members_say_is_counted() -> None:
    group, [member] = stable_group(NOW)
    subscription = sum(len(name) + len(data) for name, data in RANGE)
    assert group.held_bytes() == subscription + len(member.member_id)
