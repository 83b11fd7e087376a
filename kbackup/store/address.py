"""Addresses of stores: what a URL or a path names, and whether two of them share objects."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from kbackup.errors import UsageError

HINT = "write s3://bucket/prefix, file:///path or a path"
_SCHEME = re.compile(r"(s3[an]?|file|gs|https?|hdfs|abfss?):", re.IGNORECASE)


_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
_PORTS = {"http": 80, "https": 443}


class Bucket(NamedTuple):
    """`prefix` has no '/' at its end."""

    name: str
    prefix: str


class Address(NamedTuple):
    """The normalized location of a store's objects: two spellings of one location are equal.

    `server` is an S3 endpoint as `server_of` names it, '' for directories. `path` has the bucket and the names in its
    prefix, or the names in the resolved path.
    """

    server: str
    path: tuple[str, ...]

    def holds(self, other: Address) -> bool:
        """Return True if `other` is this location, or lies below it."""
        return self.server == other.server and self.path == other.path[: len(self.path)]


def parse_url(url: str) -> Bucket | Path:
    """Return the bucket or the directory that `url` names, with '~' expanded; `UsageError` for anything else."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "s3":
        bucket, _, prefix = rest.partition("/")
        if ":" in bucket or "@" in bucket:
            raise UsageError(
                "the address of a bucket holds credentials, or a host",
                "write s3://bucket/prefix, and set s3.access_key_id, s3.secret_access_key and s3.endpoint_url",
            )
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
    """Return the address of `path`; symbolic links and '..' are followed as far as the path exists."""
    return Address("", path.resolve().parts)


def address_of_bucket(endpoint: str, bucket: str, prefix: str) -> Address:
    return Address(server_of(endpoint), (bucket, *filter(None, prefix.split("/"))))


def server_of(endpoint: str) -> str:
    """Return host and port of an S3 endpoint. AWS is one server: a bucket has the same name in every region."""
    url = urlsplit(endpoint)
    host = url.hostname or ""
    if host.endswith((".amazonaws.com", ".amazonaws.com.cn")):
        return "aws"
    port = url.port or _PORTS.get(url.scheme, 0)
    return f"{'localhost' if host in _THIS_MACHINE else host}:{port}"
