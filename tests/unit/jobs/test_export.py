"""Additions to export: by restore point, also where some of them were expired."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from shutil import copytree
from typing import Any, Never

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbackup.archive.catalog.commit import Author, commit
from kbackup.archive.catalog.retention import lose_segments
from kbackup.archive.query.selection import Selection
from kbackup.archive.reader import Archive, open_archive
from kbackup.archive.segments.parallel import ReadUnit
from kbackup.archive.segments.read import read_segment
from kbackup.archive.segments.rows import to_export_batch
from kbackup.cli import main
from kbackup.config.models import Export
from kbackup.errors import KbackupError, LeaseLostError, RefusedError, StoreError, UsageError
from kbackup.formats.block import slice_block
from kbackup.formats.stream import scan
from kbackup.jobs.export.destination import Destination
from kbackup.jobs.export.job import (
    PART_BYTES,
    Additions,
    DeltaTools,
    ExportJob,
    ExportReport,
    ExportRun,
    TableReport,
    by_date,
    chunks,
    export_delta,
    export_parquet,
    run_export,
)
from kbackup.store.file import FileStore
from kbackup.types import RecordBlock
from tests.support.archives import expired, grow, grow_each, make_archive
from tests.support.export_jobs import export_job
from tests.support.memory_store import MemoryStore
from tests.unit.formats.reference import a_record, encode_record

pytestmark = pytest.mark.usefixtures("addressed")


@pytest.fixture
def archive() -> Archive:
    return make_archive(MemoryStore())


def additions(archive: Archive, topics: Sequence[str] = (), excluded: Sequence[str] = ()) -> Additions:
    return Additions(open_archive(archive.store), Selection.of(topics, excluded))


def records(selected: Additions, number: int, topic: str | None = None) -> dict[int, int]:
    """By restore point, after `number`."""
    return {addition.point.number: addition.records for addition in selected.after(number, topic)}


def test_restore_points_in_order(archive: Archive) -> None:
    selected = additions(archive)
    assert selected.newest == 2
    assert records(selected, 0) == {1: 42, 2: 24}
    assert records(selected, 1) == {2: 24}
    assert records(selected, 2) == {}
    assert records(selected, 0, "clicks") == {1: 20}
    assert selected.topics_after(0) == ["clicks", "orders"]
    assert selected.topics_after(1) == ["orders"]
    first, second = selected.after(0, "orders")
    assert first.partitions == second.partitions == {("orders", 1): 3}
    for ahead in (lambda: list(selected.after(3)), lambda: selected.topics_after(3)):
        with pytest.raises(RefusedError, match=r"up to restore point 3, the newest of .* is 2"):
            ahead()
    places = [(s.partition, s.first) for s in first.segments]
    assert places == sorted(places)


def test_an_export_takes_the_topics_that_are_selected(archive: Archive) -> None:
    assert additions(archive, ["clicks"]).topics_after(0) == ["clicks"]
    assert records(additions(archive, excluded=["/cl.*/"]), 0) == {1: 22, 2: 24}
    additions(archive, ["clicks"]).check_names()
    with pytest.raises(UsageError, match="no topic nothing"):
        additions(archive, ["clicks", "nothing"]).check_names()
    with pytest.raises(UsageError, match=r"no topic odrers in .*did you mean orders"):
        additions(archive, ["odrers"]).check_names()
    with pytest.raises(UsageError, match=r"matches /x.*/"):
        additions(archive, ["/x.*/"]).check_names()


def test_records_of_expired_points_come_with_the_next_restore_point(archive: Archive) -> None:
    expire(archive, 1)
    selected = additions(archive)
    assert records(selected, 0) == {2: 66}
    assert records(selected, 1) == {2: 24}  # for a table that had restore point 1 before it went
    assert selected.topics_after(1) == ["orders"]


def due(archive: Archive, points: int) -> list[int]:
    """The records to export to tables that have restore point 0, 1 and so on."""
    return [sum(records(additions(archive), number).values()) for number in range(points)]


def lose(archive: Archive, number: int) -> None:
    """And repair."""
    folder = f"points/{number:010d}-"
    archive.store.delete([e.key for e in archive.store.list(folder) if e.key.endswith("/manifest.json")])
    assert main(["repair", archive.store.url, "--confirm", "--quiet"]) in (0, 3)


def expire(archive: Archive, keep: int) -> None:
    assert main(["expire", archive.store.url, "--keep-last", str(keep), "--confirm", "--quiet"]) == 0


def test_repaired_points_are_not_exported_twice(archive: Archive) -> None:
    """A restore point keeps its number and its records, whatever was lost of it."""
    grow(archive.store, 3, 50, 60)
    for lost in (3, 2):
        lose(archive, lost)
        selected = additions(archive)
        assert selected.newest == 3
        assert records(selected, 0) == {1: 42, 2: 24, 3: 10}
        assert records(selected, 1) == {2: 24, 3: 10}
        assert records(selected, 2) == {3: 10}
        assert records(selected, 3) == {}


@pytest.mark.parametrize("keep", [2, 1])
def test_a_repair_and_then_an_expiration(archive: Archive, keep: int) -> None:
    lose(archive, 2)
    grow(archive.store, 3, 50, 60)
    expire(archive, keep)
    assert due(archive, 3) == [76, 34, 10]


def test_an_expiration_and_then_a_repair(archive: Archive) -> None:
    grow(archive.store, 3, 50, 60)
    expire(archive, 2)
    lose(archive, 3)
    assert due(archive, 4) == [76, 34, 10, 0]
    grow(archive.store, 4, 60, 70)
    expire(archive, 1)
    assert due(archive, 5) == [86, 44, 20, 10, 0]


# Destinations that an export accepts and refuses.


Job = Callable[[ExportJob], ExportReport]


def no_spark() -> Never:
    raise AssertionError("nothing is to be exported")


@pytest.mark.exhaustive(keep=2)
@pytest.mark.parametrize("job", [export_delta, export_parquet])
@pytest.mark.parametrize("destination", ["archive", "archive/", "archive/lake", "", "link/lake", "other", "file://"])
def test_never_into_or_around_an_archive(job: Job, destination: str, tmp_path: Path) -> None:
    store = FileStore(tmp_path / "archive")
    make_archive(store)
    make_archive(FileStore(tmp_path / "other"))
    (tmp_path / "link").symlink_to(tmp_path / "archive")
    url = f"file://{tmp_path}/archive" if destination == "file://" else f"{tmp_path}/{destination}"
    before = set(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match=r"is the archive itself|(lies within|holds) the archive|other is an archive"):
        job(export_job(store, url, no_spark))
    assert set(tmp_path.rglob("*")) == before


def test_an_export_that_decodes_needs_schemas(archive: Archive, tmp_path: Path) -> None:
    job = export_job(archive.store, f"{tmp_path}/lake", no_spark, Export(decode=True))
    with pytest.raises(UsageError, match="the restore point has no schemas, and no schema registry is named"):
        export_parquet(job)
    assert not list(tmp_path.iterdir())


def test_a_bucket_as_spark_writes_it_and_a_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Destination.at("s3a://lake/kafka/", {}).url == "s3://lake/kafka"
    assert Destination.at("~/lake", {}).url == f"{tmp_path}/lake"


@pytest.mark.parametrize(("table", "link"), [("orders", "orders"), ("orders", "orders/_delta_log"), ("", "_delta_log")])
def test_a_table_whose_folder_is_a_link_is_refused(tmp_path: Path, table: str, link: str) -> None:
    lake = tmp_path / "lake"
    (lake / link).parent.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    Destination.at(str(lake), {}).check_links([table])
    (lake / link).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match=f"{link} is a symbolic link"):
        Destination.at(str(lake), {}).check_links([table])


def test_only_an_archive_that_goes_on_from_where_it_was(tmp_path: Path) -> None:
    destination = Destination.at(f"{tmp_path}/lake", {})
    store, lags, diverged = (FileStore(tmp_path / name) for name in ("archive", "lags", "diverged"))
    make_archive(store)
    copytree(tmp_path / "archive", tmp_path / "lags")
    copytree(tmp_path / "archive", tmp_path / "diverged")
    grow(store, 3, 50, 60)
    destination.check_same_lineage(open_archive(store))
    with pytest.raises(RefusedError, match=r"has all up to restore point 3, but the newest one of .*lags is 2"):
        destination.check_same_lineage(open_archive(lags))
    for seq in (3, 4):
        grow(diverged, seq, seq * 17, seq * 17 + 10)
    with pytest.raises(RefusedError, match=r"lake has diverged from .*diverged: restore point 3 is of another"):
        destination.check_same_lineage(open_archive(diverged))
    copytree(tmp_path / "archive", tmp_path / "lags", dirs_exist_ok=True)
    grow(lags, 4, 60, 70)
    destination.check_same_lineage(open_archive(lags))
    with pytest.raises(RefusedError, match=r"has all up to restore point 4, but the newest one of .*archive is 3"):
        destination.check_same_lineage(open_archive(store))


@pytest.mark.parametrize("job", [export_delta, export_parquet])
def test_an_archive_that_is_behind_gets_nothing_exported(job: Job, tmp_path: Path) -> None:
    store, ahead = FileStore(tmp_path / "archive"), FileStore(tmp_path / "ahead")
    make_archive(store)
    copytree(tmp_path / "archive", tmp_path / "ahead")
    grow(ahead, 3, 50, 60)
    Destination.at(f"{tmp_path}/lake", {}).check_same_lineage(open_archive(ahead))
    with pytest.raises(RefusedError, match="has all up to restore point 3"):
        job(export_job(store, f"{tmp_path}/lake", no_spark))


# Records that expired before Parquet files had them: told once, by exit code 3.


Exporting = Callable[..., ExportReport]


@pytest.fixture
def exporting(tmp_path: Path, tasks_run_here: None) -> Exporting:
    """Export Parquet files, without Spark."""

    def run(archive: Archive, *topics: str, to: str = "lake", transform: str | None = None) -> ExportReport:
        spark: Any = object
        options = Export(topics=topics, transform=transform)
        return export_parquet(export_job(archive.store, f"{tmp_path}/{to}", spark, options))

    return run


def test_records_that_expired_before_they_were_exported_are_reported_once(
    archive: Archive, exporting: Exporting
) -> None:
    assert exporting(archive).losses == ()
    grow_each(archive.store, range(3, 7))
    expired(archive.store, before=45)
    (loss,) = exporting(archive).losses
    assert loss.startswith("records of orders-1 below offset 4")
    assert "lake was at restore point 2" in loss
    assert exporting(archive).losses == ()


def test_a_loss_of_all_that_was_new_is_reported_once(archive: Archive, exporting: Exporting) -> None:
    assert exporting(archive, "orders").losses == ()
    grow(archive.store, 3, 12, 15)
    expired(archive.store, before=16)
    assert exporting(archive, "orders").losses
    assert exporting(archive, "orders").losses == ()


def test_damaged_records_are_reported_by_the_export_that_they_would_have_come_with(
    archive: Archive, exporting: Exporting
) -> None:
    lost = {s.key: "its object is missing" for s in archive.added(1, 2)[:1]}
    commit(archive.store, archive.committed, lambda s: lose_segments(s, lost), Author("repair", "", "test"))
    assert exporting(archive, "clicks", to="clicks").losses == ()
    assert exporting(archive).losses == ("offsets 15 to 23 of orders-0: its object is missing",)
    assert exporting(archive).losses == ()


def test_other_files_beside_the_points_are_let_alone(tmp_path: Path, archive: Archive, exporting: Exporting) -> None:
    points = FileStore(tmp_path / "lake" / "_kbackup")
    others = ("README.txt", ".DS_Store", "old/0000000099.json", "0000000099.json.bak", "99.json")
    for name in others:
        points.put(f"points/{name}", b"mine")

    (first,) = exporting(archive).tables
    assert first.restore_points == (1, 2)
    grow(archive.store, 3, 12, 15)
    (second,) = exporting(archive).tables
    assert second.restore_points == (3,)
    assert {points.get(f"points/{name}") for name in others} == {b"mine"}


# Records that go through a function.


@pytest.fixture
def mask(tmp_path: Path) -> str:
    """A function that leaves out every record with an odd offset, and replaces all values."""
    file = tmp_path / "mask.py"
    file.write_text(
        "import pyarrow as pa\n"
        "import pyarrow.compute as pc\n"
        "def mask(batch):\n"
        "    kept = batch.filter(pc.equal(pc.bit_wise_and(batch.column('offset'), 1), 0))\n"
        "    return kept.set_column(4, 'value', pa.array([b'x'] * len(kept), pa.large_binary()))\n"
        "def nothing(batch):\n"
        "    return batch.slice(0, 0)\n"
    )
    return str(file)


def rows_in(lake: Path) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    for file in sorted(lake.rglob("*.parquet")):
        rows = pq.ParquetFile(file).read(["offset", "value"]).to_pylist()
        found += [(row["offset"], row["value"]) for row in rows]
    return found


def test_rows_are_what_a_transform_makes_of_the_records(
    tmp_path: Path, archive: Archive, exporting: Exporting, mask: str
) -> None:
    plain, masked = exporting(archive, to="plain"), exporting(archive, to="lake", transform=f"{mask}:mask")
    even = [offset for offset, _ in rows_in(tmp_path / "plain") if offset % 2 == 0]
    assert rows_in(tmp_path / "lake") == [(offset, b"x") for offset in even]
    assert (masked.records, masked.left_out) == (len(even), plain.records - len(even))
    assert plain.left_out == 0


def test_a_restore_point_of_which_nothing_is_left_counts_as_exported(
    tmp_path: Path, archive: Archive, exporting: Exporting, mask: str
) -> None:
    report = exporting(archive, transform=f"{mask}:nothing")
    assert (report.records, report.left_out) == (0, 66)
    assert rows_in(tmp_path / "lake") == []
    assert exporting(archive, transform=f"{mask}:nothing").tables == ()


def test_a_destination_keeps_the_transform_that_it_began_with(
    tmp_path: Path, archive: Archive, exporting: Exporting, mask: str
) -> None:
    exporting(archive, transform=f"{mask}:mask")
    grow(archive.store, 3, 12, 15)
    with pytest.raises(RefusedError, match=r"was begun with transform mask.py:mask \(.*\), this export is without one"):
        exporting(archive)
    with pytest.raises(RefusedError, match=r"was begun with transform mask.py:mask .* is with mask.py:nothing"):
        exporting(archive, transform=f"{mask}:nothing")
    moved = tmp_path / "moved.py"
    Path(mask).rename(moved)
    assert exporting(archive, transform=f"{moved}:mask").tables[0].restore_points == (3,)
    exporting(archive, to="plain")
    with pytest.raises(RefusedError, match=r"was begun without a transform, this export is with moved.py:mask"):
        exporting(archive, to="plain", transform=f"{moved}:mask")


# Which file holds a record: by the record alone, however blocks fall.


DAY = 86_400_000


def block_of(*stamps: int | None) -> RecordBlock:
    records = [
        a_record(n, kind=-1 if at is None else 0, timestamp=at, key=None, value=b"value") for n, at in enumerate(stamps)
    ]
    return scan(b"".join(map(encode_record, records)), name="test")


@given(cuts=st.sets(st.integers(1, 29)))
def test_chunks_end_at_the_same_records_wherever_blocks_end(cuts: set[int]) -> None:
    block = block_of(*range(30))
    pieces = (slice_block(block, a, b) for a, b in pairwise([0, *sorted(cuts), 30]))
    found = [[int(offset) for part in held for offset in part.offsets] for held in chunks(pieces, 200)]
    size = int(block.lengths[0])
    each = 200 // size + 1
    assert found == [list(range(at, min(at + each, 30))) for at in range(0, 30, each)]


def test_a_file_for_each_date() -> None:
    block = block_of(DAY, 0, None, DAY + 1, 2 * DAY - 1, 1, 2 * DAY)
    table = pa.Table.from_batches([to_export_batch(block, "t", 0, "s", 1, 1, 1)])
    found = {day: rows.column("offset").to_pylist() for day, rows in by_date(table)}
    assert found == {
        "1970-01-01": [1, 5],
        "1970-01-02": [0, 3, 4],
        "1970-01-03": [6],
        "__HIVE_DEFAULT_PARTITION__": [2],
    }
    (only,) = by_date(table.slice(3, 2))
    assert only[0] == "1970-01-02"


# The calls of an export to Delta, and failures of Delta; without Spark.


@dataclass
class Delta:
    """Tables in memory: by name, the restore points that each has and the parts that they came in."""

    points: dict[str, list[int]] = field(default_factory=dict)
    parts: list[ReadUnit] = field(default_factory=list)
    broken: dict[str, BaseException] = field(default_factory=dict)

    def session(self, session: object) -> object:
        return session

    def table(self, session: object, url: str, options: Mapping[str, str]) -> Table:
        return Table(self, url)

    @contextmanager
    def batch_frame(self, session: object, parts: Sequence[ReadUnit], *others: object) -> Iterator[list[ReadUnit]]:
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
def delta() -> Delta:
    return Delta()


@pytest.fixture
def archive_delta(tmp_path: Path) -> Archive:
    return make_archive(FileStore(tmp_path / "archive"))


def export(delta: Delta, archive: Archive, tmp_path: Path, part_bytes: int = PART_BYTES) -> ExportReport:
    spark: Any = object
    in_memory: Any = delta
    url = str(tmp_path / "tables")
    tools = DeltaTools(in_memory.session, in_memory.table, in_memory.batch_frame, part_bytes)
    return export_delta(export_job(archive.store, url, spark), tools)


def test_segments_of_any_size_are_read_whole_and_held_against_their_checksum(
    delta: Delta, archive_delta: Archive, tmp_path: Path
) -> None:
    export(delta, archive_delta, tmp_path, part_bytes=1)
    pieces = [piece for part in delta.parts for piece in part.ranges]
    assert sum(piece.segment.count for piece in pieces) == 66
    assert all(piece.whole for piece in pieces)


def test_a_table_that_can_not_be_written_does_not_keep_the_others(
    delta: Delta, archive_delta: Archive, tmp_path: Path
) -> None:
    delta.broken["clicks"] = KbackupError("Delta table clicks: has another schema", "hint")
    with pytest.raises(KbackupError) as raised:
        export(delta, archive_delta, tmp_path)
    assert raised.value.message.startswith("1 of 2 Delta tables could not be brought up to date (")
    assert raised.value.message.endswith("/clicks): Delta table clicks: has another schema")
    assert raised.value.hint == "hint"
    assert delta.points == {"orders": [1, 2]}
    del delta.broken["clicks"]
    assert [table.restore_points for table in export(delta, archive_delta, tmp_path).tables] == [(1,)]
    assert delta.points == {"orders": [1, 2], "clicks": [1]}
    assert export(delta, archive_delta, tmp_path).tables == ()


@pytest.mark.parametrize("error", [LeaseLostError("taken over"), KeyboardInterrupt()], ids=repr)
def test_nothing_more_is_written_where_no_other_table_could_be(
    error: BaseException, delta: Delta, archive_delta: Archive, tmp_path: Path
) -> None:
    delta.broken["clicks"] = error
    with pytest.raises(type(error)):
        export(delta, archive_delta, tmp_path)
    assert delta.points == {}


def test_records_that_expired_before_a_table_had_them(delta: Delta, archive_delta: Archive, tmp_path: Path) -> None:
    assert export(delta, archive_delta, tmp_path).losses == ()
    grow_each(archive_delta.store, range(3, 7))
    expired(archive_delta.store, before=45)
    found = export(delta, archive_delta, tmp_path)
    assert [table.restore_points for table in found.tables] == [(4, 5, 6)]
    (loss,) = found.losses
    assert loss.startswith("records of orders-1 below offset 4")
    assert loss.endswith("may not all have been exported: " + f"{tmp_path}/tables/orders was at restore point 2")
    assert export(delta, archive_delta, tmp_path).losses == ()


def test_records_that_expired_before_any_of_them_came(delta: Delta, archive_delta: Archive, tmp_path: Path) -> None:
    grow_each(archive_delta.store, range(3, 7))
    expired(archive_delta.store, before=45)
    assert export(delta, archive_delta, tmp_path).losses == (), "tables begin with what there is"


def test_expired_records_are_reported_when_a_table_fails(delta: Delta, archive_delta: Archive, tmp_path: Path) -> None:
    delta.broken["clicks"] = KbackupError("Delta table clicks: has another schema", "hint")
    with pytest.raises(KbackupError):
        export(delta, archive_delta, tmp_path)
    grow(archive_delta.store, 3, 12, 15)
    expired(archive_delta.store, before=16)
    with pytest.raises(KbackupError, match=r"has another schema; records of orders-1 below offset 15 have expired"):
        export(delta, archive_delta, tmp_path)


def test_an_export_that_an_expiration_overtakes_finds_no_damage(tmp_path: Path, archive: Archive) -> None:
    def write(run: ExportRun) -> list[TableReport]:
        expired(archive.store, before=9)
        for segment in run.archive.added(0, 2):
            list(read_segment(run.job.store, segment))
        return []

    job = export_job(archive.store, str(tmp_path), lambda: pytest.fail("Spark"))
    with pytest.raises(RefusedError, match="an expiration beside this command deleted objects"):
        run_export(job, "parquet", "parquet", write)
