"""What a restore from Delta tables asks of them before it reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from kbackup.errors import UsageError
from kbackup.jobs.delta_import import check_reached
from kbackup.jobs.export_place import Place, Reached
from kbackup.store import S3Options


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place.at(str(tmp_path / "tables"), S3Options())


def note(place: Place, point: int, topics: Sequence[str] = ()) -> None:
    place.note_reached(
        Reached(archive_id="id", restore_point=point, topics=tuple(topics), exclude_topics=("/tmp.*/",))
    )


@pytest.mark.parametrize(("noted", "ok"), [(None, False), (40, False), (41, True), (43, True)])
def test_tables_of_a_restore_point_that_they_have_not_come_to(
    place: Place, noted: int | None, ok: bool
) -> None:
    if noted is not None:
        note(place, noted)
    check_reached(place, ["a", "b"], [41, 45], 41)
    check_reached(place, [], [41], 41)
    for topics, newest in ((["a", "b"], [41, 38]), ([], [38])):
        if ok:
            check_reached(place, topics, newest, 41)
            continue
        with pytest.raises(UsageError, match="known to be at restore point 38, not at 41"):
            check_reached(place, topics, newest, 41)


def test_what_was_noted_of_other_topics_does_not_count(place: Place) -> None:
    note(place, 41, ["/orders.*/"])
    check_reached(place, ["orders", "orders2"], [3, 4], 41)
    for behind in ("clicks", "tmp"):
        with pytest.raises(UsageError, match=f"/{behind} is known to be at restore point 38, not at 41;"):
            check_reached(place, ["orders", behind], [3, 38], 41)
    with pytest.raises(UsageError, match=r"/clicks is known .* not at 41, and 1 more are behind"):
        check_reached(place, ["clicks", "orders", "tmp"], [38, 3, 39], 41)


def test_a_table_without_rows(place: Place) -> None:
    with pytest.raises(UsageError, match="at restore point 0, not at 1"):
        check_reached(place, [], [0], 1)
    check_reached(place, [], [], 1)
