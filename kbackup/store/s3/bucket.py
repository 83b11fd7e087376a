"""Requests to one bucket, by the SDK's clients: one per process for each set of options, as making one takes 0.1 s of
CPU."""

from __future__ import annotations

import base64
import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import boto3
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ConnectionClosedError
from botocore.parsers import ResponseParserError
from botocore.utils import determine_content_length

from kbackup import __version__
from kbackup.errors import DeniedError, NotFoundError, UnreachableError
from kbackup.store.base import Address, KeyClasses, address_of_bucket, check_key, key_within, write_once
from kbackup.store.bucket import STRANGE, strange_answer
from kbackup.store.s3 import S3Options
from kbackup.store.s3.errors import from_boto, never_sent, status_of
from kbackup.util.plain_http import warn_of_plain_http

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import HeadObjectOutputTypeDef


_CONNECTIONS = 32
_SMALL = 256 << 10
_MAYBE_DONE = {500, 502, 504}
# The store did nothing, but proxies also answer so when their server hangs up.
_BUSY = 503
_FIRST_WAIT, _LONGEST_WAIT = 0.05, 5.0  # s
_OBJECT = {"content-length", "etag", "last-modified"}
_USED = {"GetObject": _OBJECT, "HeadObject": _OBJECT, "PutObject": {"etag"}, "UploadPart": {"etag"}}
"""Headers that kbackup uses of an answer of success."""
_WITH_BODY = {"ListObjectsV2", "DeleteObjects", "CreateMultipartUpload", "CompleteMultipartUpload"}
_WITHOUT_BODY = {"HeadObject", "HeadBucket"}

_lock = threading.Lock()
_made: dict[tuple[S3Options, tuple[tuple[str, str], ...]], S3Client] = {}
"""Clients by options and environment."""

attempts = threading.local()
"""`lost`: whether an attempt of this thread's last request may have taken effect unheard. `busy`: whether one was told
that the store is busy."""


def _forget() -> None:
    # The parent's lock may be held by a thread that does not exist in this process.
    global _lock
    _lock = threading.Lock()
    _made.clear()


os.register_at_fork(after_in_child=_forget)


def client_of(options: S3Options) -> S3Client:
    """Return this process's client, which is thread-safe. Threads that start together make one."""
    # What the options leave open, the SDK takes from the environment.
    env = [(name, value) for name, value in os.environ.items() if name.startswith("AWS_")]
    key = options, tuple(sorted(env))
    with _lock:
        if key not in _made:
            _made[key] = _make_client(options)
        return _made[key]


def _judge_attempt(
    most: int,
    response: tuple[AWSResponse, Any] | None,
    caught_exception: Exception | None,
    operation: Any,
    attempts: int,
    **_: Any,
) -> float | None:
    """Return the seconds until a cut answer is asked for again, at most `most` times. Called after every attempt, in
    the thread of the request. Remembers a request that may have taken effect without an answer."""
    # The SDK does not see that an answer is cut: Python's HTTP client takes the end of a connection for the end of the
    # headers, and the SDK an empty body for an empty list.
    if response is None:
        _remember_lost(caught_exception is not None and not never_sent(caught_exception))
        return None
    answer = response[0]
    cut = _is_cut(operation.name, answer)
    _remember_lost(cut or answer.status_code in _MAYBE_DONE, answer.status_code == _BUSY)
    if not cut:
        return None
    answer.raw.close()
    if attempts < most:
        return min(_FIRST_WAIT * 2.0 ** (attempts - 1), _LONGEST_WAIT)
    if answer.status_code < 300:
        raise ConnectionClosedError(endpoint_url=answer.url)
    return None


def _remember_lost(lost: bool, busy: bool = False) -> None:
    attempts.lost = getattr(attempts, "lost", False) or lost
    attempts.busy = getattr(attempts, "busy", False) or busy


def may_be_done() -> bool:
    """Return whether an attempt of this thread's last request may have taken effect, whatever came afterwards."""
    return getattr(attempts, "lost", False) or getattr(attempts, "busy", False)


def _is_cut(operation: str, answer: AWSResponse) -> bool:
    """Return True if the headers of `answer` are not whole.

    The number in the last line may have lost digits, which can't be seen here: a caller that uses a length looks for
    the body or for a line after it.
    """
    headers = {name.lower(): value for name, value in answer.headers.items()}
    if answer.status_code >= 300:
        framed = headers.keys() & {"content-length", "transfer-encoding", "connection"}
        return operation not in _WITHOUT_BODY and not framed
    # Every server sends a date, and many of them as the last header.
    used = _USED.get(operation, set()) | {"date"}
    if answer.status_code == 206:
        used = used | {"content-range"}
    if not used <= headers.keys():
        return True
    if operation in _WITH_BODY and not answer.content:
        return True
    # The last header may have lost its end: look at the values whose end is known.
    for name in ("date", "last-modified"):
        if not headers.get(name, "GMT").endswith("GMT"):
            return True
    if not headers.get("x-amz-checksum-crc64nvme", "=").endswith("="):
        return True
    etag = headers.get("etag", '""')
    is_half_quoted = etag.startswith('"') and (len(etag) == 1 or not etag.endswith('"'))
    return not etag or is_half_quoted


def _remove_cut_date(response_dict: dict[str, Any], **_: Any) -> None:
    """Remove half a date, so that `_is_cut` misses it."""
    # The SDK's parser fails on half a date before anybody can see that the answer is not whole.
    if not response_dict["headers"].get("Last-Modified", "GMT").endswith("GMT"):
        del response_dict["headers"]["Last-Modified"]


def _make_client(options: S3Options) -> S3Client:
    path_style = bool(options.endpoint_url) if options.path_style is None else options.path_style
    session = _session(options)
    config = Config(
        connect_timeout=options.connect_timeout,
        read_timeout=options.read_timeout,
        max_pool_connections=max(_CONNECTIONS, 2 * options.parts_in_flight),
        retries={"mode": "standard", "total_max_attempts": options.max_attempts},
        s3={"addressing_style": "path" if path_style else "auto"},
        # By default the SDK adds a CRC-32 of its own to each write, which older servers refuse.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        tcp_keepalive=True,
        user_agent=f"kbackup/{__version__}",
    )
    client: S3Client = session.client(
        "s3",
        endpoint_url=options.endpoint_url or None,
        region_name=session.region_name or ("us-east-1" if options.endpoint_url else None),
        verify=options.ca_bundle or None,
        config=config,
    )
    # The secret key signs requests and is not sent; a session token is.
    session_token = options.session_token
    if not options.access_key_id:
        session_token = session_token or os.environ.get("AWS_SESSION_TOKEN", "")
    if session_token:
        warn_of_plain_http("the session token of s3", client.meta.endpoint_url)
    if client.meta.endpoint_url.startswith("https:") or options.checksum != "none":
        # TLS, or the body's checksum in a signed header, is enough. A SHA-256 of every body on top took as much CPU as
        # all the rest of an upload (3.3 and 1.8 ms a MiB, pairs in one run), and held Python's lock.
        client.meta.config.s3["payload_signing_enabled"] = False  # type: ignore[attr-defined]
    judge: Any = partial(_judge_attempt, options.max_attempts)
    client.meta.events.register("needs-retry.s3", judge)
    client.meta.events.register("before-parse.s3", _remove_cut_date)
    client.meta.events.register_last("before-call.s3", _send_at_once)
    if options.checksum == "none":
        client.meta.events.register("before-sign.s3.DeleteObjects", _add_content_md5)
    return client


def with_credentials(options: S3Options) -> S3Options:
    """Return the options with the present credentials of their profile, for clients of others, which know no profiles.
    `UnreachableError` if the profile has none."""
    credentials = _session(options).get_credentials()
    if credentials is None:
        raise UnreachableError(f"profile {options.profile} has no credentials", "see aws configure list --profile")
    now = credentials.get_frozen_credentials()
    return replace(
        options,
        profile="",
        access_key_id=now.access_key or "",
        secret_access_key=now.secret_key or "",
        session_token=now.token or "",
    )


def _session(options: S3Options) -> boto3.Session:
    return boto3.Session(
        aws_access_key_id=options.access_key_id or None,
        aws_secret_access_key=options.secret_access_key or None,
        aws_session_token=options.session_token or None,
        region_name=options.region or None,
        profile_name=options.profile or None,
    )


def _send_at_once(params: dict[str, Any], **_: Any) -> None:
    """Take `Expect` out of the request of a small body: the answer to `Expect` costs a round trip."""
    if "Expect" in params["headers"] and (determine_content_length(params["body"]) or 0) < _SMALL:
        del params["headers"]["Expect"]


def _add_content_md5(request: Any, **_: Any) -> None:
    """Add the checksum that stores without newer checksums require for deletes."""
    digest = hashlib.md5(request.body, usedforsecurity=False).digest()
    request.headers["Content-MD5"] = base64.b64encode(digest).decode()


class Bucket:
    """One bucket and prefix: the clients and arguments of all requests, with errors mapped. Picklable."""

    def __init__(self, name: str, prefix: str, options: S3Options, key_class: KeyClasses = write_once) -> None:
        self.name = name
        self.key_class = key_class
        self.options = options
        self.prefix = f"{check_key(prefix)}/" if prefix else ""
        self._client: tuple[int, S3Client] | None = None
        self._seen = False
        self._owned: dict[str, Any] = {"Bucket": name}
        if options.expected_bucket_owner:
            self._owned["ExpectedBucketOwner"] = options.expected_bucket_owner
        self.common = dict(self._owned)
        """The arguments of every request but `head_bucket`, which nobody pays for."""
        if options.requester_pays:
            self.common["RequestPayer"] = "requester"
        made = {
            "ServerSideEncryption": options.sse,
            "SSEKMSKeyId": options.sse_kms_key_id,
            "StorageClass": options.storage_class,
        }
        self.create: dict[str, Any] = {argument: value for argument, value in made.items() if value}
        """The arguments of every request that makes an object."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Bucket, (self.name, self.prefix.removesuffix("/"), self.options, self.key_class)

    @property
    def client(self) -> S3Client:
        """Return the SDK's client of this process: SDK clients don't survive forks."""
        known, pid = self._client, os.getpid()
        if known is None or known[0] != pid:
            known = self._client = pid, client_of(self.options)
        return known[1]

    @property
    def address(self) -> Address:
        """Return the normalized address, with the endpoint of the client, which options, environment or profile may
        name."""
        with self.asking():
            return address_of_bucket(self.client.meta.endpoint_url, self.name, self.prefix)

    def retention(self, key: str) -> dict[str, Any]:
        """Return the arguments that put a new object `key` under retention; none if the bucket is not locked
        or the object is replaced."""
        options = self.options
        if not options.object_lock_mode or self.key_class(key).replaced:
            return {}
        return {
            "ObjectLockMode": options.object_lock_mode,
            "ObjectLockRetainUntilDate": datetime.now(UTC) + timedelta(days=options.object_lock_days),
        }

    def full(self, key: str) -> str:
        """Return the bucket's key for the store's `key`."""
        return key_within(self.prefix, key)

    def describe(self, key: str = "") -> str:
        return f"s3://{self.name}/{self.prefix}{key}".rstrip("/")

    @contextmanager
    def asking(self, key: str = "", *, writing: bool = False) -> Iterator[None]:
        """Turn boto's errors into kbackup's. `writing`: the request writes, so that its outcome is unknown without an
        answer."""
        name = self.describe(key)
        attempts.lost = attempts.busy = False
        try:
            yield
            self._seen = True
        except (ClientError, BotoCoreError) as error:
            # After a busy answer a refusal may be due to our own attempt before.
            is_refused = isinstance(error, ClientError) and status_of(error) == 412
            lost = attempts.lost or (is_refused and attempts.busy)
            raise from_boto(name, error, writing and lost) from error
        except (ResponseParserError, *STRANGE) as error:
            # The SDK reads the answer, and raises what it comes upon.
            raise strange_answer(name, error, writing=writing) from error

    @contextmanager
    def reading(self, key: str) -> Iterator[None]:
        """Turn errors of a read of `key` into kbackup's."""
        try:
            with self.asking(key):
                yield
        except DeniedError:
            # S3 may answer "denied" for a missing object to a role that may list only a prefix. Then a listing decides;
            # if the listing is denied as well, the first error stays.
            full = self.full(key)
            with suppress(ClientError, BotoCoreError, ResponseParserError):
                reply = self.client.list_objects_v2(**self.common, Prefix=full, MaxKeys=1)
                found = [entry["Key"] for entry in reply.get("Contents", [])]
                if full not in found:
                    raise NotFoundError(f"{self.describe(key)} does not exist") from None
            raise

    def head(self, full: str, **more: Any) -> HeadObjectOutputTypeDef:
        """Return the headers of an object; call it within `asking` or `reading`."""
        head = self.client.head_object(**self.common, **more, Key=full)
        last = list(head["ResponseMetadata"]["HTTPHeaders"])[-1]
        if last == "content-length" and head["ContentLength"]:
            # A cut connection may have taken digits. One byte of the body proves that an answer's headers are whole.
            first = self.client.get_object(**self.common, Key=full, Range="bytes=0-0", IfMatch=head["ETag"])
            first["Body"].read()
            head["ContentLength"] = int(first["ContentRange"].rpartition("/")[2])
        return head

    def check_exists(self) -> None:
        """Raise `UnreachableError` if the bucket does not exist: a HEAD request of an object does not show it."""
        if self._seen:
            return
        try:
            self.client.head_bucket(**self._owned)
        except ClientError as error:
            if status_of(error) == 404:
                # An answer to HEAD has no body, and so no code.
                error.response["Error"]["Code"] = "NoSuchBucket"
                raise from_boto(self.describe(), error, False) from error
        except BotoCoreError as error:
            raise from_boto(self.describe(), error, False) from error
