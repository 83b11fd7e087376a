"""Interrupt reads from S3 servers: kbackup resumes them, within limits and of one version of the object."""

from __future__ import annotations

import pytest

from kbackup.errors import PreconditionError, UnreachableError
from kbackup.store import Store
from kbackup.store.base import CHUNK
from tests.contract.conftest import S3Location
from tests.contract.contents import data_of
from tests.contract.proxy import Proxy


def test_cut_bodies_are_resumed(through: Store, proxy: Proxy) -> None:
    data = data_of(6 * CHUNK + 5)
    through.put("key", data)
    proxy.cut_bodies(3 * CHUNK // 2, 10, 500, 2 * CHUNK + 1000)
    assert through.get("key") == data
    proxy.cut_bodies(3 * CHUNK // 2, 10, 500, 2 * CHUNK + 1000)
    assert b"".join(through.open_range("key", 3, len(data) - 7)) == data[3:-4]
    proxy.cut_bodies(700)
    assert through.get_range("key", 5, 1000) == data[5:1005]


def filled(store: Store, start: int, size: int) -> bytes:
    into = bytearray(size)
    done = 0
    for piece in store.fill("key", start, memoryview(into)):
        done += len(piece)
    assert done == size
    return bytes(into)


@pytest.mark.parametrize("direct", [True, False])
def test_filling_goes_on_where_a_connection_dropped(
    through: Store, proxy: Proxy, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not direct:  # with an SDK that reads in another way
        monkeypatch.setattr("kbackup.store.s3.read._plain_response", lambda body: None)
    data = data_of(4 * CHUNK)
    through.put("key", data)
    proxy.cut_bodies(1000, 2 * CHUNK, CHUNK // 2)
    assert filled(through, 3, len(data) - 7) == data[3:-4]
    before = len(proxy.requests)
    assert filled(through, 5, 1000) == data[5:1005]
    assert len(proxy.requests) == before + 1


def test_filling_is_not_resumed_for_ever_and_of_one_version(
    through: Store, proxy: Proxy, s3_location: S3Location
) -> None:
    through.put("key", data_of(3 * CHUNK))
    proxy.cut_bodies(*[1000] * 10)
    with pytest.raises(UnreachableError, match="key"):
        filled(through, 0, 3 * CHUNK)
    proxy.cut_bodies(3 * CHUNK // 2)
    pieces = through.fill("key", 0, memoryview(bytearray(3 * CHUNK)))
    assert next(pieces) == data_of(3 * CHUNK)[:CHUNK]
    s3_location.store().put("key", bytes(3 * CHUNK))
    with pytest.raises(PreconditionError, match="key"):
        list(pieces)


def test_cut_bodies_are_not_resumed_for_ever(through: Store, proxy: Proxy) -> None:
    through.put("key", data_of(3 * CHUNK))
    proxy.cut_bodies(*[1000] * 10)
    with pytest.raises(UnreachableError, match="key"):
        through.get("key")


def test_a_resumed_read_is_of_one_version(through: Store, proxy: Proxy, s3_location: S3Location) -> None:
    through.put("key", bytes(4 * CHUNK))
    proxy.cut_bodies(3 * CHUNK // 2)
    chunks = through.open_range("key", 0, 4 * CHUNK)
    assert next(chunks) == bytes(CHUNK)
    s3_location.store().put("key", b"\1" * 4 * CHUNK)
    with pytest.raises(PreconditionError, match="key"):
        list(chunks)
