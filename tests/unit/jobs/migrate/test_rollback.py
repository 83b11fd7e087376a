"""The way back: the steps of each state, every guard, and that nothing but two znodes is ever deleted."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from kbackup.errors import MismatchError
from kbackup.jobs.migrate.rollback import guards
from kbackup.jobs.migrate.rollback.delete import delete_znodes
from kbackup.jobs.migrate.rollback.runbook import runbook
from kbackup.jobs.migrate.rollback.situation import BrokerModes, Controllers, Sign, Situation, ZnodeContent
from kbackup.jobs.migrate.states.judge import judge
from kbackup.jobs.migrate.states.witnesses import (
    ControllerZnode,
    KafkaState,
    LogWitness,
    MetricsWitness,
    MigrationZnode,
    Witnesses,
    ZnodesWitness,
)
from kbackup.jobs.migrate.unread import NotRead

UNREAD = NotRead("not asked", "ask")
BROKERS = frozenset({1, 2})
NOBODY: frozenset[int] = frozenset()
WITH_ZOOKEEPER = BrokerModes(NOBODY, BROKERS, BROKERS)
MOVED = BrokerModes(BROKERS, NOBODY, NOBODY)
ROLLED_BACK = BrokerModes(NOBODY, BROKERS, NOBODY)
OF_KRAFT = ControllerZnode(3000, 5)
COPIED = MigrationZnode(99)
STOPPED: Mapping[str, Sign] = {"c1:9093": "stopped", "c2:9093": "stopped"}


@dataclass
class RecordedZnodes:
    """ZooKeeper, with the version of each znode; what is deleted is written down."""

    versions: dict[str, int]
    deleted: list[str] = field(default_factory=list)

    def delete(self, path: str, version: int) -> bool:
        if self.versions.get(path) != version:
            return False
        self.deleted.append(path)
        return True


def situation(
    controller: ControllerZnode | None = OF_KRAFT,
    migration: MigrationZnode | None = COPIED,
    *,
    of_metrics: MetricsWitness | None = None,
    of_log: LogWitness | None = None,
    registered: frozenset[int] = BROKERS,
    signs: Mapping[str, Sign] = STOPPED,
    brokers: BrokerModes | NotRead = WITH_ZOOKEEPER,
    archived: Mapping[str, str] | NotRead | None = None,
) -> Situation:
    """Of a dual write whose controllers are stopped and whose znodes are archived, unless said otherwise."""
    witness = ZnodesWitness(controller, migration, registered)
    contents = []
    if controller is not None:
        text = json.dumps({"brokerid": controller.id, "kraftControllerEpoch": controller.kraft_epoch})
        contents.append(ZnodeContent("/controller", text, 3, ephemeral=not controller.is_kraft))
    if migration is not None:
        contents.append(
            ZnodeContent("/migration", json.dumps({"kraft_metadata_offset": migration.offset}), 7, False)
        )
    return Situation(
        report=judge(Witnesses((of_metrics or UNREAD,), witness, of_log or UNREAD)),
        witness=witness,
        znodes=tuple(contents),
        controllers=Controllers(signs),
        brokers=brokers,
        archived={znode.path: znode.content for znode in contents} if archived is None else archived,
    )


def deleted(of: Situation) -> list[str]:
    """The paths that a confirmed rollback deletes."""
    znodes = RecordedZnodes({znode.path: znode.version for znode in of.znodes})
    deletion = delete_znodes(of, znodes)
    assert [znode.path for znode in deletion.deleted] == znodes.deleted
    return znodes.deleted


def test_dual_write() -> None:
    assert deleted(situation()) == ["/controller", "/migration"]


def test_before_the_copy_the_controller_is_a_brokers() -> None:
    """Which is in use: /migration alone goes."""
    assert deleted(situation(ControllerZnode(1, -1), MigrationZnode(-1))) == ["/migration"]


@pytest.mark.parametrize(
    ("controller", "migration", "paths"),
    [
        (ControllerZnode(3000, 5), None, ["/controller"]),
        (ControllerZnode(1, -1), MigrationZnode(99), ["/migration"]),
        (None, MigrationZnode(99), ["/migration"]),
        (ControllerZnode(1, -1), None, []),
    ],
)
def test_what_an_ended_rollback_left(
    controller: ControllerZnode | None, migration: MigrationZnode | None, paths: list[str]
) -> None:
    assert deleted(situation(controller, migration)) == paths


REFUSED = [
    (guards.STOPPED, situation(signs={"c1:9093": "stopped", "c2:9093": "answers"}), "alive: c2:9093"),
    (guards.STOPPED, situation(signs={"c1:9093": "silent"}), "proves nothing: c1:9093"),
    (guards.STOPPED, situation(signs={}), "no controller's address"),
    (guards.BROKERS, situation(brokers=UNREAD), "not looked at"),
    (
        guards.BROKERS,
        situation(brokers=BrokerModes(frozenset({2}), frozenset({1}), NOBODY)),
        "KRaft brokers: 2",
    ),
    (guards.BROKERS, situation(brokers=BrokerModes(NOBODY, NOBODY, NOBODY)), "no broker runs"),
    (guards.ARCHIVED, situation(archived=UNREAD), "not looked at"),
    (guards.ARCHIVED, situation(archived={}), "doesn't hold /controller and /migration"),
    (
        guards.ARCHIVED,
        situation(
            archived={"/controller": '{"brokerid": 3000, "kraftControllerEpoch": 5}', "/migration": "{}"}
        ),
        "hold /migration",
    ),
    (guards.WAY_BACK, situation(registered=NOBODY), "dual write or brokers moved or finished"),
    (
        guards.WAY_BACK,
        situation(registered=NOBODY, of_log=LogWitness(KafkaState.POST_MIGRATION, NOBODY, BROKERS, 9)),
        "finished",
    ),
    (
        guards.WAY_BACK,
        situation(of_log=LogWitness(KafkaState.POST_MIGRATION, NOBODY, BROKERS, 9)),
        "dual write",
    ),
    (guards.WAY_BACK, replace(situation(), report=judge(Witnesses((), UNREAD, UNREAD))), "any"),
]


@pytest.mark.parametrize(("name", "refused", "detail"), REFUSED, ids=[f"{r[0]}: {r[2]}" for r in REFUSED])
def test_each_guard_refuses(name: str, refused: Situation, detail: str) -> None:
    (refusing,) = [guard for guard in guards.guards_of(refused) if not guard.holds]
    assert refusing.name == name
    assert detail in refusing.detail
    assert refusing.hint
    with pytest.raises(MismatchError, match=r"^nothing was deleted: ") as raised:
        deleted(refused)
    assert raised.value.exit_code == 10
    assert raised.value.hint == refusing.hint


def test_every_guard_refuses_once() -> None:
    assert {r[0] for r in REFUSED} == {guard.name for guard in guards.guards_of(situation())}
    assert all(guard.holds and not guard.hint for guard in guards.guards_of(situation()))


@pytest.mark.parametrize(("stale", "gone"), [("/controller", []), ("/migration", ["/controller"])])
def test_written_meanwhile(stale: str, gone: list[str]) -> None:
    """Only a live controller writes these: the rest stays."""
    of = situation()
    znodes = RecordedZnodes({z.path: z.version + (z.path == stale) for z in of.znodes})
    with pytest.raises(MismatchError, match=f"{stale} was written"):
        delete_znodes(of, znodes)
    assert znodes.deleted == gone


def test_nothing_else_is_ever_deleted() -> None:
    """In every combination of what is there; and nothing at all where a guard refuses."""
    others = tuple(
        ZnodeContent(path, "x", 1, False) for path in ("/controller_epoch", "/brokers", "/", "/config")
    )
    count = 0
    modes: list[BrokerModes | NotRead] = [UNREAD, WITH_ZOOKEEPER, MOVED, ROLLED_BACK]
    every_sign: list[Mapping[str, Sign]] = [{}, STOPPED, {"c1:9093": "answers"}, {"c1:9093": "silent"}]
    for controller, migration, registered, signs, brokers, is_archived in itertools.product(
        (None, ControllerZnode(3000, 5), ControllerZnode(1, -1)),
        (None, MigrationZnode(-1), MigrationZnode(9)),
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
        holds = all(guard.holds for guard in guards.guards_of(of))
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


def texts(of: Situation) -> list[str]:
    return [step.text.partition(" ")[0] + " " + step.text.split()[1] for step in runbook(of)]


DELETES = ["kbackup migrate", "kbackup migrate", "restart the", "delete the"]


def test_order_from_dual_write() -> None:
    """Controllers, znodes, brokers."""
    metrics = MetricsWitness("u", KafkaState.MIGRATION, True, 2, 5)
    alive = situation(of_metrics=metrics, signs={"c1:9093": "answers"}, archived={})
    assert texts(alive) == ["wait until", "stop every", *DELETES]
    assert [step.done for step in runbook(alive)] == [False, False, False, False, False, None]
    assert [step.done for step in runbook(situation())] == [True, True, False, False, None]


def test_order_from_moved_brokers() -> None:
    """They go back to ZooKeeper while the controllers run."""
    metrics = MetricsWitness("u", KafkaState.MIGRATION, True, 0, 0)
    steps = runbook(
        situation(of_metrics=metrics, registered=NOBODY, brokers=MOVED, signs={"c1:9093": "answers"})
    )
    assert "with ZooKeeper and the migration enabled" in steps[0].text
    assert "leave the controllers running" in steps[0].text
    assert [step.done for step in steps] == [False, True, False, True, False, False, None]
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
    for controller, held in (
        (ControllerZnode(1, -1), "holds /migration as now"),
        (OF_KRAFT, "holds /controller and"),
    ):
        (step,) = [s for s in runbook(situation(controller)) if s.text == "kbackup migrate archive"]
        assert held in step.check


def test_no_way_back() -> None:
    metrics = MetricsWitness("u", KafkaState.POST_MIGRATION, True, 0, 0)
    assert runbook(situation(of_metrics=metrics, registered=NOBODY)) == ()
