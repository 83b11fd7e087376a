"""Committed offsets and descriptions of consumer groups, read and set.

A broker that has just started lists no group of a partition that it does not lead yet, and reports no error. Asked for
the offsets of one group, it answers with an error until it has loaded the group's partition.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import ConsumerGroupState, KafkaError, TopicCollection
from confluent_kafka.admin import AdminClient

from kbackup.kafka.client import Connection
from kbackup.kafka.groups.calls import AT_ONCE, GroupCalls
from kbackup.kafka.retry import COORDINATOR_NOT_READY, TIMEOUT, Answers, answered, ask_until_ready, list_until_ready
from kbackup.types import CommittedOffset
from kbackup.util.text import plural

if TYPE_CHECKING:
    from kbackup.kafka.groups.share import ShareCalls

A = TypeVar("A")
OffsetsByGroup = Mapping[str, Sequence[CommittedOffset]]

OFFSETS_TOPIC = "__consumer_offsets"
OTHER = "other"
"""The type of a share or a streams group whose coordinator does not tell it."""

_NO_SUCH_GROUP = "brokers list it, and have no group of that name: librdkafka cuts a name at a NUL byte"

_COMMIT_BYTES = 256 << 10  # of one commit, which becomes one batch of the offsets topic (1 MiB by default)
_ENTRY_BYTES = 100  # of an offset without names and metadata, generously
_GROUP = "kbackup-groups"
"""The group of a consumer that only asks about others: librdkafka wants one, and nothing is ever committed to it."""
_SHORT_TIMEOUT = 5.0  # s
_GONE = KafkaError.GROUP_ID_NOT_FOUND


def probe_groups(partitions: int) -> list[str]:
    """Return a group name for each of the `partitions` of `OFFSETS_TOPIC`, in their order."""
    names: dict[int, str] = {}
    numbers = count()
    while len(names) < partitions:
        name = f"kbackup-probe-{next(numbers)}"
        names.setdefault(partition_of(name, partitions), name)
    return [names[partition] for partition in range(partitions)]


def partition_of(group: str, partitions: int) -> int:
    """Return the partition that brokers keep a group in: of the hash that Java gives an ASCII name."""
    code = 0
    for byte in group.encode("ascii"):
        code = (code * 31 + byte) & 0xFFFFFFFF
    signed = code - (1 << 32) if code >> 31 else code
    return 0 if signed == -(1 << 31) else abs(signed) % partitions


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """`type` is classic, consumer, share, streams or `OTHER`, in lower case as `state`, which is '' for `OTHER`."""

    group: str
    type: str
    state: str


class GroupAdmin:
    """Consumer groups as the admin API shows them, and what may be changed of them. Raises `UnreachableError` or
    `ClusterError` if no group can be read; an error of one group is returned.

    Requests for many groups go out together, a bounded number at a time; those whose coordinator is just being elected
    or is loading are asked again for a while. `share` are those of the groups that are share groups: their offsets are
    the start offsets of partitions.
    """

    def __init__(self, connection: Connection, admin: AdminClient) -> None:
        self.connection = connection
        self._admin = admin
        self._patience = TIMEOUT  # of a listing

    @contextmanager
    def _calls(self, timeout: float = TIMEOUT) -> Iterator[GroupCalls]:
        """Yield calls over a consumer that joins nothing. Over an admin client librdkafka 2.16 ends the process where a
        broker answers NOT_COORDINATOR: it refers that error to the client's own group, which an admin client lacks."""
        with closing(self.connection.consumer({"group.id": _GROUP, "enable.auto.commit": False})) as consumer:
            yield GroupCalls(consumer, timeout)

    def listed(self) -> tuple[list[GroupInfo], dict[str, str]]:
        """Return every group that can be asked about, whatever its kind; and for others why not. Brokers that could not
        list theirs have a number for a name. A listing after one that waited in vain waits `_SHORT_TIMEOUT`."""
        with self._calls(self._patience) as calls:
            not_ready = {**COORDINATOR_NOT_READY, KafkaError._TRANSPORT: _SHORT_TIMEOUT}  # a broker has just gone
            found, failed = list_until_ready(lambda: self._ask_every_broker(calls), not_ready)
        kinds = self._kinds([name for name, info in found.items() if info.type == OTHER])
        found |= {name: GroupInfo(name, *kind) for name, kind in kinds.items()}
        self._patience = _SHORT_TIMEOUT if KafkaError._TIMED_OUT in {e.code() for e in failed.values()} else TIMEOUT
        listed = [info for name, info in sorted(found.items()) if name not in failed]
        return listed, {name: error.str() for name, error in failed.items()}

    def _ask_every_broker(self, calls: GroupCalls) -> tuple[dict[str, GroupInfo], dict[str, KafkaError]]:
        """Ask every broker once. Coordinators are asked before: one that is not ready lists less than it has. A user
        without Describe on the groups or on `OFFSETS_TOPIC` gets no answer from them."""
        unseen = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED)  # no group has committed yet
        asked = self._admin.describe_topics(TopicCollection([OFFSETS_TOPIC]), request_timeout=TIMEOUT)[OFFSETS_TOPIC]
        topic = self.connection.result(asked, f"describing topic {OFFSETS_TOPIC}", lambda error: error.code() in unseen)
        answers = calls.committed(probe_groups(len(topic.partitions) if topic is not None else 0))
        silent = (*COORDINATOR_NOT_READY, KafkaError._TIMED_OUT)
        errors = [e for _, e in answers if isinstance(e, KafkaError) and e.code() in silent]
        named, missing = calls.names()
        listing = self.connection.result(
            self._admin.list_consumer_groups(request_timeout=self._patience), "listing consumer groups"
        )
        errors += [*(listing.errors or []), *filter(None, [missing])]
        reasons = {error.str(): error for error in errors}
        failed = {f"(listing {number})": error for number, error in enumerate(reasons.values(), 1)}
        groups = {
            g.group_id: GroupInfo(g.group_id, *(v.name.lower() if v is not None else "" for v in (g.type, g.state)))
            for g in listing.valid
        }
        for group in named:
            known = groups.get(group.group)
            if group.error is not None and group.error.code() in COORDINATOR_NOT_READY:
                failed[group.group] = group.error
            elif known is None:
                kind = ("classic", group.state.lower()) if group.protocol_type else (OTHER, "")
                groups[group.group] = GroupInfo(group.group, *kind)
            elif known.type == "classic" and group.state == "Dead":
                failed[group.group] = KafkaError(KafkaError._INVALID_ARG, _NO_SUCH_GROUP)
        return groups, failed

    def _share_calls(self) -> ShareCalls:
        from kbackup.kafka.groups.share import ShareCalls  # which loads kafka-python

        return ShareCalls(self.connection)

    def _kinds(self, groups: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Return type and state of those of the groups whose coordinators tell."""
        return ask_until_ready(groups, self._share_calls().kinds, COORDINATOR_NOT_READY)[0] if groups else {}

    def _ask(
        self,
        groups: Iterable[str],
        share: Container[str],
        ask: Callable[[GroupCalls | ShareCalls, list[str]], Answers[str, A]],
    ) -> tuple[dict[str, A], dict[str, KafkaError]]:
        """Ask about groups until their coordinators are ready, by the calls of their kind."""
        with self._calls() as calls:

            def both(batch: list[str]) -> Answers[str, A]:
                yield from ask(calls, [group for group in batch if group not in share])
                if ours := [group for group in batch if group in share]:
                    yield from ask(self._share_calls(), ours)

            return ask_until_ready(groups, both, COORDINATOR_NOT_READY)

    def committed(
        self, groups: Iterable[str], share: Container[str] = ()
    ) -> tuple[dict[str, list[CommittedOffset]], dict[str, str]]:
        """Return every committed offset by group, and the reasons why other groups could not be read."""
        found, failed = self._ask(groups, share, lambda calls, batch: calls.committed(batch))
        ordered = {group: sorted(offsets, key=lambda c: c.tp) for group, offsets in found.items()}
        return ordered, self._why(failed, "reading offsets of")

    def members(self, groups: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
        """Return the live members by group, such as '2 live members', '' for none, and the reasons why other groups
        can't be described. A group that does not exist has no members."""
        ask = partial(_futures, self._admin.describe_consumer_groups)
        answers, failed = ask_until_ready(groups, ask, COORDINATOR_NOT_READY)
        found = {g: plural(n, "live member") if (n := len(a.members)) else "" for g, a in answers.items()}
        gone = [group for group, error in failed.items() if error.code() == _GONE]
        found |= dict.fromkeys(gone, "")
        # brokers call a share or a streams group dead, or say that it is not there
        kinds = self._kinds([*gone, *(g for g, answer in answers.items() if answer.state == ConsumerGroupState.DEAD)])
        found |= {group: "live members" for group, (_, state) in kinds.items() if state != "empty"}
        return found, self._why({g: e for g, e in failed.items() if g not in gone}, "describing")

    def commit(self, group: str, offsets: Sequence[CommittedOffset]) -> str:
        """Set a group's offsets; return '' or why the broker refused (a live member, for instance)."""
        return self.commit_all({group: offsets})[group]

    def commit_all(self, offsets_by_group: OffsetsByGroup, share: Container[str] = ()) -> dict[str, str]:
        """Set the offsets of many groups at once; return, by group, '' or why the broker refused.

        Some offsets of a refused group may be set.
        """
        portions = {group: deque(_portions(offsets)) for group, offsets in offsets_by_group.items()}
        refusals = dict.fromkeys(offsets_by_group, "")
        while going := {group: remaining[0] for group, remaining in portions.items() if remaining}:

            def commit(
                calls: GroupCalls | ShareCalls, batch: list[str], now: OffsetsByGroup = going
            ) -> Answers[str, Any]:
                return calls.commit({group: now[group] for group in batch})

            _, refused = self._ask(going, share, commit)
            for group in going:
                portions[group].popleft()
            for group, why in self._why(refused, "setting offsets of").items():
                portions[group].clear()
                refusals[group] = why
        return refusals

    def remove(self, offsets_by_group: OffsetsByGroup, share: Container[str] = ()) -> dict[str, str]:
        """Delete the offsets that groups have committed for these partitions.

        Returns, by group, '' or why the broker refused.
        """
        answers, failed = self._ask(
            offsets_by_group, share, lambda calls, batch: calls.delete({g: offsets_by_group[g] for g in batch})
        )
        gone = [group for group, error in failed.items() if error.code() == _GONE]
        return self._why(failed, "deleting offsets of") | dict.fromkeys([*answers, *gone], "")

    def delete(self, groups: Iterable[str]) -> None:
        """Delete groups; raises for the first group that can't be deleted. A missing group counts as deleted."""
        for group, error in self._delete(groups).items():
            raise self.connection.error(error, f"deleting group {group}")

    def delete_each(self, groups: Iterable[str]) -> dict[str, str]:
        """Delete groups and return, by group, '' or why the broker refused; a missing group counts as deleted."""
        names = list(groups)
        return dict.fromkeys(names, "") | self._why(self._delete(names), "deleting")

    def _delete(self, groups: Iterable[str]) -> dict[str, KafkaError]:
        """Return the error of each group that is still there."""
        ask = partial(_futures, self._admin.delete_consumer_groups)
        _, refused = ask_until_ready(groups, ask, COORDINATOR_NOT_READY)
        return {group: error for group, error in refused.items() if error.code() != _GONE}

    def _why(self, failed: Mapping[str, KafkaError], doing: str) -> dict[str, str]:
        return {
            group: self.connection.error(error, f"{doing} group {group}").message for group, error in failed.items()
        }


def _futures(request: Callable[..., Mapping[str, Future[Any]]], groups: Iterable[str]) -> Answers[str, Any]:
    """Yield each group with its answer; at most `AT_ONCE` requests are under way."""
    under_way: deque[tuple[str, Future[Any]]] = deque()
    for group in groups:
        try:
            under_way.append((group, request([group], request_timeout=TIMEOUT)[group]))
        except (TypeError, ValueError) as error:  # a name that the library can't send
            yield group, KafkaError(KafkaError._INVALID_ARG, str(error))
        if len(under_way) == AT_ONCE:
            yield answered(*under_way.popleft())
    while under_way:
        yield answered(*under_way.popleft())


def _portions(offsets: Sequence[CommittedOffset]) -> Iterator[list[CommittedOffset]]:
    """Split offsets into lists that fit into one commit each."""
    commit: list[CommittedOffset] = []
    size = 0
    for each in offsets:
        entry = _ENTRY_BYTES + len(each.tp.topic) + len(each.metadata.encode())
        if commit and size + entry > _COMMIT_BYTES:
            yield commit
            commit, size = [], 0
        commit.append(each)
        size += entry
    if commit:
        yield commit
