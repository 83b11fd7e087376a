"""The files of a metadata log: newest snapshot, segments, torn tails and missing ones."""

from __future__ import annotations

import struct
from pathlib import Path
from threading import Timer

import pytest

from kbackup.errors import CorruptError, UnreachableError, UsageError
from kbackup.migrate.metadata_log.codec import MetadataRecord, record
from kbackup.migrate.metadata_log.image import read_image
from kbackup.migrate.metadata_log.log import MetadataLog, encode_batch, open_log
from tests.support.metadata_records import FOOTER, HEADER, write_segment, write_snapshot


def _no_op(count: int) -> list[MetadataRecord]:
    return [record("NoOpRecord")] * count


def _read(log: MetadataLog) -> tuple[int, list[int]]:
    """Return the number of records in the snapshot, and the offsets of the later records."""
    return len(list(log.snapshot_records())), [r.offset for r in log.later_records()]


def test_a_log_is_read_from_segments_alone(tmp_path: Path) -> None:
    write_segment(tmp_path, 0, _no_op(2), _no_op(1), epoch=3)
    write_segment(tmp_path, 3, _no_op(1), epoch=4)
    log = open_log(tmp_path)
    assert _read(log) == (0, [0, 1, 2, 3])
    assert (log.end_offset, log.epoch, log.torn) == (4, 4, None)


def test_newest_snapshot_and_what_follows(tmp_path: Path) -> None:
    write_snapshot(tmp_path, 2, _no_op(7))
    write_snapshot(tmp_path, 5, _no_op(1), epoch=2)
    (tmp_path / f"{9:020}-{2:010}.checkpoint.part").write_bytes(b"being written")
    (tmp_path / f"{0:020}.log").write_bytes(b"what the snapshot holds is not read")
    write_segment(tmp_path, 3, _no_op(1), _no_op(4), epoch=2)
    log = open_log(tmp_path)
    assert _read(log) == (3, [5, 6, 7])
    assert (log.end_offset, log.epoch) == (8, 2)


def test_a_log_is_read_from_a_snapshot_alone(tmp_path: Path) -> None:
    write_snapshot(tmp_path, 5, _no_op(1), epoch=2)
    write_segment(tmp_path, 5)
    log = open_log(tmp_path)
    assert _read(log) == (3, [])
    assert (log.end_offset, log.epoch) == (5, 2)


def test_torn_tail_of_the_newest_segment(tmp_path: Path) -> None:
    write_segment(tmp_path, 0, _no_op(2))
    newest = write_segment(tmp_path, 2, _no_op(1), _no_op(1))
    size = newest.stat().st_size
    newest.write_bytes(newest.read_bytes()[:-1])
    log = open_log(tmp_path)
    assert _read(log) == (0, [0, 1, 2])
    assert (log.end_offset, log.torn) == (3, f"{newest.name}: byte {size // 2}")


@pytest.mark.exhaustive
def test_a_torn_end_that_stays_is_corrupt(tmp_path: Path) -> None:
    path = write_segment(tmp_path, 0, _no_op(1), _no_op(1))
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    problem = f"byte {size // 2}: the file ends within a batch; records from offset 1 on are missing"
    with pytest.raises(CorruptError, match=problem):
        read_image(tmp_path)


@pytest.mark.exhaustive
def test_a_transaction_that_stays_open_is_corrupt(tmp_path: Path) -> None:
    write_segment(tmp_path, 0, _no_op(2), [record("BeginTransactionRecord")])
    with pytest.raises(CorruptError, match="the log ends at offset 3, within a transaction"):
        read_image(tmp_path)


@pytest.mark.parametrize("more", [0, 1])
def test_an_end_that_a_controller_is_writing_is_read_again(tmp_path: Path, more: int) -> None:
    """Until it is whole, or another end is unfinished."""
    path = write_segment(tmp_path, 0, _no_op(1), _no_op(1), *[[record("BeginTransactionRecord")]] * more)
    whole = path.read_bytes()
    written = len(whole) // (2 + more) * 2 - 1
    path.write_bytes(whole[:written])
    with path.open("ab", buffering=0) as file:
        writing = Timer(0.3, file.write, [whole[written:]])
        writing.start()
        assert read_image(tmp_path).offset == 2 + more
        writing.join()


def test_torn_tail_of_an_older_segment(tmp_path: Path) -> None:
    older = write_segment(tmp_path, 0, _no_op(2))
    older.write_bytes(older.read_bytes()[:-1])
    write_segment(tmp_path, 2, _no_op(1))
    with pytest.raises(CorruptError, match=f"{older.name}: byte 0: the file ends within a batch"):
        _read(open_log(tmp_path))


@pytest.mark.parametrize("snapshot", [None, 3])
def test_records_missing_between_files_are_an_error(tmp_path: Path, snapshot: int | None) -> None:
    if snapshot is not None:
        write_snapshot(tmp_path, snapshot, _no_op(1))
    write_segment(tmp_path, 4, _no_op(1))
    with pytest.raises(CorruptError, match=f"records from offset {snapshot or 0} to 4 are missing"):
        _read(open_log(tmp_path))


def test_a_batch_missing_in_a_file_is_an_error(tmp_path: Path) -> None:
    first = write_segment(tmp_path, 0, _no_op(2))
    second = write_segment(tmp_path, 3, _no_op(2))
    data = first.read_bytes() + second.read_bytes()
    second.unlink()
    first.write_bytes(data)
    with pytest.raises(CorruptError, match="a batch at offset 3, after the one that ends at 2"):
        _read(open_log(tmp_path))


def test_snapshot_without_an_end(tmp_path: Path) -> None:
    path = write_snapshot(tmp_path, 5, _no_op(1))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(CorruptError, match="the file ends within a batch"):
        _read(open_log(tmp_path))
    footer = len(encode_batch(2, 1, 0, [FOOTER]))
    path.write_bytes(whole[:-footer])
    with pytest.raises(CorruptError, match="the snapshot has no footer"):
        _read(open_log(tmp_path))
    path.write_bytes(b"")
    with pytest.raises(CorruptError, match="the snapshot has no footer"):
        _read(open_log(tmp_path))


@pytest.mark.parametrize(
    ("batches", "problem"),
    [
        ([(1, 1, FOOTER)], "a batch at offset 1, after the one that ends at 0"),
        ([(0, 1, HEADER), (2, 1, FOOTER)], "a batch at offset 2, after the one that ends at 1"),
        ([(0, 1, HEADER), (0, 1, FOOTER)], "a batch at offset 0, after the one that ends at 1"),
        ([(0, 2, HEADER), (1, 2, FOOTER)], "a batch of epoch 2 in a snapshot of epoch 1"),
        ([(0, 1, FOOTER)], "the snapshot has a SnapshotFooterRecord at offset 0"),
        ([(0, 1, HEADER), (1, 1, HEADER)], "the snapshot has a SnapshotHeaderRecord at offset 1"),
        ([(0, 1, HEADER), (1, 1, FOOTER), (2, 1, FOOTER)], "has a SnapshotFooterRecord at offset 2"),
    ],
)
def test_snapshot_that_is_not_one_whole(
    tmp_path: Path, batches: list[tuple[int, int, MetadataRecord]], problem: str
) -> None:
    path = tmp_path / f"{5:020}-{1:010}.checkpoint"
    path.write_bytes(b"".join(encode_batch(offset, epoch, 0, [one]) for offset, epoch, one in batches))
    write_segment(tmp_path, 5)
    with pytest.raises(CorruptError, match=f"{path.name}: byte .*{problem}"):
        _read(open_log(tmp_path))


@pytest.mark.parametrize("end", [None, 3])
def test_log_that_ends_before_its_snapshot(tmp_path: Path, end: int | None) -> None:
    """Records after the snapshot may be missing as well."""
    write_snapshot(tmp_path, 5, _no_op(1))
    if end is not None:
        write_segment(tmp_path, 0, _no_op(end))
    with pytest.raises(CorruptError, match=f"the log ends at offset {end or 0}, before its snapshot"):
        _read(open_log(tmp_path))


def test_segment_that_ends_before_its_index(tmp_path: Path) -> None:
    """Cut between two batches."""
    path = write_segment(tmp_path, 0, _no_op(1), _no_op(1), _no_op(1))
    size = path.stat().st_size // 3
    entries = struct.pack(">4i", 1, size, 2, size * 2)
    path.with_suffix(".index").write_bytes(entries.ljust(1024, b"\0"))
    assert _read(open_log(tmp_path)) == (0, [0, 1, 2])
    path.write_bytes(path.read_bytes()[: size * 2])
    with pytest.raises(CorruptError, match=f"byte {size}: the last batch, but the index has one at byte {size * 2}"):
        _read(open_log(tmp_path))


def test_segments_of_several_logs(tmp_path: Path) -> None:
    write_segment(tmp_path, 0, _no_op(3), epoch=2)
    write_segment(tmp_path, 3, _no_op(1), epoch=1)
    with pytest.raises(CorruptError, match="a batch of epoch 1 after one of 2"):
        _read(open_log(tmp_path))
    (tmp_path / f"{3:020}.log").unlink()
    write_segment(tmp_path, 2, _no_op(1), epoch=2)
    with pytest.raises(CorruptError, match="byte 0: the segment before it ends at 3"):
        _read(open_log(tmp_path))


def test_file_that_the_controller_deleted(tmp_path: Path) -> None:
    path = write_segment(tmp_path, 0, _no_op(2))
    log = open_log(tmp_path)
    path.unlink()
    with pytest.raises(UnreachableError, match=f"{path}: No such file"):
        _read(log)


def test_a_folder_without_a_log_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UsageError, match="no metadata log"):
            open_log(folder)
