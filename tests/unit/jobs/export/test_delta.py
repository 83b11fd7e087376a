"""The calls of an export to Delta, and failures of Delta; without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from kbackup.archive.reader import Archive
from kbackup.archive.segments.parallel import ReadUnit
from kbackup.config.models import Export
from kbackup.errors import KbackupError, LeaseLostError
from kbackup.jobs.export import tables as delta_export
from kbackup.jobs.export.run import Addition, Additions, ExportJob, ExportReport
from kbackup.jobs.export.tables import export_delta
from kbackup.metrics.registry import Silent
from kbackup.store import S3Options
from kbackup.store.file import FileStore
from tests.support.archives import make_archive
from tests.support.growing_archive import expired, grow


@dataclass
class Delta:
    """Tables in memory: by name, the restore points that each has and the parts that they came in."""

    points: dict[str, list[int]] = field(default_factory=dict)
    parts: list[ReadUnit] = field(default_factory=list)
    broken: dict[str, BaseException] = field(default_factory=dict)

    def table(self, session: object, url: str, options: Mapping[str, str]) -> Table:
        return Table(self, url)

    @contextmanager
    def batch_frame(
        self, session: object, parts: Sequence[ReadUnit], *others: object
    ) -> Iterator[list[ReadUnit]]:
        yield list(parts)


@dataclass
class Table:
    delta: Delta
    url: str

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    def reached(self, app: str) -> int:
        return max(self.delta.points.get(self.name, []), default=0)

    def append(self, rows: list[ReadUnit], app: str, version: int, note: Mapping[str, object]) -> None:
        if self.name in self.delta.broken:
            raise self.delta.broken[self.name]
        self.delta.points.setdefault(self.name, []).append(version)
        self.delta.parts += rows


@pytest.fixture
def delta(monkeypatch: pytest.MonkeyPatch) -> Delta:
    found = Delta()
    monkeypatch.setattr(delta_export, "DeltaTable", found.table)
    monkeypatch.setattr(delta_export, "batch_frame", found.batch_frame)
    monkeypatch.setattr(delta_export, "delta_session", lambda session: session)
    return found


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return make_archive(FileStore(tmp_path / "archive"))


def export(archive: Archive, tmp_path: Path) -> ExportReport:
    spark: Any = object
    url = str(tmp_path / "tables")
    return export_delta(ExportJob(Export(), url, archive.store, S3Options(), spark, Silent(), 60))


def test_segments_of_any_size_are_read_whole_and_held_against_their_checksum(
    delta: Delta, archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after = Additions.after

    def larger(self: Any, seq: int, topic: str | None = None) -> Iterator[Addition]:
        for addition in after(self, seq, topic):
            yield addition._replace(segments=tuple(replace(s, bytes=1 << 30) for s in addition.segments))

    monkeypatch.setattr(Additions, "after", larger)
    export(archive, tmp_path)
    pieces = [piece for part in delta.parts for piece in part.ranges]
    assert sum(piece.segment.count for piece in pieces) == 66
    assert all(piece.whole for piece in pieces)


def test_a_table_that_can_not_be_written_does_not_keep_the_others(
    delta: Delta, archive: Archive, tmp_path: Path
) -> None:
    delta.broken["clicks"] = KbackupError("Delta table clicks: has another schema", "hint")
    with pytest.raises(KbackupError) as raised:
        export(archive, tmp_path)
    assert raised.value.message.startswith("1 of 2 Delta tables could not be brought up to date (")
    assert raised.value.message.endswith("/clicks): Delta table clicks: has another schema")
    assert raised.value.hint == "hint"
    assert delta.points == {"orders": [1, 2]}
    del delta.broken["clicks"]
    assert [table.restore_points for table in export(archive, tmp_path).tables] == [(1,)]
    assert delta.points == {"orders": [1, 2], "clicks": [1]}
    assert export(archive, tmp_path).tables == ()


@pytest.mark.parametrize("error", [LeaseLostError("taken over"), KeyboardInterrupt()], ids=repr)
def test_nothing_more_is_written_where_no_other_table_could_be(
    error: BaseException, delta: Delta, archive: Archive, tmp_path: Path
) -> None:
    delta.broken["clicks"] = error
    with pytest.raises(type(error)):
        export(archive, tmp_path)
    assert delta.points == {}


def test_records_that_expired_before_a_table_had_them(delta: Delta, archive: Archive, tmp_path: Path) -> None:
    assert export(archive, tmp_path).losses == ()
    for seq in range(3, 7):
        grow(archive.store, seq, seq * 10, seq * 10 + 10)
    expired(archive.store, before=45)
    found = export(archive, tmp_path)
    assert [table.restore_points for table in found.tables] == [(4, 5, 6)]
    (loss,) = found.losses
    assert loss.startswith("records of orders-1 below offset 4")
    assert loss.endswith(
        "may not all have been exported: " + f"{tmp_path}/tables/orders was at restore point 2"
    )
    assert export(archive, tmp_path).losses == ()


def test_records_that_expired_before_any_of_them_came(delta: Delta, archive: Archive, tmp_path: Path) -> None:
    for seq in range(3, 7):
        grow(archive.store, seq, seq * 10, seq * 10 + 10)
    expired(archive.store, before=45)
    assert export(archive, tmp_path).losses == (), "tables begin with what there is"


def test_expired_records_are_reported_when_a_table_fails(
    delta: Delta, archive: Archive, tmp_path: Path
) -> None:
    delta.broken["clicks"] = KbackupError("Delta table clicks: has another schema", "hint")
    with pytest.raises(KbackupError):
        export(archive, tmp_path)
    grow(archive.store, 3, 12, 15)
    expired(archive.store, before=16)
    with pytest.raises(
        KbackupError, match=r"has another schema; records of orders-1 below offset 15 have expired"
    ):
        export(archive, tmp_path)
