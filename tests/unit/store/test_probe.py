"""A store that ignores conditions is found out."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbackup.errors import AlreadyExistsError, PreconditionError, StoreError
from kbackup.store.base import Buffer
from kbackup.store.file import FileStore
from kbackup.store.probe import check_conditional_writes


class Overwrites(FileStore):
    def put_new(self, key: str, data: Buffer) -> str:
        return self.put(key, data)


class Replaces(FileStore):
    def replace(self, key: str, data: Buffer, etag: str) -> str:
        return self.put(key, data)


@pytest.mark.parametrize(("kind", "condition"), [(Overwrites, "If-None-Match"), (Replaces, "If-Match")])
def test_a_store_that_ignores_conditions(tmp_path: Path, kind: type[FileStore], condition: str) -> None:
    store = kind(tmp_path)
    with pytest.raises(StoreError, match=f"ignores conditional writes .{condition}") as caught:
        check_conditional_writes(store, "probes")
    assert not isinstance(caught.value, (AlreadyExistsError, PreconditionError))
    assert list(store.list()) == []
