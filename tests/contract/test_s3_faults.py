"""Check errors and retries of S3 stores when credentials, bucket, endpoint or the network fail."""

from __future__ import annotations

import socket
from collections.abc import Callable

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
from tests.contract.conftest import PART, S3Location
from tests.contract.contents import data_of
from tests.contract.proxy import Proxy
from tests.support.secrets import make


@pytest.fixture
def minio_location(minio_server: object, request: pytest.FixtureRequest) -> S3Location:
    return S3Location(request.getfixturevalue("minio_server"))


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
        lambda: upload(store, 1),
        lambda: upload(store, PART + 1),
    ]


def upload(store: Store, size: int) -> None:
    with store.upload("key") as up:
        up.write(data_of(size))
        up.commit()


def test_a_wrong_secret_is_denied(minio_location: S3Location) -> None:
    store = open_store(minio_location.url, minio_location.options(secret_key=make("a wrong secret key")))
    for ask in asks_of(store):
        with pytest.raises(DeniedError) as caught:
            ask()
        assert caught.value.hint
        assert "nobody-may-see" not in str(caught.value)
        assert minio_location.bucket in str(caught.value)


def test_an_unknown_user_is_denied(minio_location: S3Location) -> None:
    options = S3Options(
        endpoint_url=minio_location.server.endpoint_url, access_key_id="nobody", secret_access_key="x" * 20
    )
    with pytest.raises(DeniedError, match="access key id"):
        open_store(minio_location.url, options).get("key")


def test_an_anonymous_caller_is_denied(minio_location: S3Location, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    store = open_store(minio_location.url, S3Options(endpoint_url=minio_location.server.endpoint_url))
    with pytest.raises(DeniedError, match="credentials"):
        store.put("key", b"")


def test_a_missing_bucket_is_unreachable(s3_location: S3Location) -> None:
    for n in range(len(asks_of(s3_location.store()))):
        store = open_store("s3://no-such-bucket-here/prefix", s3_location.options())
        with pytest.raises(UnreachableError, match=r"no-such-bucket-here.*does not exist"):
            asks_of(store)[n]()


def test_a_closed_port_is_unreachable_and_soon() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    options = S3Options(
        endpoint_url=f"http://127.0.0.1:{port}", access_key_id="id", secret_access_key="secret", max_attempts=2
    )
    store = open_store("s3://bucket/prefix", options)
    for ask in asks_of(store):
        with pytest.raises(UnreachableError, match=str(port)):
            ask()


@pytest.mark.parametrize("write", ["put", "put_new"])
def test_a_lost_answer_to_a_write_that_took_effect(through: Store, proxy: Proxy, write: str) -> None:
    proxy.lose_answers("^PUT", 1)
    etag = getattr(through, write)("key", b"ours")
    assert through.get_with_etag("key") == (b"ours", etag)
    assert sum(request.startswith("PUT") for request in proxy.requests) == 2


def test_a_lost_answer_to_a_replace_that_took_effect(through: Store, proxy: Proxy) -> None:
    first = through.put("lock", b"1")
    proxy.lose_answers("^PUT", 1)
    second = through.replace("lock", b"2", first)
    assert through.get_with_etag("lock") == (b"2", second)


def test_a_lost_answer_about_a_taken_key(through: Store, proxy: Proxy) -> None:
    through.put("key", b"theirs")
    proxy.lose_answers("^PUT", 1)
    with pytest.raises(AlreadyExistsError, match="key"):
        through.put_new("key", b"ours..")
    assert through.get("key") == b"theirs"


def test_a_lost_answer_about_another_version(through: Store, proxy: Proxy) -> None:
    first = through.put("lock", b"1")
    through.put("lock", b"2")
    proxy.lose_answers("^PUT", 1)
    with pytest.raises(PreconditionError, match="lock"):
        through.replace("lock", b"3", first)


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
    upload(through, size)
    assert through.get("key") == data_of(size)


def test_a_lost_commit_over_a_taken_key(through: Store, proxy: Proxy) -> None:
    through.put("key", b"theirs")
    proxy.lose_answers("^POST .*uploadId", 1)
    with pytest.raises(AlreadyExistsError):
        upload(through, PART + 1)
    assert through.get("key") == b"theirs"


def test_a_commit_without_any_answer(through: Store, proxy: Proxy, s3_location: S3Location) -> None:
    proxy.lose_answers("^POST .*uploadId", 1, then_refuse=True)
    with pytest.raises(OutcomeUnknownError) as caught:
        upload(through, PART + 1)
    assert s3_location.store().get("key") == data_of(PART + 1)
    assert any("reading back" in note for note in caught.value.__notes__)
    assert any("aborting the upload failed" in note for note in caught.value.__notes__)


def test_a_part_that_can_not_be_sent_keeps_its_error(through: Store, proxy: Proxy, s3_location: S3Location) -> None:
    proxy.lose_answers("^PUT", 100)
    with pytest.raises(UnreachableError, match="key"):
        upload(through, 2 * PART + 1)
    proxy.lose_answers("^PUT", 0)  # enough
    assert s3_location.unfinished() == []
    assert list(through.list()) == []


def test_damaged_parts_are_refused(minio_location: S3Location, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbackup.store.s3.upload.crc64nvme", lambda data, crc: crc ^ len(data))
    for size in (10, PART + 10):
        with pytest.raises(StoreError, match="damaged on their way"):
            upload(minio_location.store(), size)
    assert minio_location.unfinished() == []
    assert list(minio_location.store().list()) == []


def test_without_checksums(s3_location: S3Location) -> None:
    options = S3Options(
        endpoint_url=s3_location.server.endpoint_url,
        access_key_id=s3_location.server.access_key,
        secret_access_key=s3_location.server.secret_key,
        checksum="none",
        part_size=PART,
    )
    store = open_store(s3_location.url, options)
    upload(store, 2 * PART + 1)
    assert store.get("key") == data_of(2 * PART + 1)
    with pytest.raises(AlreadyExistsError):
        upload(store, 2 * PART + 2)
    assert store.delete(["key"]) == []
    assert list(store.list()) == []


def test_a_lost_commit_without_checksums_is_known_by_its_etag(s3_location: S3Location, proxy: Proxy) -> None:
    options = S3Options(
        endpoint_url=proxy.url,
        access_key_id=s3_location.server.access_key,
        secret_access_key=s3_location.server.secret_key,
        checksum="none",
        part_size=PART,
        max_attempts=3,
    )
    proxy.lose_answers("^POST .*uploadId", 3)
    upload(open_store(s3_location.url, options), PART + 1)
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
