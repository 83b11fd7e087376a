"""Stores: where an archive's objects are. `base` states what every store promises."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from kbackup.errors import UsageError
from kbackup.store.base import Store
from kbackup.store.options import S3Options

__all__ = ["S3Options", "Store", "open_store"]

_HINT = "write s3://bucket/prefix, file:///path or a path"


def open_store(url: str, options: S3Options | None = None, key: str = "", cache: Path | None = None) -> Store:
    """The store at `s3://bucket/prefix`, `file:///path` or a path; with `key` (`encryption.key`) what is encrypted
    by it. What was listed in a bucket is kept in the folder `cache`. Nothing is asked or made before its first use."""
    plain = _plain_store(url, options)
    store = _cached(plain, cache, options) if cache is not None and url.startswith("s3://") else plain
    if not key:
        return store
    from kbackup.store.crypt import CryptStore
    from kbackup.store.crypt.keyring import Keyring

    return CryptStore(store, Keyring(plain, key))  # keys are asked for each time: one that is gone stays gone


def _cached(store: Store, folder: Path, options: S3Options | None) -> Store:
    from kbackup.store.cached import CachedStore, Shelf

    return CachedStore(store, Shelf(folder), options.endpoint_url if options is not None else "")


def _plain_store(url: str, options: S3Options | None) -> Store:
    scheme, separator, rest = url.partition("://")
    if not separator:
        if not url or url.startswith("file:"):
            raise UsageError(f"{url!r} is no place for an archive", _HINT)
        return _file(url, url)
    if scheme == "file":
        host, slash, path = rest.partition("/")
        if host not in {"", "localhost"} or not slash:
            raise UsageError(f"{url!r} names no directory of this machine", _HINT)
        return _file("/" + unquote(path), url)
    if scheme == "s3":
        return _s3(rest, url, options or S3Options())
    raise UsageError(f"{url!r} is no place for an archive", _HINT)


def _file(path: str, url: str) -> Store:
    from kbackup.store.file import FileStore

    return FileStore(Path(path), url)


def _s3(rest: str, url: str, options: S3Options) -> Store:
    from kbackup.store.s3 import S3Store

    bucket, _, prefix = rest.partition("/")
    if not bucket:
        raise UsageError(f"{url!r} names no bucket", _HINT)
    return S3Store(bucket, prefix.rstrip("/"), options, url)
