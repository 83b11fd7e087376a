"""A store that calls a check before each write: a writer whose lease is lost stops at its next write."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable

from kbackup.store.base import Buffer, Failed, Store, Upload
from kbackup.store.delegating import DelegatingStore


class GuardedStore(DelegatingStore):
    """`Store` over `inner`. `check` raises what ends the writer; reads pass without a check."""

    def __init__(self, inner: Store, check: Callable[[], None]) -> None:
        super().__init__(inner)
        self.check = check

    def put(self, key: str, data: Buffer) -> str:
        self.check()
        return super().put(key, data)

    def put_new(self, key: str, data: Buffer) -> str:
        self.check()
        return super().put_new(key, data)

    def replace(self, key: str, data: Buffer, etag: str) -> str:
        self.check()
        return super().replace(key, data, etag)

    def upload(self, key: str) -> Upload:
        self.check()
        return super().upload(key)

    def delete(self, keys: Iterable[str]) -> builtins.list[Failed]:
        self.check()
        return super().delete(keys)
