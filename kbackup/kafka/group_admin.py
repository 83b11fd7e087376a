"""Consumer groups as the admin API shows them, and what may be changed of them.

Requests for many groups go out together, a bounded number at a time; those whose coordinator is just being
elected or is loading are asked again for a while.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import AdminClient

from kbackup.kafka.client import COORDINATOR_NOT_READY, TIMEOUT, Connection
from kbackup.types import TopicPartition

_AT_ONCE = 200  # requests under way: those that wait longer in librdkafka than its timeout would fail
_PAUSE = 0.3  # s, before a coordinator that is not ready is asked again
_COMMIT_BYTES = 256 << 10  # of one commit, which becomes one batch of the offsets topic (1 MiB by default)
_ENTRY_BYTES = 100  # of an offset without names and metadata, generously

Asked = tuple[dict[str, Any], dict[str, KafkaError]]


@dataclass(frozen=True, slots=True)
class Committed:
    """A group's committed offset of a partition: the next to read."""

    tp: TopicPartition
    offset: int
    leader_epoch: int | None
    metadata: str


@dataclass(frozen=True, slots=True)
class GroupInfo:
    group: str
    type: str
    state: str


class GroupAdmin:
    """Raises `UnreachableError` or `ClusterError` where nothing can be said of any group; what a broker says of
    one group is returned."""

    def __init__(self, connection: Connection, admin: AdminClient) -> None:
        self.connection = connection
        self._admin = admin

    def listed(self) -> tuple[list[GroupInfo], list[str]]:
        """The consumer groups, and what brokers said that could not list theirs."""
        listing = self.connection.result(
            self._admin.list_consumer_groups(request_timeout=TIMEOUT), "listing consumer groups"
        )
        found = [
            GroupInfo(g.group_id, _name(getattr(g, "type", None)), _name(getattr(g, "state", None)))
            for g in listing.valid
        ]
        return sorted(found, key=lambda g: g.group), [str(error) for error in listing.errors or []]

    def committed(self, groups: Iterable[str]) -> tuple[dict[str, list[Committed]], dict[str, str]]:
        """Every committed offset of each group; and, for groups that could not be read, why."""

        def ask(group: str) -> Future[Any]:
            request = [ConsumerGroupTopicPartitions(group)]
            (future,) = self._admin.list_consumer_group_offsets(request, request_timeout=TIMEOUT).values()
            return future

        answers, failed = self._ask(groups, ask)
        return {group: _offsets_of(answer) for group, answer in answers.items()}, {
            group: self._why(error, f"reading offsets of group {group}") for group, error in failed.items()
        }

    def members(self, groups: Iterable[str]) -> dict[str, int]:
        """How many live members each group has; 0 for a group that is not there."""
        found: dict[str, int] = {}
        for some in _batched(groups, _AT_ONCE):
            futures = self._admin.describe_consumer_groups(some, request_timeout=TIMEOUT)
            for group, future in futures.items():
                described = self.connection.result(future, f"describing group {group}", missing=_no_group)
                found[group] = len(described.members) if described is not None else 0
        return found

    def commit(self, group: str, offsets: Sequence[Committed]) -> str:
        """Set a group's offsets; returns '' or why the broker refused (a live member, for instance)."""
        return self.commit_all({group: offsets})[group]

    def commit_all(self, wanted: Mapping[str, Sequence[Committed]]) -> dict[str, str]:
        """`commit` for each group, many at once. Of a group that was refused, a first part may be set."""
        portions = {group: deque(_portions(offsets)) for group, offsets in wanted.items()}
        said = dict.fromkeys(wanted, "")
        while going := [group for group, left in portions.items() if left]:
            _, refused = self._ask(going, lambda group: self._alter(group, portions[group][0]))
            for group in going:
                portions[group].popleft()
            for group, error in refused.items():
                portions[group].clear()
                said[group] = self._why(error, f"setting offsets of group {group}")
        return said

    def _alter(self, group: str, offsets: Sequence[Committed]) -> Future[Any]:
        partitions = [
            KafkaTopicPartition(
                c.tp.topic,
                c.tp.partition,
                c.offset,
                metadata=c.metadata,
                leader_epoch=-1 if c.leader_epoch is None else c.leader_epoch,
            )
            for c in offsets
        ]
        request = [ConsumerGroupTopicPartitions(group, partitions)]
        (future,) = self._admin.alter_consumer_group_offsets(request, request_timeout=TIMEOUT).values()
        return future

    def delete(self, groups: Iterable[str]) -> None:
        """Delete groups; one that is not there counts as deleted."""
        for some in _batched(groups, _AT_ONCE):
            futures = self._admin.delete_consumer_groups(some, request_timeout=TIMEOUT)
            for group, future in futures.items():
                self.connection.result(future, f"deleting group {group}", missing=_no_group)

    def _ask(self, groups: Iterable[str], ask: Callable[[str], Future[Any]]) -> Asked:
        """What was answered for each group, and what was refused."""
        found: dict[str, Any] = {}
        failed: dict[str, KafkaError] = {}
        waiting = list(groups)
        until = time.monotonic() + TIMEOUT
        while waiting:
            failed = {group: error for group, error in failed.items() if group not in waiting}
            for group, answer in self._answers(waiting, ask):
                if isinstance(answer, KafkaError):
                    failed[group] = answer
                else:
                    found[group] = answer
            late = time.monotonic() > until
            waiting = [g for g, error in failed.items() if error.code() in COORDINATOR_NOT_READY and not late]
            if waiting:
                time.sleep(_PAUSE)
        return found, failed

    def _answers(self, groups: Iterable[str], ask: Callable[[str], Future[Any]]) -> Iterator[tuple[str, Any]]:
        """Each group with its partitions, or with the first error among them; never too many on the way."""
        under_way: deque[tuple[str, Future[Any]]] = deque()
        for group in groups:
            under_way.append((group, ask(group)))
            if len(under_way) == _AT_ONCE:
                yield _answer(*under_way.popleft())
        while under_way:
            yield _answer(*under_way.popleft())

    def _why(self, error: KafkaError, doing: str) -> str:
        return self.connection.error(error, doing).message


def _answer(group: str, future: Future[Any]) -> tuple[str, Any]:
    try:
        partitions = future.result(timeout=TIMEOUT * 2).topic_partitions
    except KafkaException as raised:
        return group, raised.args[0]
    return group, next((p.error for p in partitions if p.error is not None), partitions)


def _offsets_of(partitions: Sequence[KafkaTopicPartition]) -> list[Committed]:
    return [
        Committed(TopicPartition(p.topic, p.partition), p.offset, p.leader_epoch, p.metadata or "")
        for p in sorted(partitions, key=lambda p: (p.topic, p.partition))
        if p.offset >= 0
    ]


def _portions(offsets: Sequence[Committed]) -> Iterator[list[Committed]]:
    """What one commit may hold."""
    some: list[Committed] = []
    size = 0
    for each in offsets:
        entry = _ENTRY_BYTES + len(each.tp.topic) + len(each.metadata.encode())
        if some and size + entry > _COMMIT_BYTES:
            yield some
            some, size = [], 0
        some.append(each)
        size += entry
    if some:
        yield some


def _batched(groups: Iterable[str], size: int) -> Iterator[list[str]]:
    ordered = sorted(groups)
    for at in range(0, len(ordered), size):
        yield ordered[at : at + size]


def _no_group(error: KafkaError) -> bool:
    return error.code() == KafkaError.GROUP_ID_NOT_FOUND


def _name(value: Any) -> str:
    return "" if value is None else str(value.name).lower()
