"""The steps of a restore before it writes."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

from kbackup.archive import layout
from kbackup.archive.models import dump
from kbackup.config.models import Restore
from kbackup.jobs.restore import job as prepare
from kbackup.jobs.restore.job import restore
from kbackup.metrics.registry import Silent
from tests.support.archives import make_archive
from tests.support.memory_store import MemoryStore
from tests.unit.jobs.restore.test_finished import plan


def test_each_step_is_announced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    begun = msgspec.structs.replace(plan(), archive_id=make_archive(store).info.id)
    store.put(layout.restore_key("r", layout.PLAN), dump(begun))
    events: list[str] = []

    class Recorder(Silent):
        def phase(self, name: str) -> None:
            events.append(name)

    cluster = SimpleNamespace(connect=lambda: ("c", 1), topic_names=lambda: {"copy"})
    monkeypatch.setattr(prepare, "Cluster", lambda *_: cluster)
    monkeypatch.setattr(prepare, "compare_settings", lambda *_: None)
    monkeypatch.setattr(prepare, "warn_of_members", lambda *_: ["group g has members"])
    report = restore(
        Restore(restore_id="r"),
        {},
        store,
        store,
        lambda: pytest.fail("Spark"),
        Recorder(),
        dry_run=True,
        show_plan=lambda _plan, warnings: events.extend(warnings),
    )
    assert report.status == "planned"
    assert events == ["connect", "plan", "preflight", "group g has members"]
