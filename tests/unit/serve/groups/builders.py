"""Calls of members with defaults, and contents that a coordinator serves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import pytest

from kbackup.serve.groups.assignors import AssignedPartition
from kbackup.serve.groups.classic import ClassicGroup, JoinCall, Joined, SyncCall, Synced
from kbackup.serve.groups.consumer import MemberCall
from kbackup.serve.groups.delayed import DelayedAnswer
from kbackup.serve.groups.errors import GroupRequestError
from kbackup.serve.protocol import ErrorCode, ServedTopic
from kbackup.types import CommittedOffset, TopicPartition

RANGE = (("range", b"range of a"),)
SESSION = 10.0
REBALANCE = 60.0


def a_join(member_id: str = "", **changes: Any) -> JoinCall:
    """A join of a dynamic member whose first request makes it one."""
    fields = {
        "member_id": member_id,
        "instance_id": None,
        "client_id": "client",
        "host": "127.0.0.1",
        "session_seconds": SESSION,
        "rebalance_seconds": REBALANCE,
        "protocol_type": "consumer",
        "protocols": RANGE,
        "needs_known_id": False,
        "can_skip_assignment": True,
    }
    return JoinCall(**{**fields, **changes})


def a_sync(joined: Joined, assignments: Mapping[str, bytes] | None = None, **changes: Any) -> SyncCall:
    fields = {
        "member_id": joined.member_id,
        "instance_id": None,
        "generation": joined.generation,
        "protocol_type": joined.protocol_type,
        "protocol": joined.protocol,
        "assignments": assignments or {},
    }
    return SyncCall(**{**fields, **changes})


def a_member_call(member_id: str, epoch: int = 0, **changes: Any) -> MemberCall:
    """A heartbeat of the new protocol: with epoch 0 a join to topic a, later one without news."""
    fields = {
        "member_id": member_id,
        "epoch": epoch,
        "instance_id": None,
        "rack_id": None,
        "client_id": "client",
        "host": "127.0.0.1",
        "rebalance_seconds": REBALANCE if epoch == 0 else None,
        "names": frozenset({"a"}) if epoch == 0 else None,
        "regex": None,
        "assignor": None,
        "owned": frozenset() if epoch == 0 else None,
    }
    return MemberCall(**{**fields, **changes})


def error_of(pending: DelayedAnswer[Any]) -> ErrorCode:
    """Return the error that was given instead of an answer."""
    with pytest.raises(GroupRequestError) as error:
        pending.result()
    return error.value.code


def topic_id(name: str) -> UUID:
    return UUID(bytes=name.encode().ljust(16, b"."))


def partitions(name: str, *numbers: int) -> frozenset[AssignedPartition]:
    return frozenset(AssignedPartition(topic_id(name).bytes, number) for number in numbers)


def committed(topic: str, partition: int, offset: int, metadata: str = "") -> CommittedOffset:
    return CommittedOffset(TopicPartition(topic, partition), offset, None, metadata)


class Contents:
    """Topics with their partitions, and archived groups."""

    def __init__(self, **partitions: int) -> None:
        self.served: dict[str, ServedTopic] = {}
        self.archived: dict[str, Sequence[CommittedOffset]] = {}
        self.serve(**partitions)

    def serve(self, **partitions: int) -> None:
        """Serve these topics from now on, instead of those before."""
        self.served = {name: ServedTopic(name, topic_id(name), count) for name, count in partitions.items()}

    def topics(self) -> Mapping[str, ServedTopic]:
        return self.served

    def groups(self) -> Mapping[str, Sequence[CommittedOffset]]:
        return self.archived

    def address(self) -> tuple[str, int]:
        return ("serve.example", 9092)


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def first_generation(group: ClassicGroup, now: float, count: int = 1, **changes: Any) -> list[Joined]:
    """Let members join a new group, and the first rebalance end: the leader comes first."""
    pending = [group.join(a_join(**changes), now) for _ in range(count)]
    group.pass_time(group.next_deadline())
    return [each.result() for each in pending]


def stable_group(now: float, count: int = 1, **changes: Any) -> tuple[ClassicGroup, list[Joined]]:
    """Return a group whose members have got their assignments: each its own member id."""
    group = ClassicGroup("g")
    joined = first_generation(group, now, count, **changes)
    settle(group, joined, now)
    return group, joined


def settle(group: ClassicGroup, joined: Sequence[Joined], now: float) -> list[Synced]:
    """Let all members sync, the leader last."""
    assignments = {each.member_id: each.member_id.encode() for each in joined}
    followers = [each for each in joined if each.member_id != each.leader]
    leaders = [each for each in joined if each.member_id == each.leader]
    pending = [group.sync(a_sync(each), now) for each in followers]
    pending += [group.sync(a_sync(each, assignments), now) for each in leaders]
    return [each.result() for each in pending]
