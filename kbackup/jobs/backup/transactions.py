"""End a restore point so that it has each transaction with all its records and group offsets, or not at all.

`tests/unit/jobs/backup/transactions/README.md` has the rule, and says why it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from kbackup.archive.models import Group, Groups, HangingTransaction, Transactions, abort_command
from kbackup.archive.query.content import with_offsets
from kbackup.config.models import Backup
from kbackup.jobs.capture import ABSENT, LiveTopic, SourceCluster, offline_partitions
from kbackup.jobs.groups.job import as_stored
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
"""Or the reason why partitions end by position, as they are asked to."""
_NAMED = 5
_BY_POSITION = "each partition ends at its own last stable offset"


@dataclass(frozen=True)
class WholeEnds:
    """Where the logs end for a restore point, and the groups as of there. `written` are partitions that have
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
    `selected` tells groups that are captured; `given_up` are the last stable offsets at which earlier restore points
    stopped waiting, and gets those of this one. `OffsetsTopicCreatedError` if all must begin once more."""
    if not isinstance(begun, CutBegun):
        return _by_position(topics, groups, begun)
    stable = {TopicPartition(t.name, p): live.end for t in topics for p, live in t.partitions.items()}
    wait = source.whole_within or 0.0
    cut = begun.close(stable, wait, given_up)
    if isinstance(cut, Unavailable) and cut.reason == "failed":  # a leader may have moved
        cut = begun.close(stable, wait, given_up)
    if isinstance(cut, Unavailable):
        return _by_position(topics, groups, cut)
    given_up.clear()
    seen, names = {**begun.groups, **stable}, {t.name for t in topics}
    given_up |= {each.tp: seen[each.tp] for each in cut.open}
    ended = [
        replace(
            topic,
            partitions={
                p: replace(live, end=cut.ends[tp], held=cut.held.get(tp, ()))
                for p, live in topic.partitions.items()
                for tp in (TopicPartition(topic.name, p),)
            },
        )
        for topic in topics
    ]
    unread = {group for group, why in groups.not_carried.items() if why != ABSENT}
    commits = [c for c in cut.commits if c.tp.topic in names and selected(c.group)]
    positions = replayed(source, groups, [c for c in commits if c.group not in unread])
    transactions = _transactions(cut, wait, topics, sorted({c.group for c in commits} & unread))
    return WholeEnds(ended, positions, transactions, _warnings(transactions), cut.transactional)


def _by_position(topics: Sequence[LiveTopic], groups: Groups, reason: Unavailable | str) -> WholeEnds:
    """Return the ends as they are. A reason in words is what the user asked for, which is no warning."""
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
    return (
        f"transactions may be in this restore point in part: {transactions.why}",
        *(
            f"producer {each.producer_id} has a transaction open in {each.topic}-{each.partition}; if its application "
            f"is gone, abort it: {abort_command(each)}"
            for each in [each for each in transactions.open if each.producer_id >= 0][:_NAMED]
        ),
    )


_REASONS: Mapping[CutReason, str] = {
    "not stable": "transactions had ended, but the last stable offset did not follow (see whether replicas are behind)",
    "too large": f"more than {human_size(MOST_BYTES)} were written since the oldest open transaction began",
    "not counted": "producers commit all the time, and their markers could not be counted",
    "repeated marker": "a commit has a marker without records, which may have been written twice",
    "unknown marker": f"the markers of commits don't fit {STATE}",
}
"""Why transactions of a partition can't be told apart, but for those that are open."""


def _transactions(cut: TransactionCut, wait: float, topics: Sequence[LiveTopic], unread: Sequence[str]) -> Transactions:
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
    if offline := offline_partitions(topics):
        reasons.append(f"partitions without a leader: {join_names(offline, _NAMED)}")
    if unread:
        reasons.append(f"groups that commit in transactions and can't be read: {join_names(unread, _NAMED)}")
    still = [
        HangingTransaction(
            topic=each.tp.topic,
            partition=each.tp.partition,
            producer_id=each.producer_id,
            start=each.start,
            timestamp=each.timestamp,
        )
        for each in cut.open
    ]
    return Transactions(whole=not reasons, why="; ".join(reasons), open=tuple(still))


def replayed(source: SourceCluster, groups: Groups, commits: Iterable[Commit]) -> Groups:
    """Return `groups` after `commits`, which may be of groups that were not there before."""
    later: dict[str, dict[TopicPartition, CommittedOffset | None]] = {}
    for commit in commits:
        later.setdefault(commit.group, {})[commit.tp] = commit.offset
    if not later:
        return groups
    known = {group.group: group for group in groups.groups}
    if later.keys() - known.keys():
        listed, _ = source.cluster.groups.listed()
        known = {g.group: Group(group=g.group, type=g.type, state=g.state, offsets=()) for g in listed} | known
    for name in later.keys() & known.keys():
        group, moved = known[name], later[name]
        stay = (o for o in group.offsets if TopicPartition(o.topic, o.partition) not in moved)
        known[name] = with_offsets(group, (*stay, *as_stored(filter(None, moved.values()))))
    kept = sorted((g for g in known.values() if g.offsets), key=lambda g: g.group)
    return msgspec.structs.replace(groups, groups=tuple(kept))
