"""A store in a container of Azure Blob Storage. The SDK is imported in this package alone."""

from __future__ import annotations

import base64
import builtins
import hashlib
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from itertools import groupby
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

from azure.core.rest import HttpResponse
from urllib3.exceptions import HTTPError

from kbackup.errors import AlreadyExistsError, KbackupError, NotFoundError, OutcomeUnknownError, StoreError
from kbackup.store.azure import MIN_PART, AzureOptions
from kbackup.store.azure.container import CRC, Container
from kbackup.store.base import (
    KEPT_AS_VERSION,
    Address,
    KeyClasses,
    ObjectInfo,
    Retention,
    is_key,
    may_hold_keys,
    write_once,
)
from kbackup.store.bucket import ABSENT, STRANGE, BucketStore, listed_key, listed_object, next_page, strange_answers
from kbackup.store.parts import Body, PartsUpload
from kbackup.store.reading import STRANGE_HINT, DroppedError, ObjectReading, ReadAnswer

_DELETES_AT_ONCE = 16
_PAGE = 5000
_HIGH = re.compile("[\ue000-\U0010ffff]")


class AzureStore(BucketStore):
    """`Store` in `container` of `account` under `prefix` ('' or a path without a '/' at its end)."""

    def __init__(
        self,
        account: str,
        container: str,
        prefix: str = "",
        options: AzureOptions | None = None,
        url: str = "",
        key_class: KeyClasses = write_once,
    ) -> None:
        self._container = Container(account, container, prefix, options or AzureOptions(), key_class)
        self.url = url or self._container.describe()

    @property
    def address(self) -> Address:
        return self._container.address

    def describe(self, key: str = "") -> str:
        return self._container.describe(key)

    def _reading(
        self, key: str, start: int = 0, length: int | None = None, into: memoryview | None = None
    ) -> AzureReading:
        return AzureReading(self._container, key, start, length, into)

    def _put(self, key: str, body: bytes | bytearray, crc: int, etag: str | None) -> str:
        views = [memoryview(body)]
        headers = self._container.creation(key, crc)
        headers["x-ms-blob-type"] = "BlockBlob"
        if etag == ABSENT:
            headers["if-none-match"] = "*"
        elif etag is not None:
            headers["if-match"] = f'"{etag}"'
        headers["content-md5"] = _md5_of(views)
        answer = self._container.send("PUT", key, headers, Body(views, generous=True), writing=True)
        with strange_answers(self.describe(key), writing=True):
            return _etag_in(answer)

    def upload(self, key: str) -> AzureUpload:
        return AzureUpload(self, self._container, key)

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        # Only the newest interface of the service can start a listing at a name: what lies before is left out here.
        after, last = start_after.encode(), b""
        for item in self._in_order(prefix, {}):
            with strange_answers(self.describe()):
                info = self._listed(prefix, item)
            # An account with a hierarchical namespace lists folder by folder.
            if info.key.encode() < last:
                raise StoreError(
                    f"{self._container.describe()} lists {info.key!r} out of order",
                    "use an account without hierarchical namespace",
                )
            last = info.key.encode()
            if is_key(info.key) and last > after:
                yield info

    def _listed(self, prefix: str, item: ElementTree.Element) -> ObjectInfo:
        key = listed_key(self.describe(), self._container.prefix, prefix, _name_of(item))
        size = int(item.findtext("Properties/Content-Length", ""))
        modified = parsedate_to_datetime(item.findtext("Properties/Last-Modified", ""))
        etag = item.findtext("Properties/Etag", "").strip('"')
        return listed_object(self.describe(), key, size, etag, modified.timestamp())

    def list_dirs(self, prefix: str = "") -> Iterator[str]:
        for item in self._in_order(prefix, {"delimiter": "/"}):
            with strange_answers(self.describe()):
                key = listed_key(self.describe(), self._container.prefix, prefix, _name_of(item))
            name = key[len(prefix) : -1]
            if item.tag == "BlobPrefix" and is_key(name):
                yield name

    def _in_order(self, prefix: str, query: dict[str, str]) -> Iterator[ElementTree.Element]:
        """Yield the items in UTF-8's order."""

        # Azurite lists in the order of UTF-16, where the highest characters are not last. Names that differ in nothing
        # before their first high character follow one another in both orders, so only these few are sorted again.
        def start_of(item: ElementTree.Element) -> str:
            start, *_ = _HIGH.split(_name_of(item), maxsplit=1)
            return start

        def encoded(item: ElementTree.Element) -> bytes:
            return _name_of(item).encode()

        for _, group in groupby(self._items(prefix, query), start_of):
            yield from sorted(group, key=encoded)

    def _items(self, prefix: str, query: dict[str, str]) -> Iterator[ElementTree.Element]:
        """Yield the blobs, and with a delimiter the prefixes, whose names start with `prefix`, page by page."""
        if not may_hold_keys(prefix):
            return
        asked = {"restype": "container", "comp": "list", "maxresults": str(_PAGE), **query}
        if full_prefix := self._container.prefix + prefix:
            asked["prefix"] = full_prefix
        while True:
            answer = self._container.send("GET", None, query=asked)
            with strange_answers(self.describe()):
                page = ElementTree.fromstring(answer.content)  # noqa: S314 (the store is trusted as much as its data)
            if page.find("Blobs") is None:
                raise StoreError(f"{self.describe()}: the store answers with no listing", STRANGE_HINT)
            yield from page.iterfind("Blobs/*")
            marker = next_page(self.describe(), page.findtext("NextMarker", ""), asked.get("marker", ""))
            if not marker:
                return
            asked["marker"] = marker

    def stat(self, key: str) -> ObjectInfo:
        answer = self._container.send("HEAD", key)
        with strange_answers(self.describe(key)):
            size = int(answer.headers["content-length"])
            modified = parsedate_to_datetime(answer.headers["last-modified"])
            return listed_object(self.describe(), key, size, _etag_in(answer), modified.timestamp())

    def checksum(self, key: str) -> int | None:
        answer = self._container.send("HEAD", key)
        with strange_answers(self.describe(key)):
            return _crc_in(answer)

    def retention(self, key: str) -> Retention:
        answer = self._container.send("HEAD", key)
        # Versions are named where the account keeps them. Whether it keeps deleted objects for some days is a setting
        # of the account, which a writer may not ask for.
        after_deletion = KEPT_AS_VERSION if "x-ms-version-id" in answer.headers else None
        with strange_answers(self.describe(key)):
            until, held = _retained(answer.headers)
        return self._with_container_policies(Retention(until, held, after_deletion))

    def _with_container_policies(self, own: Retention) -> Retention:
        """Return what keeps an object, by its own policy `own` and by those of the container, which have no dates."""
        try:
            headers = self._container.send("HEAD", None, query={"restype": "container"}).headers
            has_policy = headers.get("x-ms-has-immutability-policy") == "true"
            has_hold = headers.get("x-ms-has-legal-hold") == "true"
        except KbackupError:
            return own._replace(until=own.until or None, held=own.held or None)
        until = own.until
        if has_policy and not until:
            until = None
        return own._replace(until=until, held=own.held or has_hold)

    def deleted_versions(self, key: str) -> builtins.list[Retention] | None:
        full = self._container.full(key)
        kept: builtins.list[Retention] = []
        try:
            for item in self._items(key, {"include": "versions,deleted,immutabilitypolicy,legalhold"}):
                is_current = item.findtext("IsCurrentVersion") == "true"
                if _name_of(item) == full and not is_current:
                    kept.append(_deleted(item))
        except (KbackupError, *STRANGE):
            return None
        return kept

    def _remove(self, key: str) -> None:
        self._container.send("DELETE", key, {"x-ms-delete-snapshots": "include"})


def _name_of(item: ElementTree.Element) -> str:
    name = item.find("Name")
    if name is None:
        return ""
    text = name.text or ""
    # A name with characters that XML can't have comes percent-encoded.
    return unquote(text) if name.get("Encoded") == "true" else text


def _retained(headers: Mapping[str, str]) -> tuple[float, bool]:
    """Return until when an object is immutable by its own policy (seconds since the epoch, 0 if it is not), and whether
    a legal hold keeps it."""
    date = headers.get("x-ms-immutability-policy-until-date")
    until = parsedate_to_datetime(date).timestamp() if date else 0.0
    return until, headers.get("x-ms-legal-hold") == "true"


def _deleted(item: ElementTree.Element) -> Retention:
    """Return what keeps a deleted object, or a version of one."""
    date = item.findtext("Properties/ImmutabilityPolicyUntilDate")
    until = parsedate_to_datetime(date).timestamp() if date else 0.0
    held = item.findtext("Properties/LegalHold") == "true"
    days = item.findtext("Properties/RemainingRetentionDays")
    if item.findtext("Deleted") != "true" or days is None:
        return Retention(until, held, KEPT_AS_VERSION)
    # Softly deleted: nobody can delete it before, and the account does so then.
    return Retention(max(until, time.time() + (int(days) + 1) * 86400), held, 0.0)


def _etag_in(answer: HttpResponse) -> str:
    return answer.headers["etag"].strip('"')


def _crc_in(answer: HttpResponse) -> int | None:
    text = answer.headers.get(CRC)
    return int(text, 16) if text else None


def _md5_of(views: list[memoryview]) -> str:
    """Return the checksum by which the service checks a body; its own CRC-64 is another one than ours."""
    digest = hashlib.md5(usedforsecurity=False)
    for view in views:
        digest.update(view)
    return base64.b64encode(digest.digest()).decode()


class AzureReading(ObjectReading):
    """`ObjectReading` of the object `key`."""

    dropped = (DroppedError, HTTPError, OSError)

    def __init__(
        self, container: Container, key: str, start: int = 0, length: int | None = None, into: memoryview | None = None
    ) -> None:
        container.full(key)
        super().__init__(container.describe(key), container.key_class(key).largest, start, length, into)
        self._container, self._key = container, key

    def _ask(self) -> ReadAnswer:
        headers = {"if-match": f'"{self.etag}"'} if self.etag else {}
        if self._end is not None:
            headers["x-ms-range"] = f"bytes={self._at}-{self._end - 1}"
        answer = self._container.send("GET", self._key, headers, stream=True)
        response: Any = answer
        raw = response.internal_response.raw
        with strange_answers(self._name):
            etag, size = _etag_in(answer), int(answer.headers["content-length"])
            return ReadAnswer(etag, size, answer.headers.get("content-range", ""), raw, raw)


class AzureUpload(PartsUpload):
    """`Upload` into Azure: one Put Blob while the object fits a part, else blocks and their list."""

    # Blocks without a list are in no listing, and the service removes them after a week, or when the object is made:
    # there is nothing to abort.

    def __init__(self, store: BucketStore, container: Container, key: str) -> None:
        container.full(key)
        options = container.options
        super().__init__(container.describe(key), options.part_size, options.parts_in_flight, MIN_PART)
        self._store, self._container, self._key = store, container, key
        # All writers of a key share its blocks: the names of ours must not be those of another writer.
        self._random = secrets.token_hex(16)

    def _begin(self) -> None:
        """Blocks need no preparation."""

    def _send(self, number: int, body: Body, crc: int) -> str:
        block = base64.b64encode(f"{self._random}{number:08}".encode()).decode()
        headers = {"content-md5": _md5_of(body.views)}
        self._container.send("PUT", self._key, headers, body, query={"comp": "block", "blockid": block})
        return block

    def _put_whole(self, body: bytes, crc: int) -> None:
        self._store.create(self._key, body, crc)

    def _discard(self) -> None:
        """Nobody sees blocks, and the service removes them."""

    def _complete(self, size: int, crc: int) -> None:
        blocks = "".join(f"<Latest>{part.tag}</Latest>" for part in self._sent)
        listed = memoryview(f'<?xml version="1.0" encoding="utf-8"?><BlockList>{blocks}</BlockList>'.encode())
        creation = self._container.creation(self._key, crc)
        headers = {**creation, "x-ms-blob-content-type": creation["content-type"], "content-type": "application/xml"}
        headers |= {"if-none-match": "*", "content-md5": _md5_of([listed])}
        query, body = {"comp": "blocklist"}, Body([listed], generous=True)
        self._container.send("PUT", self._key, headers, body, query=query, writing=True)

    def _check_outcome(self, unknown: OutcomeUnknownError, size: int, crc: int) -> None:
        try:
            found = self._container.send("HEAD", self._key)
        except NotFoundError:
            raise unknown from None
        with strange_answers(self._name, writing=True):
            known, found_size = _crc_in(found), int(found.headers["content-length"])
        if found_size != size or known not in {None, crc}:
            raise AlreadyExistsError(f"{self._name} exists already") from unknown
        if known is None:
            raise unknown
