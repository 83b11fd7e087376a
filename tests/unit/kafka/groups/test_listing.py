"""Listings of groups while brokers load the partitions that hold them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError

from kbackup.kafka.client import Connection
from kbackup.kafka.groups.admin import GroupAdmin, GroupInfo, partition_of, probe_groups
from kbackup.kafka.groups.calls import Answer, GroupCalls, Named
from tests.unit.kafka.client.test_retry import Admin

LOADING = KafkaError.COORDINATOR_LOAD_IN_PROGRESS
BILLING = GroupInfo("billing", "classic", "empty")
CONNECT = Named("connect", "Stable", "connect")


@dataclass
class Listings:
    """The answers of brokers to each listing in turn; the last answer repeats."""

    names: list[tuple[list[Named], KafkaError | None]] = field(default_factory=lambda: [([], None)])
    errors: list[list[KafkaError]] = field(default_factory=lambda: [[]])
    probes: list[Answer] = field(default_factory=lambda: [[]])
    partitions: int = 3

    def groups(self, monkeypatch: pytest.MonkeyPatch) -> GroupAdmin:
        connection = Connection({"bootstrap.servers": "127.0.0.1:1"}, "source")
        groups = GroupAdmin(connection, cast(Any, self))
        calls = SimpleNamespace(names=lambda: _next(self.names), committed=self._committed)
        monkeypatch.setattr(groups, "_calls", lambda: nullcontext(cast(GroupCalls, calls)))
        return groups

    def _committed(self, names: Iterable[str]) -> Iterator[tuple[str, Answer]]:
        answer = _next(self.probes)
        return ((name, answer) for name in names)

    def describe_topics(self, asked: Any, **_: object) -> dict[str, Any]:
        described = SimpleNamespace(partitions=range(self.partitions))
        return {name: _done(described) for name in asked.topic_names}

    def list_consumer_groups(self, **_: object) -> Any:
        billing = SimpleNamespace(
            group_id="billing", type=SimpleNamespace(name="CLASSIC"), state=SimpleNamespace(name="EMPTY")
        )
        return _done(SimpleNamespace(valid=[billing], errors=_next(self.errors)))


def _done(value: object) -> Any:
    return Admin()._answer(value)


def _next(answers: list[Any]) -> Any:
    return answers.pop(0) if len(answers) > 1 else answers[0]


@pytest.mark.parametrize(
    "listings",
    [
        Listings(names=[([], KafkaError(LOADING)), ([], None)]),
        Listings(names=[([Named("billing", "", "", KafkaError(LOADING))], None), ([], None)]),
        Listings(errors=[[KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE)], []]),
        Listings(probes=[KafkaError(KafkaError.NOT_COORDINATOR), []]),
    ],
    ids=["every kind", "one group", "consumer groups", "a partition without a word"],
)
def test_groups_are_listed_again_while_a_coordinator_loads(
    listings: Listings, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    assert listings.groups(monkeypatch).listed() == ([BILLING], {})
    assert len(clock) == 1


def test_a_group_keeps_its_type_when_its_coordinator_has_loaded(
    monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    loading = Named("connect", "", "", KafkaError(LOADING))
    listed, failed = Listings(names=[([loading], None), ([CONNECT], None)]).groups(monkeypatch).listed()
    assert (listed, failed) == ([BILLING, GroupInfo("connect", "classic", "stable")], {})


def test_a_coordinator_that_never_loads_is_named_once(
    monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    loading = KafkaError(LOADING)
    listings = Listings([([Named("billing", "", "", loading)], loading)], [[loading]], [loading])
    listed, failed = listings.groups(monkeypatch).listed()
    assert (listed, failed) == ([], dict.fromkeys(["(listing 1)", "billing"], loading.str()))
    assert 30 <= sum(clock) < 31


@pytest.mark.parametrize("code", [KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.INVALID_GROUP_ID])
def test_coordinators_that_do_not_answer_our_user_are_not_waited_for(
    code: int, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    assert Listings(probes=[KafkaError(code)]).groups(monkeypatch).listed() == ([BILLING], {})
    assert clock == []


@pytest.mark.parametrize("partitions", [0, 1, 4, 50, 300])
def test_there_is_a_probe_for_every_partition(partitions: int) -> None:
    probes = probe_groups(partitions)
    assert [partition_of(probe, partitions) for probe in probes] == [*range(partitions)]


@pytest.mark.parametrize(
    ("group", "code"),  # of String.hashCode in Java
    [("", 0), ("abc", 96354), ("kbackup", -923059731), ("polygenelubricants", -(1 << 31))],
)
def test_groups_are_in_the_partition_of_java_s_hash(group: str, code: int) -> None:
    assert partition_of(group, 1 << 31) == (0 if code == -(1 << 31) else abs(code))
