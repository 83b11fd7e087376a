"""Bodies of requests to S3: pieces of memory as a file, and one client for all stores of a process."""

from __future__ import annotations

import gc
import os
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from kbackup.store.options import S3Options
from kbackup.store.s3.bucket import Bucket
from kbackup.store.s3.upload import SMALL, Body, PartBuffer, S3Upload

MIB = 1 << 20


def drain(body: Body) -> tuple[bytes, int]:
    """The rest, and in how many reads."""
    found: list[bytes] = []
    while piece := body.read(16384):
        found.append(bytes(piece))
    return b"".join(found), len(found)


def test_large_pieces_are_views_and_small_ones_are_copied_together() -> None:
    pieces = PartBuffer()
    large = np.arange(SMALL, dtype=np.uint8)
    for _ in range(10_000):
        pieces.add(memoryview(b"abc"))
    pieces.add(large.data)
    pieces.add(memoryview(b"x"))
    views = pieces.views()
    assert pieces.size == 30_000 + SMALL + 1
    assert [len(view) for view in views] == [30_000, SMALL, 1]
    large[5] = 99
    assert views[1][5] == 99


def test_a_body_is_read_again_from_where_a_retry_wants() -> None:
    whole = bytes(range(256)) * 4000
    body = Body([memoryview(whole)[:700_000], memoryview(b""), memoryview(whole)[700_000:]], generous=True)
    assert len(body) == body.seek(0, 2) == body.tell() == len(whole)
    assert body.read(10) == b""
    body.seek(0)
    found, reads = drain(body)
    assert found == whole
    assert reads < 10  # as much as is sent well, not as little as was asked for
    assert body.tell() == len(whole)
    body.seek(650_000)
    assert drain(body)[0] == whole[650_000:]
    body.seek(1)
    assert body.read() == whole[1:]


def test_a_body_that_is_signed_gives_what_is_asked_for() -> None:
    body = Body([memoryview(bytes(100_000)), memoryview(bytes(50))], generous=False)
    assert [len(body.read(40_000)) for _ in range(5)] == [40_000, 40_000, 20_000, 50, 0]


def test_a_closed_body_holds_nothing() -> None:
    array = np.zeros(MIB, np.uint8)
    gone = weakref.ref(array)
    body = Body([array.data], generous=True)
    body.read(1)
    body.close()
    del array
    assert gone() is None
    assert (len(body), body.read(5)) == (0, b"")


class Sent(S3Upload):
    """Keeps what would be sent."""

    def __init__(self, part_size: int) -> None:
        super().__init__(Bucket("bucket", "", S3Options(part_size=part_size)), "key")
        self.parts: list[int] = []

    def _send_part(self) -> None:
        self.parts.append(self._part.size)
        self._part = PartBuffer()
        self._number += 1

    def rest(self) -> int:
        return self._part.size


@pytest.mark.parametrize(
    ("pieces", "parts", "rest"),
    [
        ([4, 4], [], 8),
        ([2, 2, 13], [17], 0),  # below S3's least size a part grows past ours
        ([6, 12, 12], [6, 12, 12], 0),
        ([12], [12], 0),  # another one would not fit: it is sent at once
        ([16, 16], [16, 16], 0),
        ([3, 40], [16, 16, 11], 0),
        ([6, 40], [6, 16, 16, 8], 0),
        ([2, 18], [16], 4),
        ([3, 3, 3, 3, 3, 3, 3], [15], 6),
        ([1, 1, 1], [], 3),
    ],
)
def test_parts_end_where_pieces_end(pieces: list[int], parts: list[int], rest: int) -> None:
    upload = Sent(16 * MIB)
    for size in pieces:
        upload.write(np.empty(size * MIB, np.uint8))
    assert [size // MIB for size in upload.parts] == parts
    assert upload.rest() == rest * MIB


def options(name: str) -> S3Options:
    return S3Options(endpoint_url="http://127.0.0.1:9", access_key_id=name, secret_access_key="s")


def test_stores_share_a_client() -> None:
    buckets = [Bucket("a", "", options("one")), Bucket("b", "p", options("one"))]
    buckets += [pickle.loads(pickle.dumps(bucket)) for bucket in buckets]
    with ThreadPoolExecutor(8) as pool:
        clients = list(pool.map(lambda bucket: bucket.client, buckets * 4))
    assert len(set(map(id, clients))) == 1
    assert Bucket("a", "", options("two")).client is not clients[0]


def test_another_environment_is_another_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "one")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    found = S3Options(endpoint_url="http://127.0.0.1:9")
    first = Bucket("a", "", found).client
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "two")
    assert Bucket("a", "", found).client is not first


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # other tests may have left threads
def test_a_forked_process_makes_its_own_client() -> None:
    bucket = Bucket("a", "", options("one"))
    before = bucket.client
    gc.collect()
    pid = os.fork()
    if not pid:
        os._exit(int(bucket.client is before))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert bucket.client is before
