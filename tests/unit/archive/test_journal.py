"""The journal of a restore: begun once, finished once, and undone with the operator's word."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from kbackup.archive import layout
from kbackup.archive.models import Member, dump
from kbackup.archive.restores.journal import RestoreJournal
from kbackup.archive.restores.plan import RestorePlan
from kbackup.archive.restores.proof import with_proof
from kbackup.errors import RefusedError, UsageError
from tests.support.archives import planned_topic, restore_plan
from tests.support.memory_store import MemoryStore


@pytest.fixture
def journal() -> RestoreJournal:
    return RestoreJournal(MemoryStore(), "r")


def test_a_restore_begins_once(journal: RestoreJournal) -> None:
    assert journal.begun() is None
    plan = restore_plan(topics=(planned_topic("a", "b"),))
    journal.begin(plan)
    begun = journal.begun()
    assert begun is not None
    assert begun.topics == plan.topics
    with pytest.raises(RefusedError, match="restore r was just begun by another process"):
        journal.begin(plan)


def test_a_document_is_never_replaced(journal: RestoreJournal) -> None:
    first, second = restore_plan(restore_point=1), restore_plan(restore_point=2)
    assert journal.create(layout.PLAN, first)
    assert not journal.create(layout.PLAN, second)
    found = journal.read(RestorePlan, layout.PLAN)
    assert found is not None
    assert found.restore_point == 1


def test_a_restore_without_an_offset_map_is_not_finished(journal: RestoreJournal) -> None:
    with pytest.raises(UsageError, match="there is no restore r at"):
        journal.finished()
    journal.begin(restore_plan())
    with pytest.raises(RefusedError, match="restore r is not finished: it has no offset map yet"):
        journal.finished()


def test_an_id_that_is_not_there_is_answered_with_those_that_are() -> None:
    store = MemoryStore()
    for restore_id in ("tuesday", "friday", "sunday", "friday-2", "monday", "friday0"):
        begun = RestoreJournal(store, restore_id)
        begun.begin(restore_plan(restore_id=restore_id))
        begun.write_offset_map(b"")
    with pytest.raises(UsageError, match="there is no restore fridy at") as raised:
        RestoreJournal(store, "fridy").finished()
    assert raised.value.hint == (
        "check the id (the nearest ones there are friday, friday0, friday-2, sunday, monday), "
        "and --state if the restore was given one"
    )


def test_an_id_that_is_no_name_of_a_folder_is_refused() -> None:
    with pytest.raises(UsageError, match=r"restore id '\.\./x' can't be used"):
        RestoreJournal(MemoryStore(), "../x").begun()


class Undone(Member, frozen=True, kw_only=True):
    confirmed: bool
    unproven: tuple[str, ...] = ()


@dataclass
class Steps:
    """Steps that read the plan of the restore, and note in which order they are called."""

    journal: RestoreJournal
    calls: list[str] = field(default_factory=list)

    def plan(self) -> RestorePlan | None:
        self.calls.append("plan")
        return self.journal.begun()

    def planned_report(self, planned: RestorePlan | None) -> Undone:
        self.calls.append("report")
        return Undone(confirmed=False)

    def carry_out(self, planned: RestorePlan | None) -> Undone:
        self.calls.append("carry out")
        return Undone(confirmed=True)


def test_an_undo_is_planned_and_carried_out_if_it_is_confirmed(journal: RestoreJournal) -> None:
    steps = Steps(journal)
    assert journal.undo(steps, confirm=False, accept_unproven=False) == Undone(confirmed=False)
    assert journal.undo(steps, confirm=True, accept_unproven=False) == Undone(confirmed=True)
    assert steps.calls == ["plan", "report", "plan", "carry out"]


def test_nothing_is_undone_by_documents_that_nothing_proves() -> None:
    store = MemoryStore()
    store.put("restores/r/plan.json", dump(restore_plan()))
    journal = RestoreJournal(with_proof(store, None), "r")
    steps = Steps(journal)
    shown = journal.undo(steps, confirm=False, accept_unproven=False)
    assert shown == Undone(confirmed=False, unproven=("restores/r/plan.json",))
    with pytest.raises(RefusedError, match=r"nothing proves that restores/r/plan\.json at .* restore r wrote"):
        journal.undo(steps, confirm=True, accept_unproven=False)
    assert "carry out" not in steps.calls
    accepted = journal.undo(steps, confirm=True, accept_unproven=True)
    assert accepted == Undone(confirmed=True, unproven=("restores/r/plan.json",))
    assert journal.undo(steps, confirm=True, accept_unproven=False) == Undone(confirmed=True)
