"""One bucket under one prefix, through one client a process, with errors mapped."""

from __future__ import annotations

import base64
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from kbackup.errors import DeniedError, OutcomeUnknownError, StoreError, UnreachableError
from kbackup.store.base import MAX_KEY_BYTES, check_key
from kbackup.store.options import S3Options
from kbackup.store.s3.errors import from_boto, never_sent, status_of

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

T = TypeVar("T")
_CONNECTIONS = 32
_MAYBE_DONE = {500, 502, 504}


class Bucket:
    """What every request needs. Picklable; a client is made in the process that uses it (SDK clients don't
    survive forks)."""

    def __init__(self, name: str, prefix: str, options: S3Options) -> None:
        self.name = name
        self.options = options
        self._prefix = f"{check_key(prefix)}/" if prefix else ""
        self._lock = threading.Lock()
        self._clients: dict[int, S3Client] = {}
        self._seen = False

    def __reduce__(self) -> tuple[Any, ...]:
        return Bucket, (self.name, self._prefix.removesuffix("/"), self.options)

    @property
    def client(self) -> S3Client:
        pid = os.getpid()
        with self._lock:
            if pid not in self._clients:
                self._clients = {pid: _make_client(self.options)}
            return self._clients[pid]

    @property
    def common(self) -> dict[str, Any]:
        """Arguments of every request but `head_bucket`."""
        args: dict[str, Any] = {"Bucket": self.name}
        if self.options.expected_bucket_owner:
            args["ExpectedBucketOwner"] = self.options.expected_bucket_owner
        if self.options.requester_pays:
            args["RequestPayer"] = "requester"
        return args

    @property
    def create(self) -> dict[str, Any]:
        """Arguments of every request that makes an object."""
        options = self.options
        args = {
            "ServerSideEncryption": options.sse,
            "SSEKMSKeyId": options.sse_kms_key_id,
            "StorageClass": options.storage_class,
        }
        return {name: value for name, value in args.items() if value}

    def full(self, key: str) -> str:
        """The store's key as the bucket's."""
        full = self._prefix + check_key(key)
        if len(full.encode()) > MAX_KEY_BYTES:
            raise StoreError(f"key {full!r} can't be used", f"S3 takes at most {MAX_KEY_BYTES} bytes")
        return full

    def full_prefix(self, prefix: str) -> str:
        return self._prefix + prefix

    def own(self, full: str) -> str:
        return full.removeprefix(self._prefix)

    def describe(self, key: str = "") -> str:
        return f"s3://{self.name}/{self._prefix}{key}".rstrip("/")

    @contextmanager
    def asking(self, key: str = "", *, writing: bool = False) -> Iterator[None]:
        """Boto's errors as ours. `writing`: the request changes something, so that a lost answer leaves it
        unknown."""
        what = self.describe(key)
        _attempts.lost = False
        try:
            yield
            self._seen = True
        except (ClientError, BotoCoreError) as error:
            raise from_boto(what, error, writing and _attempts.lost) from error

    def reading_back(self, unknown: OutcomeUnknownError, read: Callable[[], T]) -> T:
        """`read`, which finds out what a write did whose answer was lost; `unknown` where the store can't be
        read."""
        try:
            return read()
        except (UnreachableError, DeniedError) as failed:
            unknown.add_note(f"reading back failed as well: {failed}")
            raise unknown from failed

    def check_exists(self) -> None:
        """`UnreachableError` where the bucket does not exist, which a HEAD request of an object does not
        tell."""
        if self._seen:
            return
        try:
            self.client.head_bucket(Bucket=self.name)
        except ClientError as error:
            if status_of(error) == 404:
                error.response["Error"]["Code"] = "NoSuchBucket"
                raise from_boto(self.describe(), error, False) from error
        except BotoCoreError as error:
            raise from_boto(self.describe(), error, False) from error


_attempts = threading.local()


def _note_attempt(response: Any, caught_exception: Exception | None, **_: Any) -> None:
    """Called after every attempt, in the thread of the request: remember one that may have taken effect
    unheard."""
    if caught_exception is not None:
        lost = not never_sent(caught_exception)
    else:
        lost = response is not None and response[0].status_code in _MAYBE_DONE
    _attempts.lost = getattr(_attempts, "lost", False) or lost


def _make_client(options: S3Options) -> S3Client:
    path_style = bool(options.endpoint_url) if options.path_style is None else options.path_style
    session = boto3.Session(
        aws_access_key_id=options.access_key_id or None,
        aws_secret_access_key=options.secret_access_key or None,
        aws_session_token=options.session_token or None,
        region_name=options.region or None,
        profile_name=options.profile or None,
    )
    config = Config(
        connect_timeout=options.connect_timeout,
        read_timeout=options.read_timeout,
        max_pool_connections=max(_CONNECTIONS, 2 * options.parts_in_flight),
        retries={"mode": "standard", "total_max_attempts": options.max_attempts},
        s3={"addressing_style": "path" if path_style else "auto"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        tcp_keepalive=True,
    )
    client: S3Client = session.client(
        "s3",
        endpoint_url=options.endpoint_url or None,
        region_name=session.region_name or ("us-east-1" if options.endpoint_url else None),
        verify=options.ca_bundle or None,
        config=config,
    )
    if client.meta.endpoint_url.startswith("https:") or options.checksum != "none":
        # TLS, or the body's checksum in a signed header, is enough. A SHA-256 of every body on top took as much
        # CPU as all the rest of an upload (3.3 and 1.8 ms a MiB, pairs in one run), holding Python's lock
        client.meta.config.s3["payload_signing_enabled"] = False  # type: ignore[attr-defined]
    client.meta.events.register("needs-retry.s3", _note_attempt)
    if options.checksum == "none":
        client.meta.events.register("before-sign.s3.DeleteObjects", _add_content_md5)
    return client


def _add_content_md5(request: Any, **_: Any) -> None:
    """Stores that know no newer checksum want this one for deletes."""
    digest = hashlib.md5(request.body, usedforsecurity=False).digest()
    request.headers["Content-MD5"] = base64.b64encode(digest).decode()
