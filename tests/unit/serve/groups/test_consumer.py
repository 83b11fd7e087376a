"""Groups of the new protocol follow the rules of a broker."""

from __future__ import annotations

from typing import Any

import pytest

from kbackup.serve.groups.assignors import AssignedPartition
from kbackup.serve.groups.classic import MOST_MEMBERS
from kbackup.serve.groups.consumer import SESSION_SECONDS, ConsumerGroup, ConsumerMember, ConsumerState, MemberAnswer
from kbackup.serve.groups.errors import GroupRequestError
from kbackup.serve.groups.patterns import matching_topics
from kbackup.serve.protocol import ErrorCode
from tests.unit.serve.groups.builders import REBALANCE, Contents, a_member_call, partitions

NOW = 1000.0
ALL = partitions("a", 0, 1, 2, 3)


def refused(code: ErrorCode) -> pytest.RaisesExc[GroupRequestError]:
    return pytest.raises(GroupRequestError, check=lambda error: error.code is code)


class Group:
    """A group over topic a with four partitions, and b with two."""

    def __init__(self) -> None:
        self.contents = Contents(a=4, b=2)
        self.group = ConsumerGroup("g", matching_topics)
        self.now = NOW

    def call(self, member_id: str, epoch: int = 0, **changes: Any) -> MemberAnswer:
        return self.group.heartbeat(a_member_call(member_id, epoch, **changes), self.contents.topics(), self.now)

    def state(self) -> ConsumerState:
        return self.group.state


def assigned(answer: MemberAnswer) -> frozenset[AssignedPartition]:
    assert answer.assigned is not None
    return answer.assigned


def test_a_member_alone_gets_everything() -> None:
    answer = Group().call("m1")
    assert answer == MemberAnswer("m1", 1, ALL)


def test_a_member_without_an_id_gets_one() -> None:
    group = Group()
    answer = group.call("")
    assert len(answer.member_id) == 36
    assert group.call(answer.member_id, answer.epoch).member_id == answer.member_id


def test_a_heartbeat_without_news_is_answered_without_partitions() -> None:
    group = Group()
    first = group.call("m1")
    assert group.call("m1", first.epoch) == MemberAnswer("m1", 1, None)


def test_a_second_member_waits_until_the_first_has_given_up_its_share() -> None:
    group = Group()
    first = group.call("m1")
    second = group.call("m2")
    assert second == MemberAnswer("m2", 2, frozenset())
    asked_back = group.call("m1", first.epoch)
    kept = assigned(asked_back)
    assert asked_back.epoch == first.epoch, "a member that has to give up stays in its epoch"
    assert kept < ALL
    assert group.state() is ConsumerState.RECONCILING
    assert group.call("m2", second.epoch).assigned is None
    acknowledged = group.call("m1", first.epoch, owned=kept)
    assert acknowledged == MemberAnswer("m1", 2, kept)
    assert assigned(group.call("m2", second.epoch)) == ALL - kept
    assert group.state() is ConsumerState.STABLE


def test_a_member_that_says_nothing_about_its_partitions_still_has_them() -> None:
    group = Group()
    first = group.call("m1")
    group.call("m2")
    group.call("m1", first.epoch)
    assert group.call("m1", first.epoch) == MemberAnswer("m1", first.epoch, None)
    assert group.call("m1", first.epoch, owned=ALL).epoch == first.epoch


def test_who_does_not_give_up_in_time_is_removed() -> None:
    group = Group()
    first = group.call("m1")
    second = group.call("m2")
    asked_at = group.now
    group.call("m1", first.epoch)
    while group.now < asked_at + REBALANCE:
        group.now += 10
        group.group.pass_time(group.now)
        if "m1" in group.group.members:
            group.call("m1", first.epoch)
        group.call("m2", second.epoch if group.group.members["m2"].epoch == second.epoch else 3)
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        group.call("m1", first.epoch)
    assert group.group.members["m2"].assigned == ALL


def test_a_member_that_leaves_frees_its_partitions() -> None:
    group = Group()
    group.call("m1")
    second = group.call("m2")
    assert group.call("m1", -1) == MemberAnswer("m1", -1, None)
    assert assigned(group.call("m2", second.epoch)) == ALL
    group.call("m2", -1)
    assert group.group.state is ConsumerState.EMPTY
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        group.call("m2", -1)


def test_a_silent_member_is_removed() -> None:
    group = Group()
    group.call("m1")
    second = group.call("m2")
    group.now += SESSION_SECONDS / 2
    group.call("m2", second.epoch)
    group.now += SESSION_SECONDS / 2
    assert group.group.next_deadline() == group.now
    group.group.pass_time(group.now)
    assert list(group.group.members) == ["m2"]
    assert assigned(group.call("m2", second.epoch)) == ALL


def test_a_member_with_another_epoch_is_fenced() -> None:
    group = Group()
    first = group.call("m1")
    with refused(ErrorCode.FENCED_MEMBER_EPOCH):
        group.call("m1", first.epoch + 1)
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        group.call("made-up", first.epoch)


def test_a_member_whose_answer_was_lost_goes_on() -> None:
    group = Group()
    first = group.call("m1")
    group.call("m2")
    kept = assigned(group.call("m1", first.epoch))
    lost = group.call("m1", first.epoch, owned=kept)
    assert lost.epoch > first.epoch
    assert group.call("m1", first.epoch, owned=kept) == lost
    with refused(ErrorCode.FENCED_MEMBER_EPOCH):
        group.call("m1", first.epoch, owned=ALL)
    with refused(ErrorCode.FENCED_MEMBER_EPOCH):
        group.call("m1", first.epoch)


def test_a_member_that_joins_anew_begins_without_partitions() -> None:
    group = Group()
    group.call("m1")
    again = group.call("m1")
    assert assigned(again) == ALL
    assert again.epoch == 1


def test_a_new_subscription_moves_partitions() -> None:
    group = Group()
    first = group.call("m1")
    asked = group.call("m1", first.epoch, names=frozenset({"b"}))
    assert assigned(asked) == frozenset()
    got = group.call("m1", first.epoch, owned=frozenset())
    assert assigned(got) == partitions("b", 0, 1)


def test_a_regular_expression_names_topics_as_a_whole() -> None:
    group = Group()
    answer = group.call("m1", names=None, regex="[b-c]")
    assert assigned(answer) == partitions("b", 0, 1)
    group.contents.serve(a=4, b=2, c=1, bc=1)
    assert assigned(group.call("m1", answer.epoch)) == partitions("b", 0, 1) | partitions("c", 0)


def test_a_topic_that_gets_longer_is_followed() -> None:
    group = Group()
    answer = group.call("m1")
    group.contents.serve(a=6)
    assert assigned(group.call("m1", answer.epoch)) == partitions("a", *range(6))


def test_a_topic_that_comes_later_is_followed() -> None:
    group = Group()
    answer = group.call("m1", names=frozenset({"later"}))
    assert assigned(answer) == frozenset()
    group.contents.serve(later=1)
    assert assigned(group.call("m1", answer.epoch)) == partitions("later", 0)


@pytest.mark.parametrize("regex", ["(", "a(?=b)", "((a{1000}){1000}){1000}"])
def test_what_is_no_regular_expression_is_refused(regex: str) -> None:
    group = Group()
    with refused(ErrorCode.INVALID_REGULAR_EXPRESSION):
        group.call("m1", names=None, regex=regex)
    assert not group.group.members


def test_members_vote_for_the_assignor() -> None:
    group = Group()
    group.call("m1", assignor="range")
    assert group.group.assignor == "range"
    group.call("m2", assignor="uniform")
    group.call("m3", assignor="uniform")
    assert group.group.assignor == "uniform"


def test_an_unknown_assignor_is_refused() -> None:
    with refused(ErrorCode.UNSUPPORTED_ASSIGNOR) as error:
        Group().call("m1", assignor="own")
    assert error.value.message == "ServerAssignor own is not supported. Supported assignors: uniform, range."


@pytest.mark.parametrize(
    "changes", [{"rebalance_seconds": None}, {"owned": partitions("a", 0)}, {"names": None}], ids=str
)
def test_a_join_has_to_be_whole(changes: dict[str, Any]) -> None:
    with refused(ErrorCode.INVALID_REQUEST):
        Group().call("m1", **changes)


def test_a_group_is_bounded() -> None:
    group = Group()
    for number in range(MOST_MEMBERS):
        group.group.members[f"m{number}"] = ConsumerMember(f"m{number}", None)
    with refused(ErrorCode.GROUP_MAX_SIZE_REACHED):
        group.call("one more")


# Static members.


def test_a_static_member_that_pauses_comes_back_to_its_partitions() -> None:
    group = Group()
    first = group.call("m1", instance_id="one")
    assert group.call("m1", -2, instance_id="one") == MemberAnswer("m1", -2, None)
    other = group.call("m2")
    assert assigned(other) == frozenset(), "the one that pauses keeps its partitions"
    again = group.call("m3", instance_id="one")
    kept = assigned(again)
    assert kept < assigned(first)
    assert assigned(group.call("m2", other.epoch)) == ALL - kept


def test_a_static_member_that_stays_away_is_removed() -> None:
    group = Group()
    group.call("m1", instance_id="one")
    group.call("m1", -2, instance_id="one")
    group.group.pass_time(group.now + SESSION_SECONDS)
    assert not group.group.members


def test_nobody_takes_the_place_of_a_static_member_that_is_there() -> None:
    group = Group()
    group.call("m1", instance_id="one")
    with refused(ErrorCode.UNRELEASED_INSTANCE_ID):
        group.call("m2", instance_id="one")
    with refused(ErrorCode.FENCED_INSTANCE_ID):
        group.call("m2", 1, instance_id="one")
    with refused(ErrorCode.FENCED_INSTANCE_ID):
        group.call("m2", -1, instance_id="one")


# Commits.


def test_members_commit_in_their_epoch() -> None:
    group = Group()
    first = group.call("m1")
    group.group.check_commit("m1", first.epoch, group.now)
    with refused(ErrorCode.STALE_MEMBER_EPOCH):
        group.group.check_commit("m1", first.epoch - 1, group.now)
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        group.group.check_commit("", -1, group.now)


def test_tools_commit_to_a_group_without_members() -> None:
    group = Group()
    group.group.check_commit("", -1, group.now)
    group.call("m1")
    group.call("m1", -1)
    group.group.check_commit("", -1, group.now)
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        group.group.check_commit("m1", 1, group.now)
