"""Stores: where an archive's objects are. `base` states what every store promises."""

from __future__ import annotations

from pathlib import Path

from kbackup.store.address import Bucket, parse_url
from kbackup.store.base import Store, encryption_of
from kbackup.store.options import S3Options

__all__ = ["S3Options", "Store", "for_writing", "open_store"]


def open_store(
    url: str,
    options: S3Options | None = None,
    key: str = "",
    cache: Path | None = None,
    archive_id: str | None = None,
) -> Store:
    """The store at `s3://bucket/prefix`, `file:///path` or a path; with `key` (`encryption.key`) what is encrypted
    by it, for the archive `archive_id` alone where that is given. What was listed in a bucket is kept in the folder
    `cache`. Nothing is asked or made before its first use."""
    plain = _plain_store(url, options)
    store = _cached(plain, cache, options) if cache is not None and url.startswith("s3://") else plain
    if not key:
        return store
    from kbackup.store.crypt import CryptStore
    from kbackup.store.crypt.keyring import Keyring

    return CryptStore(
        store, Keyring(plain, key, archive_id=archive_id)
    )  # keys are asked for each time: one that is gone stays gone


def for_writing(store: Store) -> Store:
    """The store for tasks that read nothing but what this run writes: of an encrypted one's data keys it takes along
    the one that encrypts."""
    if not encryption_of(store):
        return store
    from kbackup.store.crypt import CryptStore

    return store.for_writing() if isinstance(store, CryptStore) else store


def _cached(store: Store, folder: Path, options: S3Options | None) -> Store:
    from kbackup.store.cached import CachedStore, Shelf

    return CachedStore(store, Shelf(folder), options.endpoint_url if options is not None else "")


def _plain_store(url: str, options: S3Options | None) -> Store:
    place = parse_url(url)
    if isinstance(place, Bucket):
        from kbackup.store.s3 import S3Store

        return S3Store(place.name, place.prefix, options or S3Options(), url)
    from kbackup.store.file import FileStore

    return FileStore(place, url)
