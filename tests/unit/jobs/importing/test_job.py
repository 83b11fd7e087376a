"""Checks of a restore from Delta tables before it reads them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kbackup.archive import layout
from kbackup.archive.run import WritingRun
from kbackup.archive.segments.writer import Target
from kbackup.config.models import Backup, Restore
from kbackup.errors import UsageError
from kbackup.jobs.export.destination import Destination, Reached
from kbackup.jobs.importing import job as delta_import
from kbackup.jobs.importing.commit import commit_import
from kbackup.jobs.importing.job import DeltaImport, check_reached
from kbackup.jobs.importing.rows import TableRange
from kbackup.metrics.registry import Silent
from kbackup.store import S3Options
from tests.support.archives import write


@pytest.fixture
def destination(tmp_path: Path) -> Destination:
    return Destination.at(str(tmp_path / "tables"), S3Options())


def note(destination: Destination, point: int, topics: Sequence[str] = ()) -> None:
    destination.note_reached(
        Reached(archive_id="id", restore_point=point, topics=tuple(topics), exclude_topics=("/tmp.*/",))
    )


@pytest.mark.parametrize(("noted", "ok"), [(None, False), (40, False), (41, True), (43, True)])
def test_tables_of_a_restore_point_that_they_have_not_come_to(
    destination: Destination, noted: int | None, ok: bool
) -> None:
    if noted is not None:
        note(destination, noted)
    check_reached(destination, ["a", "b"], [41, 45], 41)
    check_reached(destination, [], [41], 41)
    for topics, newest in ((["a", "b"], [41, 38]), ([], [38])):
        if ok:
            check_reached(destination, topics, newest, 41)
            continue
        with pytest.raises(UsageError, match="known to be at restore point 38, not at 41"):
            check_reached(destination, topics, newest, 41)


def test_notes_of_other_topics_do_not_count(destination: Destination) -> None:
    note(destination, 41, ["/orders.*/"])
    check_reached(destination, ["orders", "orders2"], [3, 4], 41)
    for behind in ("clicks", "tmp"):
        with pytest.raises(UsageError, match=f"/{behind} is known to be at restore point 38, not at 41;"):
            check_reached(destination, ["orders", behind], [3, 38], 41)
    with pytest.raises(UsageError, match=r"/clicks is known .* not at 41, and 1 more are behind"):
        check_reached(destination, ["clicks", "orders", "tmp"], [38, 3, 39], 41)


def test_a_table_without_rows(destination: Destination) -> None:
    with pytest.raises(UsageError, match="at restore point 0, not at 1"):
        check_reached(destination, [], [0], 1)
    check_reached(destination, [], [], 1)


@pytest.fixture
def read(destination: Destination, monkeypatch: pytest.MonkeyPatch) -> list[Restore]:
    """The options of imports that read tables; each makes an archive."""
    restores: list[Restore] = []

    def fill(self: DeltaImport, writing: WritingRun, session: object) -> None:
        restores.append(self.options)
        segments = write(writing.plain, Target("a", 1, 0, 1000, "none"), range(5))
        commit_import(writing, [TableRange("a", 1, 0, 5, 0, 4, 1, 3)], segments)

    def nothing(*_: object) -> Any:
        return type("Nothing", (), {"connect": lambda self: None})()

    monkeypatch.setattr(DeltaImport, "_fill", fill)
    monkeypatch.setattr(delta_import, "delta_session", nothing)
    monkeypatch.setattr(delta_import, "Cluster", nothing)
    return restores


def run(destination: Destination, **options: Any) -> DeltaImport:
    made = DeltaImport(destination, Restore(**options), Backup(), "", "again")
    made.run({}, made.staging, lambda: None, Silent())  # type: ignore[arg-type, return-value]
    return made


def test_an_attempt_again_takes_what_was_imported_only_for_the_same_choice(
    destination: Destination, read: list[Restore]
) -> None:
    run(destination, topics=("a",), restore_point=1)
    run(destination, topics=("a",), restore_point=1, to_time="2024-01-01T00:00:00Z")
    run(destination, range=("a:0:1-3", "a:1:4-"), restore_point=1)
    assert len(read) == 1
    first, second = {"restore_point": 1}, {"restore_point": 2}
    for others in ({"topics": ("b",), **first}, first, {"exclude_topics": ("b",)}, second):
        made = run(destination, **others)
        assert read[-1] == made.options
    assert len(read) == 5
    made.staging.put(layout.restore_key("again", layout.PLAN), b"{}")
    run(destination, topics=("a",))  # goes on with what was begun
    assert len(read) == 5
