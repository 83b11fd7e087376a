"""A restore point is not made of segments that its directory lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbackup.archive.new_point import check_written
from kbackup.errors import StoreError
from kbackup.store.file import FileStore
from tests.support.encrypted_stores import Stores
from tests.support.made_segments import target, write


def test_a_segment_that_is_not_in_the_directory_ends_the_commit(tmp_path: Path) -> None:
    """A task may have written it to the disk of another machine."""
    store = FileStore(tmp_path)
    first, second = write(store, target(threshold=200), range(8))[:2]
    check_written(store, [first, second])
    (tmp_path / second.key).write_bytes(b"short")
    with pytest.raises(StoreError, match=f"{second.key} has 5 bytes, not {second.stored}"):
        check_written(store, [first, second])
    (tmp_path / second.key).unlink()
    with pytest.raises(StoreError, match=f"{second.key} is not there"):
        check_written(store, [first, second])


def test_an_encrypted_segment_has_the_size_of_its_plain_bytes(tmp_path: Path) -> None:
    store = Stores(tmp_path).store
    check_written(store, write(store, target(), range(8)))
