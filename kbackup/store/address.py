"""Addresses of stores: what a URL or a path names, and whether two of them share objects."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from kbackup.errors import UsageError

if TYPE_CHECKING:
    from kbackup.store.base import Store

HINT = "write s3://bucket/prefix, file:///path or a path"

_SCHEME = re.compile(r"(s3[an]?|file|gs|https?|hdfs|abfss?):", re.IGNORECASE)
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
_PORTS = {"http": 80, "https": 443}


class Bucket(NamedTuple):
    """`prefix` has no '/' at its end."""

    name: str
    prefix: str


class Address(NamedTuple):
    """Where a store's objects are: equal for every way to write it.

    `server` is an S3 endpoint as `server_of` names it, '' for directories. `parts` are the bucket and the parts of its
    prefix, or those of the resolved path.
    """

    server: str
    parts: tuple[str, ...]

    def holds(self, other: Address) -> bool:
        """Whether `other` is this place, or lies in it."""
        return self.server == other.server and self.parts == other.parts[: len(self.parts)]


def parse_url(url: str) -> Bucket | Path:
    """The bucket or the directory that `url` names, with '~' expanded; `UsageError` for anything else."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "s3":
        bucket, _, prefix = rest.partition("/")
        if not bucket:
            raise UsageError(f"address {url!r} names no bucket", HINT)
        return Bucket(bucket, prefix.rstrip("/"))
    if separator and scheme == "file":
        host, slash, path = rest.partition("/")
        if host not in {"", "localhost"} or not slash:
            raise UsageError(f"address {url!r} names no directory of this machine", HINT)
        return Path("/" + unquote(path))
    if separator or not url or _SCHEME.match(url):
        raise UsageError(f"invalid address {url!r}", HINT)
    if not url.startswith("~"):
        return Path(url)
    try:
        return Path(url).expanduser()
    except RuntimeError as error:
        raise UsageError(
            f"address {url!r} names no home directory", f"write './{url}' for a folder of that name"
        ) from error


def address_of_directory(path: Path) -> Address:
    """Follows symbolic links and '..', as far as the path exists."""
    return Address("", path.resolve().parts)


def address_of_bucket(endpoint: str, bucket: str, prefix: str) -> Address:
    return Address(server_of(endpoint), (bucket, *filter(None, prefix.split("/"))))


def server_of(endpoint: str) -> str:
    """The host and port of an S3 endpoint. AWS is one server: its buckets have the same name in every region."""
    parts = urlsplit(endpoint)
    host = parts.hostname or ""
    if host.endswith((".amazonaws.com", ".amazonaws.com.cn")):
        return "aws"
    port = parts.port or _PORTS.get(parts.scheme, 0)
    return f"{'localhost' if host in _THIS_MACHINE else host}:{port}"


def check_apart(destination: Store, archive: Store) -> None:
    """`UsageError` where `destination` is the place of `archive`, lies in it, or holds it."""
    there, here = destination.address, archive.address
    if there == here:
        how = "is the archive itself"
    elif here.holds(there):
        how = "lies within the archive"
    elif there.holds(here):
        how = "holds the archive"
    else:
        return
    where = "" if destination.url == archive.url else f" at {archive.url}"
    raise UsageError(f"destination {destination.url} {how}{where}", "name a place apart from the archive")
