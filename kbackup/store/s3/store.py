"""A store in an S3 bucket. The SDK is imported in this package alone."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from kbackup.errors import DeniedError, NotFoundError, StoreError
from kbackup.store.base import Address, Failed, KeyClasses, ObjectInfo, Retention, is_key, may_hold_keys, write_once
from kbackup.store.bucket import ABSENT, BucketStore, listed_key, listed_object, strange_answers
from kbackup.store.s3 import S3Options
from kbackup.store.s3.bucket import Bucket
from kbackup.store.s3.read import S3Reading
from kbackup.store.s3.retention import retention_of, versions_of
from kbackup.store.s3.upload import S3Upload, crc_from, put

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import ErrorTypeDef, HeadObjectOutputTypeDef, ObjectIdentifierTypeDef, ObjectTypeDef

_DELETES_A_REQUEST = 1000


class S3Store(BucketStore):
    """`Store` in `bucket` under `prefix` ('' or a path without a '/' at its end)."""

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        options: S3Options | None = None,
        url: str = "",
        key_class: KeyClasses = write_once,
    ) -> None:
        self._bucket = Bucket(bucket, prefix, options or S3Options(), key_class)
        self.url = url or self._bucket.describe()

    @property
    def address(self) -> Address:
        return self._bucket.address

    def describe(self, key: str = "") -> str:
        return self._bucket.describe(key)

    def _reading(
        self, key: str, start: int = 0, length: int | None = None, into: memoryview | None = None
    ) -> S3Reading:
        return S3Reading(self._bucket, key, start, length, into)

    def _put(self, key: str, body: bytes | bytearray, crc: int, etag: str | None) -> str:
        if etag is None:
            return put(self._bucket, key, body, crc)
        if etag == ABSENT:
            return put(self._bucket, key, body, crc, IfNoneMatch="*")
        return put(self._bucket, key, body, crc, IfMatch=etag)

    def upload(self, key: str) -> S3Upload:
        return S3Upload(self, self._bucket, key)

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        after: dict[str, Any] = {"StartAfter": self._bucket.prefix + start_after} if start_after else {}
        for page in self._pages(prefix, after):
            with strange_answers(self.describe()):
                infos = [self._listed(prefix, item) for item in page.get("Contents", ())]
            for info in infos:
                if is_key(info.key):
                    yield info

    def _listed(self, prefix: str, item: ObjectTypeDef) -> ObjectInfo:
        key = listed_key(self.describe(), self._bucket.prefix, prefix, item["Key"])
        return listed_object(self.describe(), key, item["Size"], item["ETag"], item["LastModified"].timestamp())

    def list_dirs(self, prefix: str = "") -> Iterator[str]:
        for page in self._pages(prefix, {"Delimiter": "/"}):
            with strange_answers(self.describe()):
                folders = [item["Prefix"] for item in page.get("CommonPrefixes", ())]
                found = [listed_key(self.describe(), self._bucket.prefix, prefix, folder) for folder in folders]
            for key in found:
                name = key[len(prefix) : -1]
                if is_key(name):
                    yield name

    def _pages(self, prefix: str, arguments: dict[str, Any]) -> Iterator[Any]:
        if not may_hold_keys(prefix):
            return
        arguments = {**self._bucket.common, "Prefix": self._bucket.prefix + prefix, **arguments}
        with self._bucket.asking():
            pages = iter(self._bucket.client.get_paginator("list_objects_v2").paginate(**arguments))
        while True:
            with self._bucket.asking():
                page = next(pages, None)
            if page is None:
                return
            yield page

    def stat(self, key: str) -> ObjectInfo:
        head = self._head(key)
        with strange_answers(self.describe(key)):
            size, modified = head["ContentLength"], head["LastModified"].timestamp()
            return listed_object(self.describe(), key, size, head["ETag"], modified)

    def checksum(self, key: str) -> int | None:
        if self._bucket.options.checksum == "none":
            self._head(key)
            return None
        head = self._head(key, ChecksumMode="ENABLED")
        # A checksum of another type is one of the parts' checksums.
        if head.get("ChecksumType") != "FULL_OBJECT":
            return None
        text = head.get("ChecksumCRC64NVME")
        with strange_answers(self.describe(key)):
            return crc_from(text) if text else None

    def retention(self, key: str) -> Retention:
        head = self._head(key)
        return retention_of(self._bucket, self._bucket.full(key), head.get("VersionId"))

    def deleted_versions(self, key: str) -> builtins.list[Retention] | None:
        return versions_of(self._bucket, self._bucket.full(key))

    def _head(self, key: str, **more: Any) -> HeadObjectOutputTypeDef:
        full = self._bucket.full(key)
        try:
            with self._bucket.reading(key):
                return self._bucket.head(full, **more)
        except NotFoundError:
            self._bucket.check_exists()
            raise

    def delete(self, keys: Iterable[str]) -> builtins.list[Failed]:
        failed: list[Failed] = []
        remaining = iter(keys)
        while batch := builtins.list(islice(remaining, _DELETES_A_REQUEST)):
            objects: builtins.list[ObjectIdentifierTypeDef] = []
            for key in batch:
                try:
                    objects.append({"Key": self._bucket.full(key)})
                except StoreError as unusable:
                    failed.append(Failed(key, unusable))
            if not objects:
                continue
            with self._bucket.asking():
                # Quiet: the answer names failures alone.
                reply = self._bucket.client.delete_objects(
                    **self._bucket.common, Delete={"Objects": objects, "Quiet": True}
                )
            with strange_answers(self.describe()):
                failed += [self._undeleted(error) for error in reply.get("Errors", ())]
        return failed

    def _undeleted(self, error: ErrorTypeDef) -> Failed:
        key = listed_key(self.describe(), self._bucket.prefix, "", error["Key"])
        kind = DeniedError if error["Code"] == "AccessDenied" else StoreError
        message = f"{self._bucket.describe(key)}: {error['Code']}: {error.get('Message', '')}"
        return Failed(key, kind(message, "check the rights to delete, and whether the object is locked"))
