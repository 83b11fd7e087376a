"""The kinds of stores, by the schemes of their addresses, and the one place where stores are opened."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from kbackup.errors import HIDDEN, UsageError, without_credentials
from kbackup.store import azure, gcs, s3
from kbackup.store.base import HadoopTables, KeyClasses, Store, StoreKind, write_once

StoreOptions = Mapping[str, Any]
"""Options of stores by the section of their kind; a kind that is missing has its defaults."""

# Addresses of other tools, and of ours with a slash too few: 's3:/bucket/x' would become a folder of that name.
_SCHEME = re.compile(r"(s3[an]?|file|gs|az|https?|hdfs|abfss?):", re.IGNORECASE)


def directory_of(url: str) -> Path:
    """Return the directory that `url` (`file:///path` or a path) names, with '~' expanded."""
    if url.startswith("file://"):
        host, slash, path = url.removeprefix("file://").partition("/")
        if host not in {"", "localhost"} or not slash:
            raise UsageError(f"address {url!r} names no directory of this machine", f"write {DIRECTORY.form} or a path")
        return Path("/" + unquote(path))
    if not url.startswith("~"):
        return Path(url)
    try:
        return Path(url).expanduser()
    except RuntimeError as error:
        raise UsageError(
            f"address {url!r} names no home directory", f"write './{url}' for a folder of that name"
        ) from error


def _open_directory(url: str, options: None, key_class: KeyClasses) -> Store:
    from kbackup.store.file import FileStore

    return FileStore(directory_of(url), url, key_class)


def _table_path(url: str) -> str:
    return f"file:{directory_of(url).absolute()}"


def _no_hadoop_options(options: None, url: str) -> dict[str, str]:
    """Return none: Hadoop knows directories by itself."""
    return {}


DIRECTORY = StoreKind(
    "file", "file:///path", _open_directory, tables=HadoopTables("file", _table_path, _no_hadoop_options)
)

KINDS: dict[str, StoreKind] = {kind.scheme: kind for kind in (s3.KIND, azure.KIND, gcs.KIND, DIRECTORY)}


def register(kind: StoreKind) -> None:
    """Make addresses with the scheme of `kind` usable in all of kbackup. To have its options in the configuration, call
    this before `kbackup.config` is imported."""
    if kind.scheme in KINDS:
        raise ValueError(f"there is a kind of store for {kind.scheme}:// already")
    KINDS[kind.scheme] = kind


def forms(quote: str = "") -> str:
    """Return how addresses are written, each in `quote`. Directories come last, before 'a path'."""
    kinds = [kind for kind in KINDS.values() if kind is not DIRECTORY]
    kinds.append(DIRECTORY)
    written = [f"{quote}{kind.form}{quote}" for kind in kinds]
    return ", ".join(written) + " or a path"


def kind_of(url: str) -> StoreKind:
    """Return the kind of store that `url` names; `UsageError` for an address of none."""
    scheme, separator, _ = url.partition("://")
    if separator and HIDDEN in without_credentials(url) and "@" not in url:
        hint = f"write {forms()} without a signature, and set azure.sas_token or another setting of the store"
        raise UsageError(f"address {url!r} holds credentials", hint)
    kind = KINDS.get(scheme) if separator else DIRECTORY
    if kind is None or not url or (not separator and _SCHEME.match(url)):
        raise UsageError(f"invalid address {url!r}", f"write {forms()}")
    return kind


def options_for(kind: StoreKind, options: StoreOptions) -> Any:
    """Return the options of `kind`: those given, else its defaults; None if the kind has no options."""
    given = options.get(kind.section)
    if given or kind.options is None:
        return given
    return kind.options()


def open_store(
    url: str,
    options: StoreOptions | None = None,
    key: str = "",
    cache: Path | None = None,
    archive_id: str | None = None,
    *,
    key_class: KeyClasses | None = None,
    rate: int | None = None,
) -> Store:
    """Return the store at an address such as `s3://bucket/prefix`, `file:///path` or a path, without a request to it.

    `options` has the settings of each kind of store by its section. `key_class` returns the class of each key,
    `archive.layout.key_class` for an archive: an encrypted store needs it. `key` (`encryption.key`) decrypts and
    encrypts its objects. With `archive_id`, data keys of other archives are refused. `cache` is the folder for objects
    that were listed, unless the store is a directory. `rate` limits the bytes per second.
    """
    # From the inside out: what is cached is encrypted, and what comes from the cache does not count for the rate.
    kind = kind_of(url)
    own = options_for(kind, options or {})
    plain = kind.open(url, own, key_class or write_once)
    if rate is not None:
        from kbackup.store.wrappers import LimitedStore

        plain = LimitedStore(plain, rate)
    store = plain
    if cache is not None and kind is not DIRECTORY:
        from kbackup.store.wrappers import CachedStore, DiskCache

        store = CachedStore(plain, DiskCache(cache), getattr(own, "endpoint_url", ""))
    if not key:
        return store
    if key_class is None:
        raise TypeError("an encrypted store needs the classes of its keys")
    from kbackup.store.crypt import CryptStore
    from kbackup.store.crypt.keyring import Keyring

    # The keyring reads from the store, not from the cache: a deleted key must not come back.
    keyring = Keyring(plain, key, archive_id=archive_id)
    return CryptStore(store, keyring, key_class)
