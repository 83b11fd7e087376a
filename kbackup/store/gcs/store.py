"""A store in a bucket of Google Cloud Storage, by its JSON API. An etag is the generation of an object."""

from __future__ import annotations

import base64
import builtins
import json
import re
import secrets
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Any

import requests
from awscrt.checksums import crc32c
from urllib3.exceptions import HTTPError

from kbackup import errors
from kbackup.store.base import (
    KEPT_AS_VERSION,
    Address,
    Buffer,
    KeyClasses,
    ObjectInfo,
    Retention,
    is_key,
    key_within,
    may_hold_keys,
    view_of,
)
from kbackup.store.bucket import ABSENT, STRANGE, BucketStore, listed_key, listed_object, next_page, strange_answers
from kbackup.store.gcs import PART_UNIT, GcsOptions
from kbackup.store.gcs.client import CutError, GcsBucket
from kbackup.store.parts import Body, PartsUpload
from kbackup.store.reading import STRANGE_HINT, DroppedError, ObjectReading, ReadAnswer

_DELETES_AT_ONCE = 16
_RETAINED = "retention,retentionExpirationTime,temporaryHold,eventBasedHold"
_FIELDS = "name,size,generation,timeCreated,crc32c"
_CRC = re.compile(r"crc32c=([^,\s]+)")
_KEPT = re.compile(r"bytes=0-(\d{1,19})", re.ASCII)
"""What a session answers of the bytes that it has kept; nothing where it has none."""
_NO_GENERATION = "0"
"""The version of an object that is not there."""
_MORE = 308
"""The status of a session that wants more bytes."""
_ENDED = (404, 410, 499)
"""Statuses of a session that is there no more, the last one after its deletion."""
# Servers send the length or the date after the generation: an answer that has all three has a whole generation.
_READ = ("Content-Length", "Date", "X-Goog-Generation")
"""Headers of a read."""


class GcsStore(BucketStore):
    """`Store` in `bucket` under `prefix` ('' or a path without a '/' at its end)."""

    def __init__(self, bucket: str, prefix: str, options: GcsOptions, url: str, key_class: KeyClasses) -> None:
        self._bucket = GcsBucket(bucket, prefix, options, key_class)
        self.url = url

    @property
    def address(self) -> Address:
        return self._bucket.address

    def describe(self, key: str = "") -> str:
        return self._bucket.describe(key)

    def _reading(self, key: str, start: int = 0, length: int | None = None, into: memoryview | None = None) -> _Reading:
        return _Reading(self._bucket, key, start, length, into)

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        reading = self._reading(key)
        data = b"".join(reading)
        if reading.crc32c not in {"", _text_of(crc32c(data))}:
            hint = "run again; if it fails again, restore the object from a copy"
            raise errors.CorruptError(f"{self.describe(key)}: its bytes don't match its checksum", hint)
        return data, reading.etag

    def _put(self, key: str, body: bytes | bytearray, crc: int, etag: str | None) -> str:
        # The document goes along: an upload of the bytes alone has no checksum, no storage class and no retention.
        bucket, boundary = self._bucket, secrets.token_hex(16)
        document = json.dumps({**bucket.document(key), "crc32c": _text_of(crc32c(body))})
        head = (
            f"--{boundary}\r\nContent-Type: application/json\r\n\r\n{document}\r\n"
            f"--{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n"
        )
        tail = f"\r\n--{boundary}--\r\n"
        data = Body([memoryview(head.encode()), memoryview(body), memoryview(tail.encode())], generous=True)
        kind = {"Content-Type": f"multipart/related; boundary={boundary}"}
        generation = _NO_GENERATION if etag == ABSENT else etag or ""
        params = {"uploadType": "multipart", "ifGenerationMatch": generation}
        answer = bucket.ask(key, "POST", bucket.uploads, params, data=data, headers=kind, writing=True)
        with strange_answers(self.describe(key), writing=True):
            return str(answer.json()["generation"])

    def upload(self, key: str) -> _Upload:
        return _Upload(self, self._bucket, key)

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        first = {"startOffset": self._bucket.prefix + start_after} if start_after else {}
        for page in self._pages(prefix, {"fields": f"nextPageToken,items({_FIELDS})", **first}):
            with strange_answers(self.describe()):
                infos = [self._listed(prefix, item) for item in page.get("items", ())]
            for info in infos:
                if is_key(info.key) and info.key != start_after:
                    yield info

    def _listed(self, prefix: str, item: dict[str, Any]) -> ObjectInfo:
        key = listed_key(self.describe(), self._bucket.prefix, prefix, item["name"])
        return _info(self.describe(), key, item)

    def list_dirs(self, prefix: str = "") -> Iterator[str]:
        own = self._bucket.prefix
        for page in self._pages(prefix, {"fields": "nextPageToken,prefixes", "delimiter": "/"}):
            with strange_answers(self.describe()):
                prefixes = page.get("prefixes", ())
                found = [listed_key(self.describe(), own, prefix, item) for item in prefixes]
            for key in found:
                name = key[len(prefix) : -1]
                if is_key(name):
                    yield name

    def _pages(self, prefix: str, params: dict[str, str]) -> Iterator[Any]:
        params |= {"prefix": self._bucket.prefix + prefix, "maxResults": "1000"}
        while may_hold_keys(prefix):
            page = self._bucket.ask("", "GET", self._bucket.objects, params).json()
            yield page
            token = next_page(self.describe(), str(page.get("nextPageToken") or ""), params.get("pageToken", ""))
            if not token:
                return
            params["pageToken"] = token

    def stat(self, key: str) -> ObjectInfo:
        with strange_answers(self.describe(key)):
            return _info(self.describe(), key, _stat(self._bucket, key))

    def checksum(self, key: str) -> int | None:
        """Return None: Google keeps a CRC-32C."""
        # A number of ours as metadata would say nothing of the bytes that the store has.
        _stat(self._bucket, key)
        return None

    def retention(self, key: str) -> Retention:
        with strange_answers(self.describe(key)):
            document = self._bucket.ask(key, "GET", self._bucket.path(key), {"fields": _RETAINED}).json()
            until, held = _retained(document)
        return Retention(until, held, self._after_deletion())

    def _after_deletion(self) -> float | None:
        """Return how long the bucket keeps what was deleted; None without the right to ask."""
        try:
            settings = self._bucket.ask(
                "", "GET", self._bucket.itself, {"fields": "versioning,softDeletePolicy"}
            ).json()
            if settings.get("versioning", {}).get("enabled"):
                return KEPT_AS_VERSION
            return float(settings.get("softDeletePolicy", {}).get("retentionDurationSeconds", 0))
        except (errors.KbackupError, *STRANGE):
            return None

    def deleted_versions(self, key: str) -> builtins.list[Retention] | None:
        full = key_within(self._bucket.prefix, key)
        kept: builtins.list[Retention] = []
        try:
            # Versions of the bucket, and then what it keeps for some days: no listing has both.
            for asked in ("versions", "softDeleted"):
                params = {"prefix": full, asked: "true", "maxResults": "1000"}
                page = self._bucket.ask("", "GET", self._bucket.objects, params).json()
                kept += [_deleted(item) for item in page.get("items", ()) if item["name"] == full and _is_deleted(item)]
        except (errors.KbackupError, *STRANGE):
            return None
        return kept

    def _remove(self, key: str) -> None:
        self._bucket.ask(key, "DELETE", self._bucket.path(key), needs=())


def _info(store: str, key: str, item: dict[str, Any]) -> ObjectInfo:
    modified = datetime.fromisoformat(item["timeCreated"]).timestamp()
    return listed_object(store, key, int(item["size"]), str(item["generation"]), modified)


def _retained(item: dict[str, Any]) -> tuple[float, bool]:
    """Return until when an object is retained (seconds since the epoch, 0 if it is not), and whether it is held."""
    until = 0.0
    for text in (item.get("retentionExpirationTime"), item.get("retention", {}).get("retainUntilTime")):
        if text:
            until = max(until, datetime.fromisoformat(text).timestamp())
    held = bool(item.get("temporaryHold") or item.get("eventBasedHold"))
    return until, held


def _is_deleted(item: dict[str, Any]) -> bool:
    """Return whether an entry of a listing of versions is none of a current object."""
    return "timeDeleted" in item or "hardDeleteTime" in item


def _deleted(item: dict[str, Any]) -> Retention:
    """Return what keeps a version of a deleted object."""
    until, held = _retained(item)
    gone_at = item.get("hardDeleteTime")
    if gone_at is None:
        return Retention(until, held, KEPT_AS_VERSION)
    # Nobody can delete it before, and the store deletes it then.
    return Retention(max(until, datetime.fromisoformat(gone_at).timestamp()), held, 0.0)


def _stat(bucket: GcsBucket, key: str) -> dict[str, Any]:
    document: dict[str, Any] = bucket.ask(key, "GET", bucket.path(key), {"fields": _FIELDS}).json()
    return document


def _text_of(crc: int) -> str:
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


class _Reading(ObjectReading):
    """`crc32c` is the checksum that the store keeps of the whole object, '' if the answer has none."""

    dropped = (DroppedError, HTTPError)
    crc32c = ""

    def __init__(
        self, bucket: GcsBucket, key: str, start: int = 0, length: int | None = None, into: memoryview | None = None
    ) -> None:
        path = f"/download{bucket.path(key)}"
        self._bytes = partial(bucket.ask, key, "GET", path, needs=_READ, stream=True)
        super().__init__(bucket.describe(key), bucket.key_class(key).largest, start, length, into)

    def _ask(self) -> ReadAnswer:
        headers = {} if self._end is None else {"Range": f"bytes={self._at}-{self._end - 1}"}
        try:
            answer = self._bytes({"alt": "media", "generation": self.etag}, headers=headers)
        except errors.NotFoundError as missing:
            if not self.etag:
                raise
            raise errors.PreconditionError(f"{self._name} was replaced while it was read") from missing
        got = answer.headers
        kept = _CRC.search(got.get("X-Goog-Hash", ""))
        self.crc32c = kept.group(1) if kept else ""
        with strange_answers(self._name):
            size, within = int(got["Content-Length"]), got.get("Content-Range", "")
        return ReadAnswer(got["X-Goog-Generation"], size, within, answer.raw, answer.raw)


class _Upload(PartsUpload):
    """`Upload` by one request while the object fits a part, else by a session, which takes parts one after another."""

    def __init__(self, store: BucketStore, bucket: GcsBucket, key: str) -> None:
        self._store, self._bucket, self._key = store, bucket, key
        self._document = bucket.document(key)
        super().__init__(bucket.describe(key), bucket.options.part_size, 1, PART_UNIT)
        self._session = ""
        self._kept = self._crc32c = self._last = 0
        self._failed: errors.StoreError | None = None
        """The error that `commit` is to raise: that the key is taken shows at `commit`, whenever the store said so."""

    def write(self, data: Buffer) -> None:
        # All parts have full size: the store keeps an unfinished upload in multiples of `PART_UNIT`, and what is left
        # of another part would have to be sent again.
        self._check_open()
        view = view_of(data)
        while view:
            if self._part.size == self._part_size:
                self._send_part()
            count = min(len(view), self._part_size - self._part.size)
            self._part.add(view[:count])
            view = view[count:]

    def commit(self) -> tuple[int, int]:
        self._last = self._number
        return super().commit()

    def _put_whole(self, body: bytes, crc: int) -> None:
        self._store.create(self._key, body, crc)

    def _begin(self) -> None:
        params = {"uploadType": "resumable", "ifGenerationMatch": _NO_GENERATION}
        ask = partial(self._bucket.ask, self._key, "POST", self._bucket.uploads, params)
        try:
            answer = ask(json=self._document, needs=("Location", "Date"))
        except errors.PreconditionError as taken:
            # The parts that follow are not sent.
            self._failed = taken
        else:
            self._session = self._bucket.session_of(self._key, answer.headers["Location"])

    def _send(self, number: int, body: Body, crc: int) -> str:
        end = self._kept + len(body)
        for view in body.views:
            self._crc32c = crc32c(view, self._crc32c)
        crc_text = _text_of(self._crc32c) if number == self._last else ""
        try:
            if self._failed is None:
                self._push(body, end, crc_text)
        except (errors.PreconditionError, errors.OutcomeUnknownError) as failed:
            self._failed = failed
        except errors.NotFoundError as gone:
            raise errors.StoreError(f"{self._name}: the unfinished upload does not exist any more") from gone
        return ""

    def _push(self, body: Body, end: int, crc: str) -> None:
        """Send the object's bytes up to `end`, with its checksum `crc` if these are the last ones."""
        start, unsure = self._kept, False
        total, headers = "*", {}
        if crc:
            # The total ends the upload: with it the store makes the object, if the checksum is that of its bytes.
            total, headers = str(end), {"X-Goog-Hash": f"crc32c={crc}"}

        def send() -> requests.Response:
            nonlocal unsure
            # After an attempt without an answer only the store knows how much of it has arrived.
            if unsure:
                answer = self._ask_session(f"*/{total}", end)
                if answer.status_code != _MORE or self._kept >= end:
                    return answer
            at, unsure = self._kept, True
            if at < start:
                raise errors.StoreError(f"{self._name}: the store lost bytes of the upload", "run the command again")
            answer = self._ask_session(f"{at}-{end - 1}/{total}", end, headers, data=body, skip=at - start)
            if answer.status_code == _MORE:
                # As an error, attempts are counted: a session that keeps nothing of any part would be asked for ever.
                if self._kept <= at:
                    raise CutError("the store kept nothing of a part")
                unsure = False
            return answer

        while self._kept < end:
            answer = self._bucket.retry(self._key, send, writing=bool(crc), accept=(_MORE,))
            if answer.status_code != _MORE:
                if answer.json().get("crc32c") != crc:
                    raise errors.StoreError(f"{self._name}: the store got other bytes", "check memory and network")
                return
        if crc:
            raise errors.OutcomeUnknownError(f"{self._name}: the store has all bytes, but made no object of them")

    def _ask_session(
        self, part: str, most: int, headers: dict[str, str] | None = None, **more: Any
    ) -> requests.Response:
        """Send bytes to the session, or ask for its state; note how many bytes of the object it has kept: `most` at
        most were sent."""
        headers = {"Content-Range": f"bytes {part}", **(headers or {})}
        answer = self._bucket.once("PUT", self._session, headers=headers, **more)
        if answer.status_code == _MORE:
            # The date comes after the range.
            if "Date" not in answer.headers:
                raise CutError("the answer was cut")
            kept = _KEPT.fullmatch(answer.headers.get("Range", ""))
            if kept is None and "Range" in answer.headers:
                raise errors.StoreError(f"{self._name}: the store does not report how many bytes it kept", STRANGE_HINT)
            self._kept = int(kept[1]) + 1 if kept is not None else 0
            if self._kept > most:
                text = f"the store has {self._kept} bytes of the upload, {most} were sent"
                raise errors.StoreError(f"{self._name}: {text}", STRANGE_HINT)
        return answer

    def _check_outcome(self, unknown: errors.OutcomeUnknownError, size: int, crc: int) -> None:
        try:
            found = _stat(self._bucket, self._key)
        except errors.NotFoundError:
            raise unknown from None
        with strange_answers(self._name, writing=True):
            is_ours = (int(found["size"]), found["crc32c"]) == (size, _text_of(self._crc32c))
        if not is_ours:
            raise errors.AlreadyExistsError(f"{self._name} exists already") from unknown

    def _complete(self, size: int, crc: int) -> None:
        if self._failed is not None:
            raise self._failed

    def _discard(self) -> None:
        if self._session:
            request = partial(self._bucket.once, "DELETE", self._session, needs=())
            self._bucket.retry(self._key, request, accept=_ENDED)
