"""Check errors and retries of S3 stores when credentials, bucket, endpoint or the network fail."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from kbackup.errors import (
    AlreadyExistsError,
    DeniedError,
    KbackupError,
    OutcomeUnknownError,
    PreconditionError,
    StoreError,
    UnreachableError,
)
from kbackup.store import S3Options, Store, open_store
from kbackup.store.base import CHUNK
from tests.contract.conftest import PART, S3Location, data_of, upload
from tests.contract.proxy import Proxy
from tests.support.secrets import make

pytestmark = pytest.mark.usefixtures("short_waits")


def asks_of(store: Store) -> list[Callable[[], object]]:
    return [
        lambda: store.get("key"),
        lambda: store.get_range("key", 0, 1),
        lambda: store.stat("key"),
        lambda: list(store.list()),
        lambda: list(store.list_dirs()),
        lambda: store.put("key", b"1"),
        lambda: store.put_new("key", b"1"),
        lambda: store.replace("key", b"1", '"etag"'),
        lambda: store.delete(["key"]),
        lambda: upload(store, "key", b"1"),
        lambda: upload(store, "key", data_of(PART + 1)),
    ]


@pytest.fixture
def minio_location(request: pytest.FixtureRequest) -> S3Location:
    return S3Location(request.getfixturevalue("minio_server"))


def test_a_wrong_secret_is_denied(minio_location: S3Location) -> None:
    store = minio_location.opened(secret_access_key=make("a wrong secret key"))
    for ask in asks_of(store):
        with pytest.raises(DeniedError) as caught:
            ask()
        assert caught.value.hint
        assert "nobody-may-see" not in str(caught.value)
        assert minio_location.bucket in str(caught.value)


def test_an_unknown_user_is_denied(minio_location: S3Location) -> None:
    with pytest.raises(DeniedError, match="access key id"):
        minio_location.opened(access_key_id="nobody", secret_access_key="x" * 20).get("key")


def test_an_anonymous_caller_is_denied(minio_location: S3Location, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    store = open_store(minio_location.url, {"s3": S3Options(endpoint_url=minio_location.server.endpoint_url)})
    with pytest.raises(DeniedError, match="credentials"):
        store.put("key", b"")


def test_a_missing_bucket_is_unreachable(s3_location: S3Location) -> None:
    for n in range(len(asks_of(s3_location.store()))):
        store = open_store("s3://no-such-bucket-here/prefix", {"s3": s3_location.options()})
        with pytest.raises(UnreachableError, match=r"no-such-bucket-here.*does not exist"):
            asks_of(store)[n]()


def test_a_closed_port_is_unreachable_and_soon() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    options = S3Options(
        endpoint_url=f"http://127.0.0.1:{port}", access_key_id="id", secret_access_key="secret", max_attempts=2
    )
    store = open_store("s3://bucket/prefix", {"s3": options})
    for ask in asks_of(store):
        with pytest.raises(UnreachableError, match=str(port)):
            ask()


@pytest.mark.parametrize("write", ["put", "put_new", "replace"])
def test_a_lost_answer_to_a_write_that_took_effect(through: Store, proxy: Proxy, write: str) -> None:
    first = (through.put("key", b"1"),) if write == "replace" else ()
    before = len(proxy.requests)
    proxy.lose_answers("^PUT", 1)
    etag = getattr(through, write)("key", b"ours", *first)
    assert through.get_with_etag("key") == (b"ours", etag)
    assert sum(request.startswith("PUT") for request in proxy.requests[before:]) == 2


@pytest.mark.parametrize(("write", "error"), [("put_new", AlreadyExistsError), ("replace", PreconditionError)])
def test_a_lost_answer_about_a_refused_write(through: Store, proxy: Proxy, write: str, error: type[StoreError]) -> None:
    older = through.put("key", b"older")
    through.put("key", b"theirs")
    proxy.lose_answers("^PUT", 1)
    with pytest.raises(error, match="key"):
        getattr(through, write)("key", b"ours..", *([older] if write == "replace" else []))
    assert through.get("key") == b"theirs"


def test_all_answers_lost_but_reading_back_tells(through: Store, proxy: Proxy) -> None:
    proxy.lose_answers("^PUT", 3)
    etag = through.put_new("key", b"ours")
    assert through.get_with_etag("key") == (b"ours", etag)


@pytest.mark.parametrize("write", ["put", "put_new"])
def test_an_answer_lost_and_then_nobody_there(
    through: Store, proxy: Proxy, s3_location: S3Location, write: str
) -> None:
    proxy.lose_answers("^PUT", 1, then_refuse=True)
    with pytest.raises(OutcomeUnknownError, match="key"):
        getattr(through, write)("key", b"ours")
    assert s3_location.store().get("key") == b"ours"


@pytest.mark.parametrize(
    ("lost", "size"), [("^PUT", 7), *((lost, 2 * PART + 1) for lost in ("^PUT", "^POST .*uploads", "^POST .*uploadId"))]
)
def test_lost_answers_to_an_upload(through: Store, proxy: Proxy, s3_location: S3Location, lost: str, size: int) -> None:
    proxy.lose_answers(lost, 1)
    upload(through, "key", data_of(size))
    assert through.get("key") == data_of(size)


def test_a_lost_commit_over_a_taken_key(through: Store, proxy: Proxy) -> None:
    through.put("key", b"theirs")
    proxy.lose_answers("^POST .*uploadId", 1)
    with pytest.raises(AlreadyExistsError):
        upload(through, "key", data_of(PART + 1))
    assert through.get("key") == b"theirs"


def test_a_commit_without_any_answer(through: Store, proxy: Proxy, s3_location: S3Location) -> None:
    proxy.lose_answers("^POST .*uploadId", 1, then_refuse=True)
    with pytest.raises(OutcomeUnknownError) as caught:
        upload(through, "key", data_of(PART + 1))
    assert s3_location.store().get("key") == data_of(PART + 1)
    assert any("reading back" in note for note in caught.value.__notes__)
    assert any("aborting the upload failed" in note for note in caught.value.__notes__)


def test_a_part_that_can_not_be_sent_keeps_its_error(through: Store, proxy: Proxy, s3_location: S3Location) -> None:
    proxy.lose_answers("^PUT", 100)
    with pytest.raises(UnreachableError, match="key"):
        upload(through, "key", data_of(2 * PART + 1))
    proxy.lose_answers("^PUT", 0)  # enough
    assert s3_location.unfinished() == []
    assert list(through.list()) == []


def test_damaged_parts_are_refused(minio_location: S3Location, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbackup.store.parts.crc64nvme", lambda data, crc: crc ^ len(data))
    for size in (10, PART + 10):
        with pytest.raises(StoreError, match="damaged on their way"):
            upload(minio_location.store(), "key", data_of(size))
    assert minio_location.unfinished() == []
    assert list(minio_location.store().list()) == []


def test_a_store_without_checksums_reads_writes_and_deletes(s3_location: S3Location) -> None:
    store = s3_location.opened(checksum="none")
    upload(store, "key", data_of(2 * PART + 1))
    assert store.get("key") == data_of(2 * PART + 1)
    with pytest.raises(AlreadyExistsError):
        upload(store, "key", data_of(2 * PART + 2))
    assert store.delete(["key"]) == []
    assert list(store.list()) == []


def test_a_lost_commit_without_checksums_is_known_by_its_etag(s3_location: S3Location, proxy: Proxy) -> None:
    proxy.lose_answers("^POST .*uploadId", 3)
    upload(s3_location.opened(endpoint_url=proxy.url, checksum="none"), "key", data_of(PART + 1))
    assert s3_location.store().get("key") == data_of(PART + 1)


def test_other_peoples_objects_are_no_keys(s3_location: S3Location) -> None:
    client = s3_location.server.client()
    for key in ("some/prefix/", "some/prefix/folder/", "some/prefixed", "other"):
        client.put_object(Bucket=s3_location.bucket, Key=key)
    store = s3_location.store()
    store.put("a", b"")
    assert [info.key for info in store.list()] == ["a"]


def test_errors_name_the_object(s3_location: S3Location) -> None:
    store = s3_location.store()
    with pytest.raises(KbackupError, match=f"s3://{s3_location.bucket}/some/prefix/dir/key does not exist"):
        store.get("dir/key")


# Interrupted reads: kbackup resumes them, within limits and of one version of the object.


def filled(store: Store, start: int, size: int) -> Iterator[bytes]:
    into = bytearray(size)
    done = 0
    for piece in store.fill("key", start, memoryview(into)):
        done += len(piece)
        yield bytes(piece)
    assert done == size


def ranged(store: Store, start: int, size: int) -> Iterator[bytes]:
    return store.open_range("key", start, size)


Read = Callable[[Store, int, int], Iterator[bytes]]


def test_cut_bodies_are_resumed(through: Store, proxy: Proxy) -> None:
    data = data_of(6 * CHUNK + 5)
    through.put("key", data)
    proxy.cut_bodies(3 * CHUNK // 2, 10, 500, 2 * CHUNK + 1000)
    assert through.get("key") == data
    proxy.cut_bodies(3 * CHUNK // 2, 10, 500, 2 * CHUNK + 1000)
    assert b"".join(through.open_range("key", 3, len(data) - 7)) == data[3:-4]
    proxy.cut_bodies(700)
    assert through.get_range("key", 5, 1000) == data[5:1005]
    proxy.cut_bodies(*[1000] * 10)
    with pytest.raises(UnreachableError, match="key"):
        through.get("key")


@pytest.mark.parametrize("direct", [True, False])
def test_filling_goes_on_where_a_connection_dropped(
    through: Store, proxy: Proxy, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not direct:  # with an SDK that reads in another way
        monkeypatch.setattr("kbackup.store.reading.plain_response", lambda body: None)
    data = data_of(4 * CHUNK)
    through.put("key", data)
    proxy.cut_bodies(1000, 2 * CHUNK, CHUNK // 2)
    assert b"".join(filled(through, 3, len(data) - 7)) == data[3:-4]
    before = len(proxy.requests)
    assert b"".join(filled(through, 5, 1000)) == data[5:1005]
    assert len(proxy.requests) == before + 1


@pytest.mark.parametrize("read", [filled, ranged])
def test_reads_are_not_resumed_for_ever_and_of_one_version(
    read: Read, through: Store, proxy: Proxy, s3_location: S3Location
) -> None:
    through.put("key", data_of(3 * CHUNK))
    proxy.cut_bodies(*[1000] * 10)
    with pytest.raises(UnreachableError, match="key"):
        list(read(through, 0, 3 * CHUNK))
    proxy.cut_bodies(3 * CHUNK // 2)
    pieces = read(through, 0, 3 * CHUNK)
    assert next(pieces) == data_of(3 * CHUNK)[:CHUNK]
    s3_location.store().put("key", bytes(3 * CHUNK))
    with pytest.raises(PreconditionError, match="key"):
        list(pieces)
