"""Stores: where an archive's objects are. `base` states what every store promises."""

from __future__ import annotations

from pathlib import Path

from kbackup.store.base import BucketAddress, Store, parse_url
from kbackup.store.options import KeyClasses, S3Options, write_once

__all__ = ["S3Options", "Store", "open_store"]


def open_store(
    url: str,
    options: S3Options | None = None,
    key: str = "",
    cache: Path | None = None,
    archive_id: str | None = None,
    *,
    key_class: KeyClasses | None = None,
) -> Store:
    """Return the store at `s3://bucket/prefix`, `file:///path` or a path, without a request to it.

    `key_class` returns the class of each key, `archive.layout.key_class` for an archive: an encrypted store needs it.
    `key` (`encryption.key`) decrypts and encrypts its objects. With `archive_id`, data keys of other archives are
    refused. `cache` is the folder for objects that a bucket listed.
    """
    store = plain = _plain_store(url, options, key_class or write_once)
    if cache is not None and url.startswith("s3://"):
        from kbackup.store.wrappers import CachedStore, Shelf

        store = CachedStore(plain, Shelf(cache), options.endpoint_url if options is not None else "")
    if not key:
        return store
    if key_class is None:
        raise TypeError("an encrypted store needs the classes of its keys")
    from kbackup.store.crypt import CryptStore
    from kbackup.store.crypt.keyring import Keyring

    # the keyring reads from the bucket, not from the cache: a deleted key must not come back
    return CryptStore(store, Keyring(plain, key, archive_id=archive_id), key_class)


def _plain_store(url: str, options: S3Options | None, key_class: KeyClasses) -> Store:
    location = parse_url(url)
    if isinstance(location, BucketAddress):
        from kbackup.store.s3 import S3Store

        return S3Store(location.name, location.prefix, options or S3Options(), url, key_class)
    from kbackup.store.file import FileStore

    return FileStore(location, url, key_class)
