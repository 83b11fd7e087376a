"""The way back: the steps of each state, every guard, and that nothing but two znodes is ever deleted."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

import pytest

from kbackup.errors import MismatchError
from kbackup.migrate import rollback
from kbackup.migrate.lag import Lag
from kbackup.migrate.rollback import BrokerModes, Situation, delete_znodes, runbook
from kbackup.migrate.states import ControllerZnode, KafkaState, LogWitness, MetricsWitness, NotRead, Witnesses, judge
from kbackup.migrate.znodes import Sign, ZnodeContent
from tests.support.migration_states import (
    BROKERS,
    MOVED,
    NOBODY,
    OF_KRAFT,
    ROLLED_BACK,
    STOPPED,
    UNREAD,
    WITH_ZOOKEEPER,
    RecordedZnodes,
    deleted,
    situation,
)


def test_a_rollback_of_a_dual_write_deletes_both_znodes() -> None:
    assert deleted(situation()) == ["/controller", "/migration"]


def test_before_the_copy_the_controller_is_a_brokers() -> None:
    """Which is in use: /migration alone goes."""
    assert deleted(situation(ControllerZnode(1, -1), -1)) == ["/migration"]


@pytest.mark.parametrize(
    ("controller", "migration", "paths"),
    [
        (ControllerZnode(3000, 5), None, ["/controller"]),
        (ControllerZnode(1, -1), 99, ["/migration"]),
        (None, 99, ["/migration"]),
        (ControllerZnode(1, -1), None, []),
    ],
)
def test_znodes_of_an_ended_rollback_are_deleted(
    controller: ControllerZnode | None, migration: int | None, paths: list[str]
) -> None:
    assert deleted(situation(controller, migration)) == paths


REFUSED = [
    ("controllers stopped", situation(signs={"c1:9093": "stopped", "c2:9093": "answers"}), "alive: c2:9093"),
    ("controllers stopped", situation(signs={"c1:9093": "silent"}), "proves nothing: c1:9093"),
    ("controllers stopped", situation(signs={}), "no controller's address"),
    ("brokers with ZooKeeper", situation(brokers=UNREAD), "not looked at"),
    (
        "brokers with ZooKeeper",
        situation(brokers=BrokerModes(frozenset({2}), frozenset({1}), NOBODY)),
        "KRaft brokers: 2",
    ),
    ("brokers with ZooKeeper", situation(brokers=BrokerModes(NOBODY, NOBODY, NOBODY)), "no broker runs"),
    ("ZooKeeper complete", situation(lag=UNREAD), "not looked at"),
    (
        "ZooKeeper complete",
        situation(lag=Lag(9, {"TopicRecord": 1, "ConfigRecord": 2}, ())),
        "2 ConfigRecord, 1 TopicRecord",
    ),
    (
        "ZooKeeper complete",
        situation(lag=Lag(9, {}, ("topics: a: in the metadata log, not in ZooKeeper",))),
        "topics: a",
    ),
    ("znodes archived", situation(archived=UNREAD), "not looked at"),
    ("znodes archived", situation(archived={}), "doesn't hold /controller and /migration"),
    (
        "znodes archived",
        situation(archived={"/controller": '{"brokerid": 3000, "kraftControllerEpoch": 5}', "/migration": "{}"}),
        "hold /migration",
    ),
    ("way back", situation(registered=NOBODY), "dual write or brokers moved or finished"),
    (
        "way back",
        situation(registered=NOBODY, of_log=LogWitness(KafkaState.POST_MIGRATION, NOBODY, BROKERS, 9)),
        "finished",
    ),
    ("way back", situation(of_log=LogWitness(KafkaState.POST_MIGRATION, NOBODY, BROKERS, 9)), "dual write"),
    ("way back", replace(situation(), report=judge(Witnesses((), UNREAD, UNREAD))), "any"),
]


@pytest.mark.parametrize(("name", "refused", "detail"), REFUSED, ids=[f"{r[0]}: {r[2]}" for r in REFUSED])
def test_each_guard_refuses_and_nothing_is_deleted(name: str, refused: Situation, detail: str) -> None:
    (refusing,) = [guard for guard in rollback.guards_of(refused) if not guard.holds]
    assert refusing.name == name
    assert detail in refusing.detail
    assert refusing.hint
    with pytest.raises(MismatchError, match=r"^nothing was deleted: ") as raised:
        deleted(refused)
    assert raised.value.exit_code == 10
    assert raised.value.hint == refusing.hint


def test_every_guard_refuses_once() -> None:
    assert {name for name, *_ in REFUSED} == {guard.name for guard in rollback.guards_of(situation())}
    assert all(guard.holds and not guard.hint for guard in rollback.guards_of(situation()))


@pytest.mark.parametrize(("stale", "gone"), [("/controller", []), ("/migration", ["/controller"])])
def test_a_znode_that_was_written_meanwhile_stays(stale: str, gone: list[str]) -> None:
    """Only a live controller writes these: the rest stays."""
    of = situation()
    znodes = RecordedZnodes({z.path: z.version + (z.path == stale) for z in of.znodes})
    with pytest.raises(MismatchError, match=f"{stale} was written"):
        delete_znodes(of, znodes)
    assert znodes.deleted == gone


def test_nothing_else_is_ever_deleted() -> None:
    """In every combination of what is there; and nothing at all where a guard refuses."""
    others = tuple(ZnodeContent(path, "x", 1, False) for path in ("/controller_epoch", "/brokers", "/", "/config"))
    count = 0
    modes: list[BrokerModes | NotRead] = [UNREAD, WITH_ZOOKEEPER, MOVED, ROLLED_BACK]
    every_sign: list[Mapping[str, Sign]] = [{}, STOPPED, {"c1:9093": "answers"}, {"c1:9093": "silent"}]
    for controller, migration, registered, signs, brokers, is_archived in itertools.product(
        (None, ControllerZnode(3000, 5), ControllerZnode(1, -1)),
        (None, -1, 9),
        (BROKERS, NOBODY),
        every_sign,
        modes,
        (True, False),
    ):
        of = situation(
            controller,
            migration,
            registered=registered,
            signs=signs,
            brokers=brokers,
            archived=None if is_archived else {},
        )
        of = replace(of, znodes=(*others, *of.znodes))
        znodes = RecordedZnodes({znode.path: znode.version for znode in of.znodes})
        holds = all(guard.holds for guard in rollback.guards_of(of))
        try:
            delete_znodes(of, znodes)
        except MismatchError:
            assert not holds
            assert znodes.deleted == []
        else:
            assert holds
            expected = ["/controller"] if controller and controller.is_kraft else []
            assert znodes.deleted == expected + (["/migration"] if migration else [])
            count += 1
    assert count > 10


# The order of the steps of a rollback.


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
    steps = runbook(situation(of_metrics=metrics, registered=NOBODY, brokers=MOVED, signs={"c1:9093": "answers"}))
    assert "with ZooKeeper and the migration enabled" in steps[0].text
    assert "leave the controllers running" in steps[0].text
    assert [step.done for step in steps] == [False, True, True, False, True, False, False, None]
    mixed = BrokerModes(frozenset({2}), frozenset({1}), frozenset({1}))
    assert "with ZooKeeper and the migration enabled" in runbook(situation(brokers=mixed))[0].text


def test_order_before_the_copy() -> None:
    waiting = situation(ControllerZnode(1, -1), -1, brokers=ROLLED_BACK)
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


def test_a_finished_migration_has_no_steps_back() -> None:
    metrics = MetricsWitness("u", KafkaState.POST_MIGRATION, True, 0, 0)
    assert runbook(situation(of_metrics=metrics, registered=NOBODY)) == ()
