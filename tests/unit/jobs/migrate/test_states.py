"""The state of a migration, from every combination of witnesses."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import get_args

import pytest

from kbackup.jobs.migrate.states import (
    REVERSIBLE,
    ControllerZnode,
    KafkaState,
    LogWitness,
    MetricsWitness,
    MigrationZnode,
    NotRead,
    State,
    Witnesses,
    ZnodesWitness,
    claims_of,
    judge,
)
from tests.support.migration_states import (
    BROKERS,
    COPIED,
    MIGRATION,
    NOBODY,
    NONE,
    OF_KRAFT,
    OF_ZK,
    POST,
    PRE,
    UNREAD,
    WAITING,
    ZK,
    log,
    metrics,
    witnesses,
)

RUNBOOK: list[tuple[State, MetricsWitness | None, ZnodesWitness, LogWitness | None]] = [
    ("zookeeper", None, ZnodesWitness(OF_ZK, None, BROKERS), None),
    ("pre-migration", metrics(PRE, 0), ZnodesWitness(OF_ZK, WAITING, BROKERS), log(PRE, NOBODY)),
    ("dual write", metrics(MIGRATION), ZnodesWitness(OF_KRAFT, COPIED, BROKERS), log(MIGRATION)),
    ("brokers moved", metrics(MIGRATION, 0), ZnodesWitness(OF_KRAFT, COPIED, NOBODY), log(MIGRATION, NOBODY)),
    ("finished", metrics(POST, 0), ZnodesWitness(OF_KRAFT, COPIED, NOBODY), log(POST, NOBODY)),
]


@pytest.mark.parametrize("row", RUNBOOK, ids=[row[0] for row in RUNBOOK])
def test_each_state_of_the_runbook(
    row: tuple[State, MetricsWitness | None, ZnodesWitness, LogWitness | None],
) -> None:
    """By all witnesses, and by each two of which one are the znodes."""
    state, of_metrics, znodes, of_log = row
    for observed in (
        witnesses(of_metrics, znodes, of_log),
        witnesses(of_metrics or None, znodes, None),
        witnesses(None, znodes, of_log),
    ):
        if state == "zookeeper" or not (
            isinstance(observed.metrics[0], NotRead) and isinstance(observed.log, NotRead)
        ):
            report = judge(observed)
            assert (report.state, report.is_certain, report.disagreements) == (state, True, ())
            assert bool(report.waits_for) == (state == "pre-migration")
            assert report.way_back == (state != "finished")


def test_znodes_alone_never_prove_the_end() -> None:
    report = judge(witnesses(znodes=ZnodesWitness(OF_KRAFT, COPIED, NOBODY)))
    assert report.state == "unknown"
    assert not report.is_certain
    assert report.possible == ("dual write", "brokers moved", "finished")
    assert not report.way_back
    assert "--metrics-url" in report.next_step


@pytest.mark.parametrize("brokers", [BROKERS, NOBODY])
@pytest.mark.parametrize(("controller", "migration"), [(OF_KRAFT, None), (OF_ZK, COPIED), (None, COPIED)])
def test_half_of_the_deletes(
    controller: ControllerZnode | None, migration: MigrationZnode | None, brokers: frozenset[int]
) -> None:
    report = judge(witnesses(znodes=ZnodesWitness(controller, migration, brokers)))
    assert (report.state, report.way_back) == ("half rolled back", True)
    assert report.waits_for == ("the rest of the rollback",)
    assert "kbackup migrate rollback" in report.next_step


def test_the_log_of_stopped_controllers_does_not_know_of_half_of_the_deletes() -> None:
    for controller, migration in ((OF_KRAFT, None), (OF_ZK, COPIED), (None, COPIED)):
        report = judge(witnesses(None, ZnodesWitness(controller, migration, BROKERS), log(MIGRATION)))
        assert (report.state, report.is_certain, report.way_back) == ("half rolled back", True, True)
        running = judge(witnesses(metrics(MIGRATION), ZnodesWitness(controller, migration, BROKERS)))
        assert not running.is_certain
    assert judge(witnesses(of_log=log(MIGRATION))).state == "dual write"


def test_the_log_that_a_rollback_leaves_is_to_be_deleted() -> None:
    report = judge(witnesses(None, ZnodesWitness(OF_ZK, None, BROKERS), log(MIGRATION)))
    assert (report.state, report.is_certain, report.way_back) == ("zookeeper", False, True)
    assert "controllers' storage" in report.next_step


def test_a_controller_that_is_not_active_is_a_standby() -> None:
    for active, role in ((True, "the active controller"), (False, "a standby controller"), (None, "a node")):
        (claim,) = claims_of(witnesses(metrics(MIGRATION, active=active)))
        assert claim.says.startswith(f"{role} at ")


def test_a_quorum_without_migration_beside_zookeeper() -> None:
    """The quorum never migrates: its log began without a migration."""
    report = judge(witnesses(metrics(NONE, 0), ZnodesWitness(OF_ZK, None, BROKERS)))
    assert report.state == "zookeeper"
    assert "format" in report.next_step


def test_a_cluster_without_zookeeper() -> None:
    assert judge(witnesses(metrics(NONE, 0))).possible == ("zookeeper", "kraft")
    assert judge(witnesses(metrics(NONE, 0))).state == "unknown"


def test_metrics_of_a_broker_prove_little() -> None:
    """A broker that runs with ZooKeeper says ZK in every state that it can be in."""
    broker = metrics(ZK, None, active=None)
    for state, _, znodes, _ in RUNBOOK[:3]:
        assert judge(witnesses(broker, znodes)).state == state
    report = judge(replace(witnesses(metrics(PRE, 1)), metrics=(broker, metrics(PRE, 1))))
    assert (report.state, report.zk_brokers) == ("pre-migration", 1)
    assert judge(witnesses(broker)).possible == ("zookeeper", "pre-migration", "dual write")


def test_the_active_controller_is_believed() -> None:
    behind = metrics(PRE, 2, active=False)
    report = judge(Witnesses((behind, metrics(MIGRATION)), UNREAD, UNREAD))
    assert (report.state, report.is_certain) == ("dual write", False)
    (disagreement,) = report.disagreements
    assert "PRE_MIGRATION" in disagreement
    assert "does not fit dual write" in disagreement


def test_a_log_that_says_the_end_forbids_the_way_back() -> None:
    """Though the znodes are believed: nobody shall go back from a finished migration."""
    report = judge(witnesses(znodes=ZnodesWitness(OF_KRAFT, COPIED, BROKERS), of_log=log(POST, NOBODY)))
    assert report.state == "dual write"
    assert report.disagreements
    assert not report.way_back
    assert "disagree" in report.next_step


def test_state_is_unknown_without_witnesses() -> None:
    report = judge(Witnesses((), UNREAD, UNREAD))
    assert (report.state, report.possible, report.is_certain, report.way_back) == (
        "unknown",
        (),
        False,
        False,
    )
    assert report.not_looked_at == (UNREAD, UNREAD)
    assert (report.lag, report.zk_brokers) == (None, None)


def test_lag_and_brokers_are_the_active_controllers() -> None:
    observed = Witnesses(
        (MetricsWitness("a", MIGRATION, False, 1, 0), MetricsWitness("b", MIGRATION, True, 2, 7)),
        UNREAD,
        UNREAD,
    )
    assert (judge(observed).lag, judge(observed).zk_brokers) == (7, 2)
    assert judge(witnesses(of_log=log(MIGRATION))).zk_brokers == 2


METRICS = [None, metrics(None, 0), *(metrics(s, count) for s in KafkaState for count in (None, 0, 2))]
ZNODES = [
    None,
    *(
        ZnodesWitness(c, m, b)
        for c in (None, OF_KRAFT, OF_ZK)
        for m in (None, WAITING, COPIED)
        for b in (BROKERS, NOBODY)
    ),
]
LOGS = [None, *(log(s, brokers) for s in KafkaState if s is not ZK for brokers in (BROKERS, NOBODY))]


def test_every_combination() -> None:
    """17 metrics, 19 znodes, 9 logs: what is certain follows from all of them, and what disagrees is told."""
    seen: set[State] = set()
    for of_metrics, znodes, of_log in itertools.product(METRICS, ZNODES, LOGS):
        told = witnesses(of_metrics, znodes, of_log)
        report, claims = judge(told), claims_of(told)
        seen.add(report.state)
        assert len(claims) == sum(part is not None for part in (of_metrics, znodes, of_log))
        assert len(report.not_looked_at) == 3 - len(claims)
        common = frozenset(get_args(State))
        for claim in claims:
            common &= claim.states
        assert bool(report.disagreements) == (not common)
        if report.is_certain:
            assert common == {report.state}
        elif common and claims:
            assert set(report.possible) == common
            assert len(common) > 1
        if claims:
            assert set(report.possible) <= claims[0].states
        if any(claim.states == {"finished"} for claim in claims):
            assert not report.way_back
        if report.way_back:
            assert set(report.possible) <= REVERSIBLE
        assert report.next_step
    assert seen == set(get_args(State)) - {"kraft"}  # no witness tells it from a quorum beside ZooKeeper
