"""Send small ranged reads directly, as the SDK would; the SDK repeats those that get no plain answer."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
from urllib3 import ProxyManager

from kbackup.errors import CorruptError, NotFoundError
from kbackup.store import S3Options
from kbackup.store.s3 import S3Store
from kbackup.store.s3.client import client_of
from kbackup.store.s3.direct import SMALL, DirectReads
from tests.contract.conftest import S3Location
from tests.contract.proxy import Proxy

KEYS = ["a", "a b/ü+%25~!'()*", "folder/segment_partition_001_records"]


class Watched:
    """A store, and the GET requests that go out: the SDK's calls, and the headers of every request."""

    def __init__(self, location: S3Location, options: S3Options) -> None:
        self.store = S3Store(location.bucket, "some/prefix", options)
        self.calls = 0
        self.headers: list[dict[str, str]] = []
        events = client_of(options).meta.events
        events.register("before-call.s3.GetObject", self._call)
        events.register("before-send.s3.GetObject", self._send)

    def _call(self, **_: Any) -> None:
        self.calls += 1

    def _send(self, request: Any, **_: Any) -> None:
        self.headers.append({name.lower(): _text(value) for name, value in request.headers.items()})

    def fill(self, key: str, start: int, length: int) -> bytes:
        into = bytearray(length)
        assert sum(map(len, self.store.fill(key, start, memoryview(into)))) == length
        return bytes(into)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


@pytest.fixture
def watched(s3_location: S3Location, proxy: Proxy) -> Watched:
    """A store that has read a range, with its server behind the proxy."""
    store = Watched(s3_location, s3_location.options(proxy.url))
    for key in KEYS:
        store.store.put(key, f"0123456789 of {key}".encode())
    assert store.store.get_range("a", 0, 1) == b"0"
    assert store.calls == 1
    return store


@pytest.mark.parametrize("key", KEYS)
def test_the_sdk_is_asked_once(watched: Watched, proxy: Proxy, key: str) -> None:
    whole = f"0123456789 of {key}".encode()
    before = len(proxy.requests)
    assert watched.store.get_range(key, 2, 5) == b"23456"
    assert watched.fill(key, 3, len(whole) - 3) == whole[3:]
    assert watched.calls == 1
    assert len(proxy.requests) - before == 2
    assert watched.store.get(key) == whole  # whole objects are the SDK's, with their checksum
    assert watched.calls == 2


def test_large_ranges_are_the_sdks(watched: Watched) -> None:
    watched.store.put("large", bytes(SMALL + 1))
    assert watched.fill("large", 0, SMALL) == bytes(SMALL)
    assert watched.calls == 1
    assert watched.fill("large", 0, SMALL + 1) == bytes(SMALL + 1)
    assert watched.calls == 2


def test_requests_have_the_headers_of_the_sdk(s3_location: S3Location) -> None:
    options = replace(s3_location.options(), requester_pays=True, expected_bucket_owner="111122223333")
    watched = Watched(s3_location, options)
    watched.store.put("a", b"0123456789")
    assert watched.store.get_range("a", 0, 9) == b"012345678"
    assert watched.store.get_range("a", 1, 9) == b"123456789"
    assert watched.calls == 1
    sdk, direct = watched.headers
    assert direct["x-amz-request-payer"] == sdk["x-amz-request-payer"]
    assert direct["x-amz-expected-bucket-owner"] == sdk["x-amz-expected-bucket-owner"]
    assert {name for name in sdk if not name.startswith("amz-sdk-")} == direct.keys()


def test_the_sdk_asks_again_where_an_answer_is_lost_or_cut(watched: Watched, proxy: Proxy) -> None:
    proxy.lose_answers("^GET", 1)
    assert watched.fill("a", 1, 3) == b"123"
    assert watched.calls == 2
    proxy.cut_bodies(100)
    assert watched.fill("a", 2, 3) == b"234"
    assert watched.calls == 3
    assert watched.fill("a", 3, 3) == b"345"
    assert watched.calls == 3, "the SDK's answer is the pattern of the next reads"


def test_errors_are_the_sdks(watched: Watched) -> None:
    with pytest.raises(NotFoundError, match="nothing"):
        watched.store.get_range("nothing", 0, 1)
    watched.store.get_range("a", 0, 1)
    with pytest.raises(CorruptError, match="shorter"):
        watched.store.get_range("a", 5, 100)
    watched.store.get_range("a", 0, 1)
    with pytest.raises(CorruptError, match="InvalidRange"):
        watched.store.get_range("a", 1000, 1)
    assert watched.calls == 5


def test_another_process_has_connections_of_its_own(watched: Watched) -> None:
    known = watched.store._bucket._direct
    assert known is not None
    watched.store._bucket._direct = os.getpid() + 1, known[1]
    assert watched.store.get_range("a", 1, 1) == b"1"
    assert watched.calls == 2


def test_nothing_goes_past_a_proxy_of_the_sdk(watched: Watched) -> None:
    known = watched.store._bucket._direct
    assert known is not None
    client, key = watched.store._bucket.client, watched.store._bucket.full("a")
    connections: Any = known[1].connections

    class Body:
        def __init__(self, pool: Any) -> None:
            self._raw_stream = self
            self._pool = pool

    body: Any = Body(connections)
    assert DirectReads.after(client, key, body) == known[1]
    body = Body(ProxyManager("http://127.0.0.1:1").connection_from_url("http://127.0.0.1:2"))
    assert DirectReads.after(client, key, body) is None
    body = Body(None)
    assert DirectReads.after(client, key, body) is None
    assert DirectReads.after(client, "another", Body(connections)) is None  # type: ignore[arg-type]
