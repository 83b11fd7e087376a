"""The rule of README.md leaves every transaction whole in every state of the model; wrong variants don't."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from random import Random

import pytest

from tests.support.exhaustive import sample
from tests.unit.jobs.backup.transactions.cluster import (
    ABORT,
    COMMIT,
    FENCED,
    HANGING,
    RESENT,
    Backup,
    Cluster,
    Producer,
    Transaction,
    explore,
    steps_of,
    walk,
)
from tests.unit.jobs.backup.transactions.rules import ByPosition, Ends, Whole, close

BOTH, FENCE = Transaction((0, 1)), Transaction((0, 1), FENCED)


def check(programs: Sequence[Producer], partitions: int, rule: Backup) -> None:
    report = explore(programs, partitions, rule)
    print(report)  # `pytest -rP`
    assert not report.torn, report.torn
    assert report.ends, "no restore point is ever committed"
    transactions = [t for program in programs for t in program.transactions]
    ends = {t.end for t in transactions}
    assert HANGING in ends or not report.stuck, f"the backup never ends after\n{report.stuck}"
    is_told = RESENT not in ends and all(t.writes or t.end != COMMIT for t in transactions)
    assert not (report.given_up and is_told), "each commit marker has records, and comes once"


# One producer beside any number of others, which can only hold last stable offsets back and have markers counted: the
# rule decides each producer by its own batches and its own coordinator. This is every state of three producers.


@pytest.mark.exhaustive(keep=1)
@pytest.mark.parametrize(
    ("ends", "versions"),
    [((COMMIT, COMMIT), (1, 2)), ((FENCED, COMMIT), (1,)), ((COMMIT, FENCED), (1,)), ((COMMIT, RESENT), (1,))],
    ids=str,
)
def test_every_state_of_two_partitions(ends: tuple[str, str], versions: tuple[int, ...]) -> None:
    for version in versions:
        program = Producer(tuple(Transaction((0, 1), end) for end in ends), version)
        check([program], 2, Whole(groups=(0,), others=True))


@pytest.mark.exhaustive
@pytest.mark.parametrize("version", [1, 2])
def test_every_state_of_three_transactions(version: int) -> None:
    """Without a pause, so that one of them may go on while markers are counted."""
    check([Producer((BOTH, BOTH, Transaction((0,))), version)], 2, Whole())


def without_records(end: str) -> Transaction:
    return Transaction((), end, named=(0, 1))


WITHOUT_RECORDS = [
    Producer((BOTH, without_records(ABORT), BOTH)),
    Producer((without_records(ABORT), BOTH, without_records(ABORT))),
    Producer((BOTH, Transaction((0,), ABORT, named=(1,)), BOTH)),
    Producer((BOTH, without_records(COMMIT), BOTH)),
    Producer((Transaction((0,), COMMIT, named=(1,)), BOTH)),
    Producer((Transaction((0, 1), RESENT), without_records(ABORT), BOTH)),
    Producer((BOTH, without_records(COMMIT), BOTH), version=2),
    Producer((Transaction((0, 1), FENCED), without_records(ABORT), BOTH)),
]
"""Programs with markers that have no records before them, as librdkafka leaves them where it aborts early."""


@pytest.mark.exhaustive(keep=1)
@pytest.mark.parametrize("program", WITHOUT_RECORDS, ids=str)
def test_every_state_of_a_transaction_without_records(program: Producer) -> None:
    check([program], 2, Whole())


@pytest.mark.exhaustive
@pytest.mark.parametrize("version", [1, 2])
def test_every_state_in_which_the_wait_gives_up(version: int) -> None:
    """A transaction may end after the last look at last stable offsets, and before open ones are looked for."""
    programs = [Producer((BOTH, BOTH), version)]
    gives_up = Whole(groups=(0,), gives_up=True)
    report = explore(programs, 2, gives_up)
    print(report)
    assert not report.torn, report.torn
    assert report.ends, "no restore point is ever committed"
    assert report.given_up, "open transactions are named"


@pytest.mark.exhaustive(keep=0)
def test_every_state_in_which_the_wait_gives_up_beside_others() -> None:
    report = explore([Producer((BOTH, BOTH))], 2, Whole(gives_up=True, others=True))
    print(report)
    assert not report.torn, report.torn
    assert report.ends


ENDS = [(COMMIT, COMMIT), (COMMIT, ABORT), (ABORT, COMMIT), (COMMIT, FENCED), (FENCED, COMMIT), (RESENT, COMMIT)]
WRITES = [writes for size in (1, 2, 3) for writes in combinations(range(3), size)]


@pytest.mark.soak
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("first", WRITES, ids=str)
def test_every_state_of_three_partitions(first: tuple[int, ...], version: int) -> None:
    """A fenced transaction may end before it wrote everywhere, so that of all partitions stands for the others."""
    for second, ends in product(WRITES, ENDS):
        transactions = tuple(map(Transaction, (first, second), ends))
        if all(len(each.writes) == 3 for each in transactions if each.end in (FENCED, RESENT)):
            check([Producer(transactions, version)], 3, Whole(groups=(0,), others=True))


def test_two_records_in_a_partition_stay_together() -> None:
    check([Producer((Transaction((0, 0)),)), Producer((Transaction((0,)),), version=2)], 1, Whole())


@pytest.mark.soak
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("groups", [(), (0, 0)], ids=["topics", "one group"])
def test_every_state_of_two_producers(version: int, groups: tuple[int, ...]) -> None:
    check([Producer((BOTH,), version), Producer((BOTH,), 1)], 2, Whole(groups=groups))


def test_random_walks_of_three_producers() -> None:
    random = Random(20261126)
    for _ in sample(range(200), 40, regular=100):
        programs = [
            Producer(tuple(random_transaction(random) for _ in "123"), version)
            for version in random.choices((1, 2), k=3)
        ]
        torn = walk(programs, 3, Whole(groups=(0, 0, None), gives_up=random.random() < 0.3), random)
        assert not torn, torn


def random_transaction(random: Random) -> Transaction:
    """A transaction of three partitions, some of which it may leave without records."""
    end = random.choice((COMMIT, RESENT, ABORT, FENCED))
    written = 3 if end == FENCED else random.choice((3, 3, 2, 0))
    everywhere = [0, 1, 2]
    random.shuffle(everywhere)
    return Transaction(tuple(everywhere[:written]), end, tuple(everywhere[written:]))


def test_a_hanging_transaction_tears_nothing() -> None:
    programs = [Producer((Transaction((0,), HANGING),)), Producer((BOTH,), version=2)]
    check(programs, 2, Whole())
    assert "backup" in explore(programs, 2, Whole()).stuck, "who waits for a hanging transaction waits for ever"


@pytest.mark.exhaustive
def test_a_producer_that_is_upgraded() -> None:
    check([Producer((BOTH, BOTH), upgraded=True)], 2, Whole(others=True))


@pytest.mark.parametrize(
    "producer", [Producer((BOTH, BOTH), upgraded=True), Producer((BOTH, FENCE))], ids=["upgraded", "fenced"]
)
def test_epochs_of_records_do_not_tell_versions_apart(producer: Producer) -> None:
    torn = explore([producer], 2, Whole(own_epochs=True)).torn
    print(torn)
    assert "0.0 is torn" in torn


# Wrong variants. Each has a counterexample, which `pytest -rP` prints.


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (Whole(all_in=True), "0.0 is torn"),
        (Whole(counts_once=True), "is torn"),
        (Whole(in_order=False), "0.0 is torn"),
        (Whole(holds=False), "0.0 is torn"),
        (Whole(waits=False), "0.0 is torn"),
        (Whole(epochs_alone=True), "0.0 is torn"),
        (Whole(groups=(0,), group_positions="before"), "is that of None, but (0, 0) is in the restore point"),
        (Whole(groups=(0,), group_positions="after"), "(0, 0), which is not in the restore point"),
        (Whole(gives_up=True, late_is_done=True), "0.0 is torn"),
        (ByPosition(closes=False), "0.0 is torn"),
        (ByPosition(counted=True), "is torn"),
    ],
    ids=[
        "coordinator seen once",
        "markers counted with the coordinator seen once",
        "ends listed before the coordinator is seen",
        "open transactions not held",
        "high watermark for last stable offset",
        "alignment by epoch alone",
        "group positions taken before",
        "group positions taken after",
        "late partitions without an open transaction taken as done",
        "last stable offsets alone",
        "alignment by the k-th last marker",
    ],
)
def test_a_wrong_variant_is_found(wrong: Backup, why: str) -> None:
    second = Transaction((0,)) if isinstance(wrong, ByPosition) else BOTH
    torn = explore([Producer((BOTH, second))], 2, wrong).torn
    print(torn)
    assert why in torn


@pytest.mark.exhaustive
def test_markers_that_come_twice_are_not_counted() -> None:
    programs = [Producer((Transaction((0, 1), RESENT), BOTH))]
    torn = explore(programs, 2, Whole(twice=True)).torn
    print(torn)
    assert "is torn" in torn
    check(programs, 2, Whole())


def test_markers_without_records_are_not_left_out() -> None:
    """A transaction that is committed without a record in a partition has a marker there."""
    programs = [Producer((BOTH, Transaction((), COMMIT, named=(0,))))]
    torn = explore(programs, 2, Whole(skips_repeated=True)).torn
    print(torn)
    assert "is torn" in torn
    check(programs, 2, Whole())


# Ends by position: whole with all that nobody tells, but without an end under load.


@pytest.mark.parametrize(
    ("writes", "wrong"),
    [
        ([(0, 0), (0,)], ByPosition(closes=False)),
        ([(0, 1), (0, 1)], ByPosition(by_markers=True)),
        ([(0, 1), (1, 2)], ByPosition(rounds=1)),
    ],
    ids=["a last stable offset cuts a partition's own transaction", "closed by markers without records", "one round"],
)
def test_ends_by_position_tear(writes: list[tuple[int, ...]], wrong: ByPosition) -> None:
    programs = [Producer((Transaction(each),)) for each in writes]
    torn = explore(programs, 3, wrong).torn
    print(torn)
    assert "is torn" in torn


@pytest.mark.exhaustive
def test_ends_by_position_hold_if_transactions_were_known() -> None:
    check([Producer((BOTH,)), Producer((BOTH,))], 2, ByPosition())


def test_ends_by_position_are_not_reached_under_load() -> None:
    """Transactions that overlap form a chain, and no offsets are between all of them, though all is known here."""
    waited = {n: transactions_waited_for(n, 20, 20, Random(1)) for n in (2, 4, 12)}
    print(waited)
    assert waited[2] < waited[4] < 20, "few producers leave gaps"
    assert waited[12] > 12 * 20 / 2, "most of what twelve producers send until they stop"


def transactions_waited_for(producers: int, partitions: int, transactions: int, random: Random) -> int:
    """Return how many transactions a cut must add to last stable offsets, so that it cuts none. Each producer sends
    transactions to four partitions without a pause."""
    programs = [
        Producer(tuple(Transaction(tuple(random.sample(range(partitions), 4))) for _ in range(transactions)))
        for _ in range(producers)
    ]
    cluster = Cluster.of(partitions, programs)
    stable: Ends = ()
    while (who := random.randrange(producers)) + 1 and cluster.producers[who].number < transactions:
        own = [then for _, then in steps_of(cluster, programs) if then.producers[who] != cluster.producers[who]]
        cluster = random.choice(own)
        if not stable and cluster.producers[who].number == 5:
            stable = tuple(cluster.stable(n) for n in range(partitions))
    names = [[(batch.producer, batch.number) for batch in log] for log in cluster.logs]
    ends = close(cluster.logs, names, stable)
    return len({name for named, a, b in zip(names, stable, ends, strict=True) for name in named[a:b]})
