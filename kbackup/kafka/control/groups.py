"""Consumer groups and share groups: which there are, who is in them, what they have committed; and changes of it.

A broker that has just started lists no group of a partition that it does not lead yet, and reports no error. Asked for
the offsets of one group, it answers with an error until it has loaded the group's partition.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

from confluent_kafka import KafkaError

from kbackup.kafka.control.connection import BrokerConnection
from kbackup.kafka.control.errors import (
    NOT_A_BROKER,
    REQUEST_SECONDS,
    RefusedRequestError,
    RequestError,
    broker_error,
    pauses,
)
from kbackup.kafka.control.messages import (
    ConsumerGroupDescribeRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)
from kbackup.kafka.control.router import Answers, Brokers, Coordinators, Question, Router, explained, numbers_by_topic
from kbackup.kafka.control.share import alter_share_offsets, share_offsets
from kbackup.types import CommittedOffset, TopicPartition
from kbackup.util.text import plural

A = TypeVar("A")
OffsetsByGroup = Mapping[str, Sequence[CommittedOffset]]

OFFSETS_TOPIC = "__consumer_offsets"

_GROUPS_AT_ONCE = 200
"""Groups that one request asks about. Their answer has to fit into one message of the broker's; where it does not, they
are asked about one by one."""

_FIRST_WITH_MANY_GROUPS = 8  # version of OffsetFetch (brokers since 3.2)
_FIRST_WITH_STABLE = 7  # version of OffsetFetch (brokers since 2.5)
_LAST_WITH_TOPIC_NAMES = 9  # version of OffsetFetch and OffsetCommit; newer ones name topics by their ids
_FIRST_WITH_TYPES = 5  # version of ListGroups (brokers since 3.8)

_COMMIT_BYTES = 256 << 10  # of one commit, which becomes one batch of the offsets topic (1 MiB by default)
_ENTRY_BYTES = 100  # of an offset without names and metadata, generously

_SHORT_SECONDS = 5.0
_GONE = KafkaError.GROUP_ID_NOT_FOUND
_NOT_READY = (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR)
"""The coordinator was just elected, or its partition was just created."""

_BROKER_GONE = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, NOT_A_BROKER)
"""The broker has just gone, and the others still name it."""

_FINAL = (KafkaError.UNKNOWN_TOPIC_OR_PART,)
"""What no waiting mends: offsets are set for topics that have been there for long, or are gone for good."""


def probe_groups(partitions: int) -> list[str]:
    """Return a group name for each of the `partitions` of `OFFSETS_TOPIC`, in their order."""
    names: dict[int, str] = {}
    numbers = count()
    while len(names) < partitions:
        name = f"kbackup-probe-{next(numbers)}"
        names.setdefault(partition_of(name, partitions), name)
    return [names[partition] for partition in range(partitions)]


def partition_of(group: str, partitions: int) -> int:
    """Return the partition that brokers keep a group in. They choose it by the name's `String.hashCode` in Java, which
    for ASCII is computed from the bytes."""
    code = 0
    for byte in group.encode("ascii"):
        code = (code * 31 + byte) & 0xFFFFFFFF
    signed = code - (1 << 32) if code >> 31 else code
    # The smallest number has no absolute value in Java; Kafka takes 0 for it.
    return 0 if signed == -(1 << 31) else abs(signed) % partitions


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """`type` is classic, consumer, share or streams, in lower case as `state`. Brokers before 3.8 don't tell the type
    of consumers' groups: it is unknown."""

    group: str
    type: str
    state: str


class GroupAdmin:
    """Groups of every kind, and what may be changed of them. Raises `UnreachableError` or `ClusterError` if no group
    can be read; an error of one group is returned.

    Groups whose coordinator is just being elected or is loading are asked about again for a while. `share` names the
    share groups among the groups of a call: their offsets are the start offsets of partitions.

    `patience` is how many seconds brokers may take to answer a listing, `short_patience` how many after a listing that
    waited in vain.
    """

    def __init__(
        self, router: Router, patience: float = REQUEST_SECONDS, short_patience: float = _SHORT_SECONDS
    ) -> None:
        self.connection = router.connection
        self._router = router
        self._usual_patience = patience
        self._short_patience = short_patience
        self._patience = patience

    # Which groups there are.

    def listed(self) -> tuple[list[GroupInfo], dict[str, str]]:
        """Return every group that some broker lists, whatever its kind; and why other groups may be missing, by
        placeholders such as "(listing 1)": a broker that can't list its groups does not say how they are called. After
        a listing that waited for an answer in vain, the next one waits `short_patience` alone."""
        began = time.monotonic()
        pause = pauses()
        while True:
            elapsed = time.monotonic() - began
            groups, errors = self._ask_every_broker()
            # The listing is made again as a whole: meanwhile, coordinators move between brokers, and their groups with
            # them.
            longest_wait = max(map(_waiting_time, errors), default=0.0)
            if elapsed >= longest_wait:
                break
            time.sleep(next(pause))
        codes = {error.code() for error in errors}
        # The next listing does not wait as long again for a broker that stays silent.
        self._patience = self._short_patience if KafkaError._TIMED_OUT in codes else self._usual_patience
        # Brokers that fail for the same reason are named once.
        reasons = dict.fromkeys(error.str() for error in errors)
        failed = {f"(listing {number})": reason for number, reason in enumerate(reasons, 1)}
        return [groups[name] for name in sorted(groups)], failed

    def _ask_every_broker(self) -> tuple[dict[str, GroupInfo], list[KafkaError]]:
        """Ask every broker once; return the groups by name, and the errors of brokers."""
        try:
            metadata = self._router.metadata([OFFSETS_TOPIC])
        except RequestError as error:
            raise explained(self.connection, error, "listing consumer groups") from error
        # There are none before a group has committed, or for a user who may not see the topic.
        partitions = sum(len(topic.partitions) for topic in metadata.topics)
        errors = self._unready_coordinators(partitions)
        nodes = [broker.node_id for broker in metadata.brokers]
        listings, refused = self._router.ask_each(nodes, _LISTING, Brokers(), again=False, seconds=self._patience)
        errors.extend(refused.values())
        groups: dict[str, GroupInfo] = {}
        for listing in listings.values():
            for group in listing:
                groups[group.group] = group
        return groups, errors

    def _unready_coordinators(self, partitions: int) -> list[KafkaError]:
        """Return the errors of partitions of `OFFSETS_TOPIC` whose coordinators don't list their groups yet.

        A coordinator that still loads a partition lists less than it has, and reports no error. Asked about a group of
        that partition, it does, whether there is such a group or not. Other errors are of no interest: a user without
        Describe on the groups or on the topic gets nothing else."""
        coordinators = Coordinators(self._router)
        probes = probe_groups(partitions)
        question = _offsets_question(None)
        _, refused = self._router.ask_each(probes, question, coordinators, again=False, seconds=self._patience)
        unready = (*_NOT_READY, KafkaError._TIMED_OUT)
        return [error for error in refused.values() if error.code() in unready]

    # What they have committed.

    def committed(
        self, groups: Iterable[str], share: Container[str] = ()
    ) -> tuple[dict[str, list[CommittedOffset]], dict[str, str]]:
        """Return every committed offset by group, and the reasons why other groups could not be read."""
        share_groups, others = _apart(groups, share)
        found, failed = self._ask(others, _offsets_question(None), NOT_A_BROKER)
        # An answer about many groups may be too large for one message, and is then none that can be read. Each of
        # these groups is asked about once more, alone.
        alone = [group for group, error in failed.items() if error.code() == NOT_A_BROKER]
        for names, question in ((alone, _offsets_question(None, at_once=1)), (share_groups, share_offsets())):
            more, refused = self._ask(names, question)
            found |= more
            failed |= refused
            for group in more:
                failed.pop(group, None)
        for offsets in found.values():
            offsets.sort(key=_by_partition)
        return found, self._why(failed, "reading offsets of")

    def commit(self, group: str, offsets: Sequence[CommittedOffset]) -> str:
        """Set a group's offsets; return '' or why the broker refused (a live member, for instance)."""
        return self.commit_all({group: offsets})[group]

    def commit_all(self, offsets_by_group: OffsetsByGroup, share: Container[str] = ()) -> dict[str, str]:
        """Set the offsets of many groups at once; return, by group, '' or why the broker refused.

        Some offsets of a refused group may be set.
        """
        waiting = {group: deque(_portions(offsets)) for group, offsets in offsets_by_group.items()}
        refusals = dict.fromkeys(offsets_by_group, "")
        # In each round, every group has one portion: a group that is refused gets no more of them.
        while True:
            portions = {group: remaining.popleft() for group, remaining in waiting.items() if remaining}
            if not portions:
                return refusals
            share_groups, others = _apart(portions, share)
            _, failed = self._ask(others, _commit_question(portions))
            _, refused = self._ask(share_groups, alter_share_offsets(portions))
            for group, why in self._why(failed | refused, "setting offsets of").items():
                waiting[group].clear()
                refusals[group] = why

    def remove(self, offsets_by_group: OffsetsByGroup, share: Container[str] = ()) -> dict[str, str]:
        """Delete the offsets that groups have committed for these partitions.

        Returns, by group, '' or why the broker refused.
        """
        share_groups, others = _apart(offsets_by_group, share)
        _, failed = self._ask(others, _removal_question(offsets_by_group))
        _, refused = self._ask(share_groups, alter_share_offsets(offsets_by_group, remove=True))
        # A group that is not there has no offsets any more, which is what was wanted.
        refusals = self._why(_present(failed | refused), "deleting offsets of")
        return dict.fromkeys(offsets_by_group, "") | refusals

    # Who is in them.

    def members(self, groups: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
        """Return the live members by group, such as '2 live members', '' for none, and the reasons why other groups
        can't be described. A group that does not exist has no members."""
        names = list(groups)
        counts, failed = self._ask(names, _CLASSIC_MEMBERS)
        # For the request that asks about classic groups, groups of other protocols are not there: today's brokers
        # refuse them, older ones call them dead.
        elsewhere = [group for group, error in failed.items() if error.code() == _GONE]
        elsewhere += [group for group, members in counts.items() if members is None]
        kinds = self._kinds(elsewhere)
        consumers = [group for group, kind in kinds.items() if kind.type == "consumer"]
        consumer_counts, refused = self._ask(consumers, _CONSUMER_MEMBERS)
        failed = _present(failed | refused)
        found = {group: "" for group in names if group not in failed}
        for group, members in (counts | consumer_counts).items():
            if members:
                found[group] = plural(members, "live member")
        # Share groups and groups of Kafka Streams are not counted: their state says enough.
        for group, kind in kinds.items():
            if kind.type != "consumer" and kind.state != "empty":
                found[group] = "live members"
        return found, self._why(failed, "describing")

    def _kinds(self, groups: Collection[str]) -> dict[str, GroupInfo]:
        """Return type and state of each group that its coordinator lists."""
        found, _ = self._ask(groups, _KINDS)
        return found

    # Their end.

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
        _, refused = self._ask(groups, _DELETION)
        return _present(refused)

    def _ask(
        self, groups: Iterable[str], question: Question[str, A], *final: int
    ) -> tuple[dict[str, A], dict[str, KafkaError]]:
        """Ask the coordinators of groups until they are ready. Names that no message can hold are refused unasked.
        Errors whose codes are `final` are not waited for."""
        askable: list[str] = []
        unaskable: dict[str, KafkaError] = {}
        for group in groups:
            why = _why_unaskable(group)
            if why:
                unaskable[group] = KafkaError(KafkaError._INVALID_ARG, why)
            else:
                askable.append(group)
        place = Coordinators(self._router)
        found, refused = self._router.ask_each(askable, question, place, final=(*_FINAL, *final))
        return found, refused | unaskable

    def _why(self, failed: Mapping[str, KafkaError], doing: str) -> dict[str, str]:
        """Return in words why each group was refused."""
        reasons: dict[str, str] = {}
        for group, error in failed.items():
            explanation = self.connection.error(error, f"{doing} group {group}")
            reasons[group] = explanation.message
        return reasons


def stable_offsets(
    router: Router, group: str, partitions: Sequence[TopicPartition]
) -> list[CommittedOffset] | KafkaError:
    """Return what a group has committed for these partitions, or why not. It is asked again while the coordinator is
    not ready, or still ends a transaction that commits offsets."""
    question = _offsets_question(partitions, stable=True)
    found, refused = router.ask_each([group], question, Coordinators(router), final=_FINAL)
    return refused[group] if group in refused else found[group]


def _waiting_time(error: KafkaError) -> float:
    """Return for how many seconds a listing that has this error is made again."""
    if error.code() in _NOT_READY:
        return REQUEST_SECONDS
    if error.code() in _BROKER_GONE:
        # Either the other brokers notice soon, or it stays away and nothing more will come of waiting.
        return _SHORT_SECONDS
    return 0.0


def _why_unaskable(group: str) -> str:
    """Return why no request can name a group, '' if one can."""
    if not group:
        return "its name is empty"
    try:
        group.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    return ""


def _apart(groups: Iterable[str], share: Container[str]) -> tuple[list[str], list[str]]:
    """Return the share groups, and the others."""
    share_groups: list[str] = []
    others: list[str] = []
    for group in groups:
        if group in share:
            share_groups.append(group)
        else:
            others.append(group)
    return share_groups, others


def _present(failed: Mapping[str, KafkaError]) -> dict[str, KafkaError]:
    """Return the errors of groups that are there."""
    return {group: error for group, error in failed.items() if error.code() != _GONE}


def _by_partition(committed: CommittedOffset) -> TopicPartition:
    return committed.tp


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


def _first_refusal(topics: Iterable[Any]) -> KafkaError | None:
    """Return the error of the first partition that has one."""
    for topic in topics:
        for partition in topic.partitions:
            if partition.error_code:
                reason = KafkaError(partition.error_code).str()
                return KafkaError(partition.error_code, f"{topic.name}-{partition.partition_index}: {reason}")
    return None


# Listing.


def _list_request(broker: BrokerConnection, _things: list[Any]) -> Any:
    return ListGroupsRequest(states_filter=[], types_filter=[])


def _listed(response: Any) -> list[GroupInfo]:
    groups: list[GroupInfo] = []
    for each in response.groups:
        state = each.group_state or ""
        groups.append(GroupInfo(each.group_id, _type_of(each), state.lower()))
    return groups


def _type_of(listed: Any) -> str:
    """Return the type of a group that a broker lists."""
    if listed.group_type:
        return str(listed.group_type).lower()
    # Brokers before 3.8 name the protocol alone. Groups of Connect and the like are classic ones; a group that was only
    # ever committed to has no protocol.
    return "unknown" if listed.protocol_type in ("", "consumer") else "classic"


def _listing(response: Any, nodes: list[int]) -> Answers[int, list[GroupInfo]]:
    yield nodes[0], _listed(response)


def _kinds(response: Any, groups: list[str]) -> Answers[str, GroupInfo]:
    listed = {each.group: each for each in _listed(response)}
    for group in groups:
        yield group, listed.get(group) or KafkaError(_GONE)


def _kinds_request(broker: BrokerConnection, _groups: list[str]) -> Any:
    request = ListGroupsRequest(states_filter=[], types_filter=["consumer", "share", "streams"])
    if broker.version_of(request) < _FIRST_WITH_TYPES:
        # Brokers before 3.8 have classic groups alone.
        raise RefusedRequestError(_GONE)
    return request


_LISTING = Question[int, list[GroupInfo]](_list_request, _listing, at_once=1)
# One listing of a broker has all its groups, however many are asked about.
_KINDS = Question[str, GroupInfo](_kinds_request, _kinds, at_once=1_000_000)


# Committed offsets.


def _offsets_question(
    partitions: Sequence[TopicPartition] | None, *, stable: bool = False, at_once: int = _GROUPS_AT_ONCE
) -> Question[str, list[CommittedOffset]]:
    """Ask for what groups have committed: for these partitions, or for all of them. `stable`: the coordinator answers
    with an error while a transaction that commits offsets is open."""
    numbers = None if partitions is None else numbers_by_topic(partitions)

    def request(broker: BrokerConnection, groups: list[str]) -> Any:
        version = broker.version_of(OffsetFetchRequest(), _LAST_WITH_TOPIC_NAMES)
        if version < _FIRST_WITH_MANY_GROUPS:
            topics = _fetch_topics(OffsetFetchRequest.OffsetFetchRequestTopic, numbers)
            return OffsetFetchRequest(group_id=groups[0], topics=topics, require_stable=stable)
        one = OffsetFetchRequest.OffsetFetchRequestGroup
        topics = _fetch_topics(one.OffsetFetchRequestTopics, numbers)
        # We are a member of none of these groups.
        asked = [one(group_id=group, member_id=None, member_epoch=-1, topics=topics) for group in groups]
        return OffsetFetchRequest(groups=asked, require_stable=stable)

    def size(broker: BrokerConnection) -> int:
        _, newest = broker.versions.get(OffsetFetchRequest.API_KEY, (0, 0))
        return at_once if newest >= _FIRST_WITH_MANY_GROUPS else 1

    oldest = _FIRST_WITH_STABLE if stable else 0
    return Question(request, _fetched, at_once=size, newest=_LAST_WITH_TOPIC_NAMES, oldest=oldest)


def _fetch_topics(kind: Any, numbers: Mapping[str, list[int]] | None) -> list[Any] | None:
    if numbers is None:
        return None
    return [kind(name=topic, partition_indexes=partitions) for topic, partitions in numbers.items()]


def _fetched(response: Any, groups: list[str]) -> Answers[str, list[CommittedOffset]]:
    if not response.groups:
        # Brokers before 3.2 were asked about one group, and answer without a list.
        yield groups[0], _first_refusal(response.topics) or _offsets_of(response.topics)
        return
    for each in response.groups:
        if each.error_code:
            yield each.group_id, broker_error(each.error_code)
        else:
            yield each.group_id, _first_refusal(each.topics) or _offsets_of(each.topics)


def _offsets_of(topics: Iterable[Any]) -> list[CommittedOffset]:
    found: list[CommittedOffset] = []
    for topic in topics:
        for each in topic.partitions:
            if each.committed_offset < 0:
                # It was asked about by name, and the group has committed nothing for it.
                continue
            tp = TopicPartition(topic.name, each.partition_index)
            epoch = each.committed_leader_epoch
            if epoch is not None and epoch < 0:
                epoch = None
            found.append(CommittedOffset(tp, each.committed_offset, epoch, each.metadata or ""))
    return found


# Changes. Each is asked for again even where a broker has perhaps made it: made twice, it is the same.


def _commit_question(offsets_by_group: OffsetsByGroup) -> Question[str, None]:
    """Ask to set the offsets of groups without members."""
    entry = OffsetCommitRequest.OffsetCommitRequestTopic

    def request(broker: BrokerConnection, groups: list[str]) -> Any:
        by_topic: dict[str, list[Any]] = defaultdict(list)
        for each in offsets_by_group[groups[0]]:
            epoch = -1 if each.leader_epoch is None else each.leader_epoch
            partition = entry.OffsetCommitRequestPartition(
                partition_index=each.tp.partition,
                committed_offset=each.offset,
                committed_leader_epoch=epoch,
                committed_metadata=each.metadata,
            )
            by_topic[each.tp.topic].append(partition)
        topics = [entry(name=topic, partitions=partitions) for topic, partitions in by_topic.items()]
        # No generation and no member: this is how an admin commits, and a group that has members refuses it.
        return OffsetCommitRequest(
            group_id=groups[0],
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            retention_time_ms=-1,
            topics=topics,
        )

    return Question(request, _changed, at_once=1, newest=_LAST_WITH_TOPIC_NAMES)


def _removal_question(offsets_by_group: OffsetsByGroup) -> Question[str, None]:
    """Ask to delete what groups have committed for partitions."""
    entry = OffsetDeleteRequest.OffsetDeleteRequestTopic

    def request(broker: BrokerConnection, groups: list[str]) -> Any:
        numbers = numbers_by_topic(each.tp for each in offsets_by_group[groups[0]])
        topics: list[Any] = []
        for topic, partitions in numbers.items():
            indexes = [entry.OffsetDeleteRequestPartition(partition_index=number) for number in partitions]
            topics.append(entry(name=topic, partitions=indexes))
        return OffsetDeleteRequest(group_id=groups[0], topics=topics)

    return Question(request, _changed, at_once=1)


def _changed(response: Any, groups: list[str]) -> Answers[str, None]:
    yield groups[0], _first_refusal(response.topics)


def _delete_request(broker: BrokerConnection, groups: list[str]) -> Any:
    return DeleteGroupsRequest(groups_names=groups)


def _deleted(response: Any, groups: list[str]) -> Answers[str, None]:
    for each in response.results:
        if each.error_code:
            yield each.group_id, broker_error(each.error_code)
        else:
            yield each.group_id, None


_DELETION = Question[str, None](_delete_request, _deleted, at_once=_GROUPS_AT_ONCE)


# Members.


def _describe_request(broker: BrokerConnection, groups: list[str]) -> Any:
    return DescribeGroupsRequest(groups=groups, include_authorized_operations=False)


def _classic_members(response: Any, groups: list[str]) -> Answers[str, int | None]:
    """Yield the number of members; None for a group that is dead, which one of another protocol seems to be."""
    for each in response.groups:
        if each.error_code:
            yield each.group_id, broker_error(each.error_code, each.error_message)
        elif each.group_state == "Dead":
            yield each.group_id, None
        else:
            yield each.group_id, len(each.members)


def _describe_consumers(broker: BrokerConnection, groups: list[str]) -> Any:
    return ConsumerGroupDescribeRequest(group_ids=groups, include_authorized_operations=False)


def _consumer_members(response: Any, groups: list[str]) -> Answers[str, int | None]:
    for each in response.groups:
        if each.error_code:
            yield each.group_id, broker_error(each.error_code, each.error_message)
        else:
            yield each.group_id, len(each.members)


_CLASSIC_MEMBERS = Question[str, int | None](_describe_request, _classic_members, at_once=_GROUPS_AT_ONCE)
_CONSUMER_MEMBERS = Question[str, int | None](_describe_consumers, _consumer_members, at_once=_GROUPS_AT_ONCE)
