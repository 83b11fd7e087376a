"""End a restore point so that it has each transaction with all its records and group offsets, or not at all.

`tests/unit/jobs/backup/transactions/README.md` has the rule, and says why it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

import msgspec

from kbackup.archive.models import Group, Groups, HangingTransaction, Transactions, abort_command
from kbackup.archive.query.content import with_offsets
from kbackup.config.models import Backup
from kbackup.jobs.capture import ABSENT, Live, LiveTopic, SourceCluster, offline_partitions
from kbackup.jobs.groups.documents import as_stored
from kbackup.kafka.control.unavailable import Unavailable
from kbackup.kafka.transaction_records import Commit
from kbackup.kafka.transactions import (
    MOST_BYTES,
    STATE,
    CutBegun,
    CutReason,
    OpenTransaction,
    TransactionCut,
    begin_cut,
)
from kbackup.types import CommittedOffset, TopicPartition
from kbackup.util.text import human_duration, human_size, join_names, plural

Begun = CutBegun | Unavailable | str
"""The begun cut, or why there is none. A string: the options ask for partitions that end by position."""
_NAMED = 5
_BY_POSITION = "each partition ends at its own last stable offset"


@dataclass(frozen=True)
class WholeEnds:
    """Where the logs end for a restore point, and the groups as of these ends. `written` are the partitions with
    transactions."""

    topics: Sequence[LiveTopic]
    groups: Groups
    transactions: Transactions
    warnings: tuple[str, ...] = ()
    written: Collection[TopicPartition] = field(default_factory=frozenset)


def begin(source: SourceCluster, *, offsets_topic_exists: bool = False) -> Begun:
    """Begin before groups are asked for. `offsets_topic_exists` as in `begin_cut`."""
    if source.whole_within is None:
        return "backup.transactions is partition"
    if source.isolation_level != "read_committed":
        return f"records are read with {source.isolation_level}"
    return begin_cut(source.cluster, offsets_topic_exists=offsets_topic_exists)


def are_in_part(transactions: Transactions | None, options: Backup) -> bool:
    """Return whether a restore point may have transactions in part though `options` ask for whole ones. None: there is
    no restore point."""
    are_asked_for = options.transactions == "whole" and options.isolation_level == "read_committed"
    return are_asked_for and transactions is not None and not transactions.whole


def whole_ends(
    source: SourceCluster,
    begun: Begun,
    topics: Sequence[LiveTopic],
    groups: Groups,
    selected: Callable[[str], bool],
    given_up: dict[TopicPartition, int],
) -> WholeEnds:
    """Return the ends for `topics`, of which the last stable offsets were listed after `groups` were asked for.

    `selected` tells whether a group is captured. `given_up` has the last stable offsets at which earlier restore points
    stopped waiting for open transactions; they are replaced by the ones of this restore point.
    `OffsetsTopicCreatedError` if the capture must begin once more.
    """
    if not isinstance(begun, CutBegun):
        return _by_position(topics, groups, begun)
    stable: dict[TopicPartition, int] = {}
    for topic in topics:
        for number, live in topic.partitions.items():
            stable[TopicPartition(topic.name, number)] = live.end
    wait = source.whole_within or 0.0
    cut = begun.close(stable, wait, given_up)
    if isinstance(cut, Unavailable) and cut.reason == "failed":  # a leader may have moved
        cut = begun.close(stable, wait, given_up)
    if isinstance(cut, Unavailable):
        return _by_position(topics, groups, cut)
    # A transaction that hangs is waited for once: the next restore point finds the same last stable offset here.
    given_up.clear()
    for open_transaction in cut.open:
        tp = open_transaction.tp
        given_up[tp] = stable[tp] if tp in stable else begun.groups[tp]
    ended = [_with_ends(topic, cut) for topic in topics]
    names = {topic.name for topic in topics}
    unread = {group for group, why in groups.not_carried.items() if why != ABSENT}
    commits: list[Commit] = []
    unread_commits: set[str] = set()
    for commit in cut.commits:
        if commit.tp.topic not in names or not selected(commit.group):
            continue
        if commit.group in unread:
            # With these commits alone the group would have some of its positions, and pass for whole.
            unread_commits.add(commit.group)
        else:
            commits.append(commit)
    positions = replayed(source, groups, commits)
    transactions = _transactions(cut, wait, topics, sorted(unread_commits))
    return WholeEnds(ended, positions, transactions, _warnings(transactions), cut.transactional)


def _with_ends(topic: LiveTopic, cut: TransactionCut) -> LiveTopic:
    """Return the topic with its partitions ending where the cut ends them."""
    partitions: dict[int, Live] = {}
    for number, live in topic.partitions.items():
        tp = TopicPartition(topic.name, number)
        partitions[number] = replace(live, end=cut.ends[tp], held=cut.held.get(tp, ()))
    return replace(topic, partitions=partitions)


def _by_position(topics: Sequence[LiveTopic], groups: Groups, reason: Unavailable | str) -> WholeEnds:
    """Return the ends unchanged. A reason that is a string is what the user asked for, which is no warning."""
    if isinstance(reason, str):
        return WholeEnds(topics, groups, Transactions(whole=False, why=f"{_BY_POSITION}: {reason}"))
    transactions = Transactions(whole=False, why=f"{_BY_POSITION}: {reason.why}")
    warnings = list(_warnings(transactions))
    if reason.reason != "failed":  # and so the next backup will have it no better
        warnings.append("where a cluster can't have whole transactions, set backup.transactions to partition")
    return WholeEnds(topics, groups, transactions, tuple(warnings))


def _warnings(transactions: Transactions) -> tuple[str, ...]:
    if transactions.whole:
        return ()
    warnings = [f"transactions may be incomplete in this restore point: {transactions.why}"]
    # Without the producer's id nobody can abort a transaction.
    with_producer = [each for each in transactions.open if each.producer_id >= 0]
    for each in with_producer[:_NAMED]:
        warnings.append(
            f"producer {each.producer_id} has a transaction open in {each.topic}-{each.partition}; if its application "
            f"is gone, abort it: {abort_command(each)}"
        )
    return tuple(warnings)


_REASONS: Mapping[CutReason, str] = {
    "not stable": "transactions had ended, but the last stable offset did not follow (see whether replicas are behind)",
    "too large": f"more than {human_size(MOST_BYTES)} were written since the oldest open transaction began",
    "not counted": "producers commit all the time, and their markers could not be counted",
    "repeated marker": "a commit has a marker without records, which may have been written twice",
    "unknown marker": f"the markers of commits don't fit {STATE}",
}
"""Why a partition ends by position. The reason 'open' has words of its own, with the time that was waited."""


def _transactions(cut: TransactionCut, wait: float, topics: Sequence[LiveTopic], unread: Sequence[str]) -> Transactions:
    """Return what a restore point records of transactions. `unread` are groups with commits that it lacks."""
    # One sentence for each reason: a producer that is late may have hundreds of partitions.
    reasons: list[str] = []
    by_reason: dict[CutReason, list[OpenTransaction]] = {}
    for each in cut.open:
        by_reason.setdefault(each.reason, []).append(each)
    for reason, transactions in sorted(by_reason.items()):
        partitions = sorted({str(each.tp) for each in transactions})
        names = join_names(partitions, _NAMED)
        if reason == "open":
            many = plural(len(transactions), "transaction")
            reasons.append(f"{many} did not end within {human_duration(wait)}, in {names}: {_BY_POSITION} there")
        else:
            reasons.append(f"{_REASONS[reason]}, in {names}: {_BY_POSITION} there")
    # Nobody can say which transactions have records in a partition that nobody leads.
    offline = offline_partitions(topics)
    if offline:
        reasons.append(f"partitions without a leader: {join_names(offline, _NAMED)}")
    if unread:
        reasons.append(f"groups that commit in transactions and can't be read: {join_names(unread, _NAMED)}")
    still: list[HangingTransaction] = []
    for each in cut.open:
        hanging = HangingTransaction(
            topic=each.tp.topic,
            partition=each.tp.partition,
            producer_id=each.producer_id,
            start=each.start,
            timestamp=each.timestamp,
        )
        still.append(hanging)
    return Transactions(whole=not reasons, why="; ".join(reasons), open=tuple(still))


def replayed(source: SourceCluster, groups: Groups, commits: Iterable[Commit]) -> Groups:
    """Return `groups` as they are after `commits`, which may be commits of new groups."""
    later: dict[str, dict[TopicPartition, CommittedOffset | None]] = {}
    for commit in commits:
        later.setdefault(commit.group, {})[commit.tp] = commit.offset
    if not later:
        return groups
    known = {group.group: group for group in groups.groups}
    if later.keys() - known.keys():
        listed, _ = source.cluster.groups.listed()
        for new in listed:
            known.setdefault(new.group, Group(group=new.group, type=new.type, state=new.state, offsets=()))
    # A group that is not listed was deleted since its commit.
    for name in later.keys() & known.keys():
        group = known[name]
        moved = later[name]
        offsets = [o for o in group.offsets if TopicPartition(o.topic, o.partition) not in moved]
        # A commit without an offset is a deletion of the group's offset.
        committed = [offset for offset in moved.values() if offset is not None]
        offsets += as_stored(committed)
        known[name] = with_offsets(group, offsets)
    with_any_offset = [group for group in known.values() if group.offsets]
    with_any_offset.sort(key=attrgetter("group"))
    return msgspec.structs.replace(groups, groups=tuple(with_any_offset))
