"""One bucket under one prefix, with errors mapped."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from kbackup.errors import DeniedError, NotFoundError, OutcomeUnknownError, StoreError, UnreachableError
from kbackup.store.address import Address, address_of_bucket
from kbackup.store.base import MAX_KEY_BYTES, check_key
from kbackup.store.options import KeyClasses, S3Options, write_once
from kbackup.store.s3.client import attempts, client_of
from kbackup.store.s3.errors import from_boto, status_of

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import HeadObjectOutputTypeDef

T = TypeVar("T")


class Bucket:
    """One bucket and prefix: the clients and arguments of all requests. Picklable."""

    def __init__(
        self, name: str, prefix: str, options: S3Options, key_class: KeyClasses = write_once
    ) -> None:
        self.name = name
        self.key_class = key_class
        self.options = options
        self._prefix = f"{check_key(prefix)}/" if prefix else ""
        self._client: tuple[int, S3Client] | None = None
        self._seen = False

    def __reduce__(self) -> tuple[Any, ...]:
        return Bucket, (self.name, self._prefix.removesuffix("/"), self.options, self.key_class)

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
            return address_of_bucket(self.client.meta.endpoint_url, self.name, self._prefix)

    @property
    def common(self) -> dict[str, Any]:
        """Return the arguments of every request but `head_bucket`, which nobody pays for."""
        args = self._owned
        if self.options.requester_pays:
            args["RequestPayer"] = "requester"
        return args

    @property
    def _owned(self) -> dict[str, Any]:
        owner = self.options.expected_bucket_owner
        return {"Bucket": self.name} | ({"ExpectedBucketOwner": owner} if owner else {})

    @property
    def create(self) -> dict[str, Any]:
        """Return the arguments of every request that makes an object."""
        options = self.options
        args = {
            "ServerSideEncryption": options.sse,
            "SSEKMSKeyId": options.sse_kms_key_id,
            "StorageClass": options.storage_class,
        }
        return {name: value for name, value in args.items() if value}

    def retention(self, key: str) -> dict[str, Any]:
        """Return the arguments that put a new object `key` under retention; none where the bucket is not locked
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
        full = self._prefix + check_key(key)
        if len(full.encode()) > MAX_KEY_BYTES:
            raise StoreError(
                f"key {full!r} can't be used", f"shorten the prefix: S3 takes at most {MAX_KEY_BYTES} bytes"
            )
        return full

    def full_prefix(self, prefix: str) -> str:
        return self._prefix + prefix

    def own(self, full: str) -> str:
        return full.removeprefix(self._prefix)

    def describe(self, key: str = "") -> str:
        return f"s3://{self.name}/{self._prefix}{key}".rstrip("/")

    @contextmanager
    def asking(self, key: str = "", *, writing: bool = False) -> Iterator[None]:
        """Turn boto's errors into kbackup's. `writing`: the request writes, so that its outcome is unknown without an
        answer."""
        name = self.describe(key)
        attempts.lost = False
        try:
            yield
            self._seen = True
        except (ClientError, BotoCoreError) as error:
            raise from_boto(name, error, writing and attempts.lost) from error

    @contextmanager
    def reading(self, key: str) -> Iterator[None]:
        """Turn errors of a read of `key` into kbackup's.

        S3 may answer "denied" for a missing object to a role that may list only a prefix: a listing then decides.
        """
        try:
            with self.asking(key):
                yield
        except DeniedError:
            if self._lists_no(self.full(key)):
                raise NotFoundError(f"{self.describe(key)} does not exist") from None
            raise

    def _lists_no(self, full: str) -> bool:
        """Return True if the store lists objects and `full` is not among them."""
        try:
            reply = self.client.list_objects_v2(**self.common, Prefix=full, MaxKeys=1)
        except (ClientError, BotoCoreError):
            return False  # the listing is denied as well: the first error stays
        return full not in {entry["Key"] for entry in reply.get("Contents", [])}

    def head(self, full: str, **more: Any) -> HeadObjectOutputTypeDef:
        """Return the headers of an object; call it within `asking` or `reading`."""
        head = self.client.head_object(**self.common, **more, Key=full)
        last = list(head["ResponseMetadata"]["HTTPHeaders"])[-1]
        if last == "content-length" and head["ContentLength"]:
            # a cut connection may have taken digits; one byte of the body proves that an answer's headers are whole
            first = self.client.get_object(**self.common, Key=full, Range="bytes=0-0", IfMatch=head["ETag"])
            first["Body"].read()
            head["ContentLength"] = int(first["ContentRange"].rpartition("/")[2])
        return head

    def reading_back(self, unknown: OutcomeUnknownError, read: Callable[[], T]) -> T:
        """Call `read` to find the outcome of a write without an answer; raise `unknown` if the store can't be
        read."""
        try:
            return read()
        except (UnreachableError, DeniedError) as failed:
            unknown.add_note(f"reading back failed as well: {failed}")
            raise unknown from failed

    def check_exists(self) -> None:
        """Raise `UnreachableError` if the bucket does not exist: a HEAD request of an object does not tell."""
        if self._seen:
            return
        try:
            self.client.head_bucket(**self._owned)
        except ClientError as error:
            if status_of(error) == 404:
                error.response["Error"]["Code"] = "NoSuchBucket"
                raise from_boto(self.describe(), error, False) from error
        except BotoCoreError as error:
            raise from_boto(self.describe(), error, False) from error
