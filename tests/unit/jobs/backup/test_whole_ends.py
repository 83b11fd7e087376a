"""What a backup makes of a cut: ends, groups, and what the restore point says of its transactions."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from kbackup.archive.models import Groups, HangingTransaction, Transactions
from kbackup.config.models import Backup
from kbackup.jobs.backup import transactions
from kbackup.jobs.backup.transactions import WholeEnds, are_in_part, begin, replayed, whole_ends
from kbackup.jobs.capture import ABSENT, Live, LiveTopic, SourceCluster
from kbackup.kafka.control.unavailable import Unavailable
from kbackup.kafka.transaction_records import Commit
from kbackup.kafka.transactions import CutBegun, CutReason, OpenTransaction, TransactionCut
from kbackup.metadata.sources import Sources
from kbackup.types import CommittedOffset, TopicPartition
from tests.support.archives import group_at

ORDERS, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
OFFSETS = TopicPartition("__consumer_offsets", 7)
BEFORE = Groups(captured_at="", groups=(group_at("billing", ("orders", 0, 3), ("orders", 1, 4)),))
TOPICS = [LiveTopic("orders", "id", {0: Live(0, 9, 9), 1: Live(0, 8, 8)})]


class Begun(CutBegun):
    """Gives the cut that it was made with, and keeps what was given up."""

    def __init__(self, cut: TransactionCut | Unavailable) -> None:
        super().__init__(None, {OFFSETS: 5})  # type: ignore[arg-type]
        object.__setattr__(self, "cut", cut)

    def close(self, stable: Mapping[TopicPartition, int], wait: float, given_up: Any = ()) -> Any:
        assert (stable, wait) == ({ORDERS: 9, OTHER: 8}, 60)
        return self.cut  # type: ignore[attr-defined]


def source_of(**more: Any) -> SourceCluster:
    listed = [SimpleNamespace(group=name, type="classic", state="stable") for name in ("billing", "new", "unasked")]
    cluster: Any = SimpleNamespace(groups=SimpleNamespace(listed=lambda: (listed, {})))
    given: dict[str, Any] = {"isolation_level": "read_committed", "poll_timeout": 1.0, "whole_within": 60.0} | more
    return SourceCluster(cluster, "c", 1, Sources(kafka={}), **given)


def ends_of(cut: Any, given_up: dict[TopicPartition, int] | None = None) -> WholeEnds:
    known = given_up if given_up is not None else {}
    return whole_ends(source_of(), cut, TOPICS, BEFORE, lambda group: group != "unasked", known)


def at(tp: TopicPartition, offset: int) -> CommittedOffset:
    return CommittedOffset(tp, offset, None, "")


def positions(groups: Groups) -> dict[str, list[tuple[int, int]]]:
    return {g.group: [(o.partition, o.offset) for o in g.offsets] for g in groups.groups}


def test_partitions_end_where_transactions_are_whole() -> None:
    ends = ends_of(Begun(TransactionCut({ORDERS: 12, OTHER: 7}, {ORDERS: ((9, 10),)}, [], (), frozenset({ORDERS}))))
    assert ends.topics[0].partitions == {0: Live(0, 12, 9, held=((9, 10),)), 1: Live(0, 7, 8)}
    assert (ends.transactions, ends.warnings, ends.groups) == (Transactions(whole=True), (), BEFORE)
    assert ends.written == {ORDERS}


def test_positions_are_replayed_in_order() -> None:
    commits = [
        *(Commit("billing", ORDERS, at(ORDERS, offset)) for offset in (5, 6)),
        Commit("billing", OTHER, None),
        *(Commit(group, ORDERS, at(ORDERS, 2)) for group in ("new", "unasked", "gone again")),
        Commit("billing", TopicPartition("another", 0), at(ORDERS, 1)),
    ]
    cut = TransactionCut({ORDERS: 9, OTHER: 8}, {}, commits, (), frozenset())
    ends = ends_of(Begun(cut))
    assert (positions(ends.groups), ends.transactions.whole) == ({"billing": [(0, 6)], "new": [(0, 2)]}, True)
    assert replayed(source_of(), BEFORE, []) is BEFORE
    unread = msgspec.structs.replace(BEFORE, not_carried={"new": "no coordinator", "unasked": ABSENT})
    ends = whole_ends(source_of(), Begun(cut), TOPICS, unread, lambda group: True, {})
    assert positions(ends.groups) == {"billing": [(0, 6)], "unasked": [(0, 2)]}, "not a part of what a group has"
    assert ends.transactions.why == "groups that commit in transactions and can't be read: new"


@pytest.mark.parametrize(
    ("begun", "why", "warned"),
    [
        ("backup.transactions is partition", "backup.transactions is partition", 0),
        (Unavailable("denied", "no right"), "no right", 2),
        (Begun(Unavailable("failed", "no answer")), "no answer", 1),
    ],
)
def test_partitions_end_by_themselves_where_nothing_else_is_possible(begun: Any, why: str, warned: int) -> None:
    ends = ends_of(begun)
    assert (ends.topics, ends.groups, ends.transactions.whole) == (TOPICS, BEFORE, False)
    assert ends.transactions.why == f"each partition ends at its own last stable offset: {why}"
    assert len(ends.warnings) == warned
    assert all(why in warning for warning in ends.warnings[:1])


def test_what_did_not_end_is_named_with_its_command_and_not_waited_for_again() -> None:
    open_ = (
        *(OpenTransaction(ORDERS, 7, 3, 1_000), OpenTransaction(OFFSETS, 7, 4, 1_000)),
        OpenTransaction(OTHER, -1, 8, -1, "too large"),
    )
    given_up = {OTHER: 1}
    ends = ends_of(Begun(TransactionCut({ORDERS: 9, OTHER: 8}, {}, [], open_, frozenset())), given_up)
    assert given_up == {ORDERS: 9, OFFSETS: 5, OTHER: 8}
    assert ends.transactions.open[0] == HangingTransaction(
        topic="orders", partition=0, producer_id=7, start=3, timestamp=1_000
    )
    assert ends.transactions.why.startswith(
        "2 transactions did not end within 1m00s, in __consumer_offsets-7, orders-0"
    )
    assert (
        "more than 256.0 MiB were written since the oldest open transaction began, in orders-1" in ends.transactions.why
    )
    assert "abort --topic orders --partition 0 --start-offset 3" in ends.warnings[1]
    assert [each.producer_id for each in ends.transactions.open] == [7, 7, -1], "each ends a backup with exit code 3"
    assert len(ends.warnings) == 3, "nothing is to be aborted where it may have ended"


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("not stable", "the last stable offset did not follow"),
        ("too large", "more than 256.0 MiB were written"),
        ("not counted", "their markers could not be counted"),
        ("repeated marker", "may have been written twice"),
        ("unknown marker", "don't fit __transaction_state"),
    ],
)
def test_each_partition_is_named_with_its_own_reason(reason: CutReason, words: str) -> None:
    open_ = (OpenTransaction(ORDERS, -1, 3, -1, reason), OpenTransaction(OTHER, 7, 8, 1_000))
    ends = ends_of(Begun(TransactionCut({ORDERS: 9, OTHER: 8}, {}, [], open_, frozenset())))
    reasons = ends.transactions.why.split("; ")
    (own,) = [each for each in reasons if words in each]
    (other,) = [each for each in reasons if "did not end" in each]
    assert "in orders-0: each partition ends at its own last stable offset there" in own
    assert "in orders-1: each partition ends at its own last stable offset there" in other


@pytest.mark.parametrize(
    ("unavailable", "hint"),
    [
        (Unavailable("denied", "no right"), True),
        (Unavailable("not supported", "too old"), True),
        (Unavailable("failed", "?"), False),
    ],
)
def test_a_cluster_that_allows_no_whole_transactions_is_told_from_one_that_fails(
    unavailable: Unavailable, hint: bool
) -> None:
    warnings = ends_of(unavailable).warnings
    assert any("set backup.transactions to partition" in warning for warning in warnings) == hint


def test_transactions_are_in_part_only_where_whole_ones_were_asked_for() -> None:
    in_part, whole = Transactions(whole=False, why="?"), Transactions(whole=True)
    assert are_in_part(in_part, Backup())
    assert not are_in_part(whole, Backup())
    assert not are_in_part(None, Backup()), "there is no restore point"
    assert not are_in_part(in_part, Backup(transactions="partition"))
    assert not are_in_part(in_part, Backup(isolation_level="read_uncommitted"))


def test_whole_transactions_are_of_committed_records_and_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "begin_cut", lambda cluster, offsets_topic_exists: "begun")
    assert begin(source_of()) == "begun"
    assert begin(source_of(whole_within=None)) == "backup.transactions is partition"
    assert begin(source_of(isolation_level="read_uncommitted")) == "records are read with read_uncommitted"
