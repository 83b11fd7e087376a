"""Damage of an object of any kind: the commands that status and repair name mend it, or they say that nothing can."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest

from kbackup.archive import layout
from kbackup.archive.lease import HeldLease
from kbackup.archive.models import dump
from kbackup.archive.reader import open_archive
from kbackup.archive.restores.offset_map import MapPartName, runs_table, write_map, write_map_part
from kbackup.archive.restores.plan import RestorePlan
from kbackup.errors import KbackupError
from kbackup.jobs.mirror.flow import write_status
from kbackup.jobs.mirror.status import first_status
from kbackup.jobs.status import archive_status
from kbackup.jobs.verify.report import VerifyReport, record_verification
from kbackup.store.base import Store
from kbackup.types import TopicPartition
from kbackup.util.times import now
from tests.support.drill_reports import store_drill
from tests.support.memory_store import MemoryStore
from tests.support.mirrors import flow_of
from tests.support.repairs import ORDERS, expire_some, harm, make, run, verified


def made_of_every_kind(store: Store) -> None:
    """Six restore points, some expired, and what restores, drills, verifications and mirrors leave."""
    make(store)
    expire_some(store, {3})
    run(store)
    archive_id = open_archive(store).info.id
    plan = RestorePlan(
        restore_id="r",
        archive_id=archive_id,
        restore_point=1,
        target_cluster_id="c",
        created_at="",
        transactions=True,
        transaction_bytes=1,
        into_existing=False,
        topics=(),
        units=(),
        groups=(),
    )
    store.put(layout.restore_key("r", layout.PLAN), dump(plan))
    runs = runs_table({TopicPartition("copy", 0): (np.array([0]), np.array([0]), np.array([1]))})
    write_map_part(store, "r", 0, MapPartName("one", 0), runs, None)
    write_map(store, "r", [runs])
    store_drill(store, "drill-x", archive_id=archive_id)
    write_status(store, first_status(flow_of(), archive_id, None))
    record_verification(store, verified(store), now(), partial=False)
    with HeldLease(store, "kbackup test", 60):
        pass


def kind_of(key: str) -> str:
    """The key without numbers, names of topics, and tokens of runs."""
    key = re.sub(r"[0-9a-f]{12,}|[0-9T-]{23}Z", "", key)
    return re.sub(r"[0-9]+", "0", re.sub(r"(?<=topics/)[a-z]+", "t", key))


def one_of_each_kind(store: Store) -> Iterator[str]:
    orphans = {note.file for note in verified(store).notes}
    yield from {kind_of(e.key): e.key for e in store.list() if e.size and e.key not in orphans}.values()


def said(store: Store) -> list[str]:
    """Return the messages of status on damage, with the commands that it names."""
    try:
        status = archive_status(open_archive(store), max_age_seconds=1e12)
    except KbackupError as error:
        return [str(error)]
    return [f"{f.message}; run: {f.command}" for f in status.findings if f.subject == "damage"]


def follow(store: Store, text: str, report: VerifyReport) -> None:
    """Do what status says: repair, or what verify says of each file where no repair can mend it."""
    if "kbackup repair" in text and "no repair" not in text:
        read_data = "kbackup repair --read-data" in text
        assert run(store, confirm=False, read_data=read_data).changes, text
        assert run(store, read_data=read_data).changes
        return
    assert "kbackup verify" in text
    for finding in report.findings:
        delete = re.search(r"delete ([^ :]+)", finding.hint)
        if delete:
            store.delete([entry.key for entry in store.list() if entry.key.startswith(delete[1])])


@pytest.fixture
def whole() -> MemoryStore:
    store = MemoryStore()
    made_of_every_kind(store)
    return store


def test_the_archive_has_objects_of_every_kind(whole: MemoryStore) -> None:
    folders = {key.partition("/")[0] for key in one_of_each_kind(whole)}
    own = {value for name, value in vars(layout).items() if name.isupper() and isinstance(value, str)}
    expected = {value.rstrip("/") for value in own if value.endswith("/")} - {"check", "keys"}
    assert expected <= folders, "a folder of an archive has no object in this test"


@pytest.mark.parametrize("how", ["flip", "cut", "gone"])
def test_after_the_named_commands_the_archive_is_well(whole: MemoryStore, how: str) -> None:
    assert said(whole) == []
    assert verified(whole).findings == ()
    for key in one_of_each_kind(whole):
        store = whole.copy()
        harm(store, key, how)
        report = verified(store)
        with suppress(KbackupError):
            record_verification(store, report, now(), partial=False)
        texts = said(store)
        if not report.findings:
            assert how == "gone", f"nobody finds that {key} is damaged"
            assert not texts or "kbackup repair" in texts[0], (key, texts)
        else:
            assert texts, f"status says nothing of {key}"
        for text in texts:
            follow(store, text, report)
        left = [f for f in verified(store).findings if "'kbackup repair' can't mend it" not in f.hint]
        assert left == [], (key, texts)
        if not verified(store).findings:
            record_verification(store, verified(store), now(), partial=False)
            lacks = [text for text in said(store) if "lack damaged segments" not in text]
            assert lacks == [], key
        else:
            assert key.startswith(layout.MIRRORS), f"nothing mends {key}, and nothing tells what to delete"


def test_a_flipped_bit_in_an_index_is_repaired_by_the_command_that_status_names(whole: MemoryStore) -> None:
    """Sizes alone do not show it."""
    store = whole.copy()
    harm(store, f"{ORDERS}15_index", "flip")
    report = verified(store)
    assert not run(store, read_data=False).changes
    record_verification(store, report, now(), partial=False)
    assert [text.rpartition("run: ")[2] for text in said(store)] == ["kbackup repair --read-data"]
    assert [mended.file for mended in run(store).mended] == [f"{ORDERS}15_index"]
    assert verified(store).findings == ()
