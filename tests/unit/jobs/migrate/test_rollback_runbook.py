"""The order of the steps of a rollback."""

from __future__ import annotations

from kbackup.jobs.migrate.rollback import runbook
from kbackup.jobs.migrate.states import (
    ControllerZnode,
    KafkaState,
    LogWitness,
    MetricsWitness,
    MigrationZnode,
)
from kbackup.jobs.migrate.znodes import BrokerModes, Lag, Situation
from tests.support.rollbacks import (
    BROKERS,
    MOVED,
    NOBODY,
    OF_KRAFT,
    ROLLED_BACK,
    UNREAD,
    situation,
)


def texts(of: Situation) -> list[str]:
    return [step.text.partition(" ")[0] + " " + step.text.split()[1] for step in runbook(of)]


DELETES = ["kbackup migrate", "kbackup migrate", "restart the", "delete the"]


def test_order_from_dual_write() -> None:
    """Controllers, znodes, brokers."""
    metrics = MetricsWitness("u", KafkaState.MIGRATION, True, 2, 5)
    alive = situation(of_metrics=metrics, signs={"c1:9093": "answers"}, archived={}, lag=UNREAD)
    assert texts(alive) == ["wait until", "kbackup migrate", "stop every", *DELETES]
    assert [step.done for step in runbook(alive)] == [False, None, False, False, False, False, None]
    assert [step.done for step in runbook(situation())] == [True, True, True, True, False, False, None]


def test_zookeeper_is_waited_for_when_no_controller_tells_its_lag() -> None:
    """By the logs on disk, or unknown; the controllers that died are to be started again."""
    unknown = runbook(situation(lag=UNREAD))
    assert [(step.text, step.done) for step in unknown[:2]] == [
        ("wait until ZooKeeper has every record", None),
        ("kbackup migrate verify", None),
    ]
    behind = runbook(situation(lag=Lag(1960, {"TopicRecord": 1}, ("topics: a: in the metadata log",))))
    assert [(step.text, step.done) for step in behind[:2]] == [
        ("start the controllers again, and wait until ZooKeeper has every record", False),
        ("kbackup migrate verify", False),
    ]


def test_order_from_moved_brokers() -> None:
    """They go back to ZooKeeper while the controllers run."""
    metrics = MetricsWitness("u", KafkaState.MIGRATION, True, 0, 0)
    steps = runbook(
        situation(of_metrics=metrics, registered=NOBODY, brokers=MOVED, signs={"c1:9093": "answers"})
    )
    assert "with ZooKeeper and the migration enabled" in steps[0].text
    assert "leave the controllers running" in steps[0].text
    assert [step.done for step in steps] == [False, True, True, False, True, False, False, None]
    mixed = BrokerModes(frozenset({2}), frozenset({1}), frozenset({1}))
    assert "with ZooKeeper and the migration enabled" in runbook(situation(brokers=mixed))[0].text


def test_order_before_the_copy() -> None:
    waiting = situation(ControllerZnode(1, -1), MigrationZnode(-1), brokers=ROLLED_BACK)
    assert texts(waiting) == ["stop every", *DELETES]
    assert [step.done for step in runbook(waiting)] == [True, True, False, True, None]


def test_nothing_to_roll_back() -> None:
    assert runbook(situation(ControllerZnode(1, -1), None, brokers=ROLLED_BACK, signs={})) == ()
    rolling = runbook(situation(ControllerZnode(1, -1), None))
    assert [step.done for step in rolling] == [True, True, False, None]


def test_the_controllers_storage_is_to_be_deleted() -> None:
    """While metadata.log.dir has the log of a migration that was rolled back."""
    of_log = LogWitness(KafkaState.MIGRATION, BROKERS, NOBODY, 9)
    steps = runbook(situation(ControllerZnode(1, -1), None, brokers=ROLLED_BACK, of_log=of_log))
    assert [step.done for step in steps] == [True, True, True, False]
    assert "delete the controllers' storage" in steps[-1].text
    begun = LogWitness(KafkaState.NONE, NOBODY, NOBODY, 0)  # formatted, and never started with the migration
    assert runbook(situation(ControllerZnode(1, -1), None, brokers=ROLLED_BACK, of_log=begun)) == ()


def test_the_archive_is_to_hold_what_will_be_deleted() -> None:
    for controller, archived in (
        (ControllerZnode(1, -1), "holds /migration as now"),
        (OF_KRAFT, "holds /controller and"),
    ):
        (step,) = [s for s in runbook(situation(controller)) if s.text == "kbackup migrate archive"]
        assert archived in step.check


def test_no_way_back() -> None:
    metrics = MetricsWitness("u", KafkaState.POST_MIGRATION, True, 0, 0)
    assert runbook(situation(of_metrics=metrics, registered=NOBODY)) == ()
