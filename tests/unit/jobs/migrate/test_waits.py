"""The name of each thing that a migration waits for."""

from __future__ import annotations

from kbackup.jobs.migrate.states import (
    LogWitness,
    MetricsWitness,
    MigrationZnode,
    Witnesses,
    ZnodesWitness,
    claims_of,
    judge,
)
from tests.support.migration_states import (
    BROKERS,
    MIGRATION,
    NOBODY,
    OF_KRAFT,
    OF_ZK,
    PRE,
    UNREAD,
    WAITING,
    log,
    metrics,
    witnesses,
)


def test_a_controller_without_a_leader_proves_nothing() -> None:
    """Kafka's metric is -1 until a controller has seen metadata."""
    waiting = metrics(None, 0, active=False)
    report = judge(witnesses(waiting, ZnodesWitness(OF_ZK, WAITING, BROKERS)))
    assert (report.state, report.zk_brokers, report.lag) == ("pre-migration", None, None)
    assert report.waits_for[0] == "a leader of the controllers' quorum"
    assert "majority" in report.next_step
    (claim,) = claims_of(witnesses(waiting))
    assert claim.says == "a controller at http://None: no leader yet"
    started = judge(Witnesses((waiting, metrics(MIGRATION)), UNREAD, UNREAD))
    assert (started.state, started.is_certain, started.waits_for) == ("dual write", True, ())


def test_brokers_that_block_are_named() -> None:
    """By the metadata log; without one, as far as the number of registered brokers tells."""
    znodes = ZnodesWitness(OF_ZK, WAITING, BROKERS, frozenset({2, 3}))
    one, all_three = frozenset({1}), frozenset({1, 2, 3})
    missing = "which has not registered with the controllers"
    expected: dict[LogWitness | MetricsWitness, tuple[str, ...]] = {
        log(PRE, NOBODY): (f"broker 1, {missing}", f"broker 2, {missing}", f"broker 3, {DOWN}"),
        log(PRE, one): (f"broker 2, {missing}", f"broker 3, {DOWN}"),
        log(PRE, all_three): (COPY,),
        metrics(PRE, 0): (f"broker 1, {missing}", f"broker 2, {missing}", f"broker 3, {DOWN}"),
        metrics(PRE, 2): ("some of the brokers 1, 2, 3; to see which, set metadata.log.dir in [source]",),
        metrics(PRE, 3): (COPY,),
        metrics(PRE, None): ("some of the brokers 1, 2, 3; to see which, set metadata.log.dir in [source]",),
    }
    for witness, waits in expected.items():
        of_log = witness if isinstance(witness, LogWitness) else None
        of_metrics = witness if isinstance(witness, MetricsWitness) else None
        assert judge(witnesses(of_metrics, znodes, of_log)).waits_for == waits, witness
    assert judge(witnesses(metrics(PRE, 1))).waits_for == (
        "brokers; to see which, set zookeeper.connect in [source]",
    )


DOWN = "which is down and has not registered with the controllers"
COPY = "the controllers' copy: every broker has registered; look into the active controller's log"


def test_zookeeper_that_does_not_follow_is_named() -> None:
    def look(lag: int, offset: int | None) -> Witnesses:
        znodes = None if offset is None else ZnodesWitness(OF_KRAFT, MigrationZnode(offset), BROKERS)
        return witnesses(MetricsWitness("u", MIGRATION, True, 2, lag), znodes)

    stalled = ("ZooKeeper, which does not get the controllers' records",)
    for before, after, waits in (
        (look(3, 99), look(7, 99), stalled),
        (look(3, 99), look(7, None), stalled),
        (look(3, 99), look(3, 103), ()),
        (look(3, 99), look(2, 99), ()),
        (look(0, 99), look(7, 99), ()),
    ):
        report = judge(after, before)
        assert (report.waits_for, "0 records behind" in report.next_step) == (waits, bool(waits))
    assert judge(look(7, 99)).waits_for == ()


def test_the_lag_is_that_of_the_active_controller() -> None:
    standby = MetricsWitness("a", MIGRATION, False, 2, 0)
    assert judge(witnesses(standby)).lag is None
    assert judge(Witnesses((standby, MetricsWitness("b", MIGRATION, True, 2, 7)), UNREAD, UNREAD)).lag == 7
