"""The files of a metadata log: newest snapshot, segments, torn tails and missing ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbackup.errors import CorruptError, UnreachableError, UsageError
from kbackup.kafka.metadata_log.codec import Record, record
from kbackup.kafka.metadata_log.log import MetadataLog, open_log
from tests.support.metadata_records import FOOTER, write_segment, write_snapshot


def _no_op(count: int) -> list[Record]:
    return [record("NoOpRecord")] * count


def _read(log: MetadataLog) -> tuple[int, list[int]]:
    """Return the number of records in the snapshot, and the offsets of the later records."""
    return len(list(log.snapshot_records())), [r.offset for r in log.later_records()]


def test_segments_alone(tmp_path: Path) -> None:
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
    write_segment(tmp_path, 3, _no_op(1), _no_op(4))
    log = open_log(tmp_path)
    assert _read(log) == (3, [5, 6, 7])
    assert (log.end_offset, log.epoch) == (8, 1)


def test_snapshot_alone(tmp_path: Path) -> None:
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


def test_torn_tail_of_an_older_segment(tmp_path: Path) -> None:
    older = write_segment(tmp_path, 0, _no_op(2))
    older.write_bytes(older.read_bytes()[:-1])
    write_segment(tmp_path, 2, _no_op(1))
    with pytest.raises(CorruptError, match=f"{older.name}: byte 0: the file ends within a batch"):
        _read(open_log(tmp_path))


@pytest.mark.parametrize("snapshot", [None, 3])
def test_missing_records(tmp_path: Path, snapshot: int | None) -> None:
    if snapshot is not None:
        write_snapshot(tmp_path, snapshot, _no_op(1))
    write_segment(tmp_path, 4, _no_op(1))
    with pytest.raises(CorruptError, match=f"records from offset {snapshot or 0} to 4 are missing"):
        _read(open_log(tmp_path))


def test_missing_batch(tmp_path: Path) -> None:
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
    footer = write_segment(tmp_path, 9, [FOOTER])
    path.write_bytes(whole[: -footer.stat().st_size])
    with pytest.raises(CorruptError, match="the snapshot has no footer"):
        _read(open_log(tmp_path))
    path.write_bytes(footer.read_bytes())
    with pytest.raises(CorruptError, match="begins with a SnapshotFooterRecord"):
        _read(open_log(tmp_path))


def test_file_that_the_controller_deleted(tmp_path: Path) -> None:
    path = write_segment(tmp_path, 0, _no_op(2))
    log = open_log(tmp_path)
    path.unlink()
    with pytest.raises(UnreachableError, match=f"{path}: No such file"):
        _read(log)


def test_no_log(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UsageError, match="no metadata log"):
            open_log(folder)
