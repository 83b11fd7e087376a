"""Open stores by their URLs; refuse invalid URLs."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from kbackup.errors import AlreadyExistsError, NotFoundError, PreconditionError, StoreError, UsageError
from kbackup.store import S3Options, Store, open_store
from kbackup.store.base import Buffer, Upload, check_apart, check_conditional_writes
from kbackup.store.file import FileStore
from kbackup.store.s3.store import S3Store
from kbackup.store.wrappers import LimitedUpload, RateLimit


def test_a_path_and_a_file_url_are_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url in (f"file://{tmp_path}/a%20b", f"file://localhost{tmp_path}/a%20b", f"{tmp_path}/a b", "a b", "./a b/"):
        store = open_store(url)
        assert isinstance(store, FileStore)
        assert store.url == url
        store.put("key", url.encode())
        assert (tmp_path / "a b" / "key").read_bytes() == url.encode()


def test_a_tilde_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    open_store("~/bk").put("key", b"")
    assert (tmp_path / "home" / "bk" / "key").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    with pytest.raises(UsageError, match="names no home directory") as caught:
        open_store("~nobody-of-this-name/bk")
    assert "'./~nobody-of-this-name/bk'" in caught.value.hint
    open_store("./~nobody-of-this-name/bk").put("key", b"")
    assert (tmp_path / "~nobody-of-this-name").exists()


def test_a_folder_may_have_a_colon_in_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    open_store("nas:/x").put("key", b"")
    assert (tmp_path / "nas:" / "x" / "key").exists()


def test_a_relative_path_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("archive")
    monkeypatch.chdir("/")
    store.put("key", b"")
    assert (tmp_path / "archive" / "key").exists()


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/", "s3://bucket/some/prefix", "s3://bucket/prefix/"])
def test_an_s3_address_opens_its_bucket(url: str) -> None:
    store = open_store(url)
    assert isinstance(store, S3Store)
    assert store.url == url


FILES = ["file:relative", "file://host/path", "file://"]
BUCKETS = ["s3://", "s3:///prefix", "s3:/bucket/x", "s3:bucket", "S3:/bucket"]
OTHERS = ["gcs://bucket", "s3a://bucket/x", "s3a:/bucket/x", "https:/host/bucket"]


@pytest.mark.parametrize("url", ["", *FILES, *BUCKETS, *OTHERS])
def test_an_invalid_address_is_refused_with_the_form_of_a_right_one(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_store(url)
    form = "s3://bucket/prefix" if url not in FILES[1:] else "file:///path or a path"
    assert form in caught.value.hint


def test_secrets_do_not_show() -> None:
    options = S3Options(access_key_id="id", secret_access_key="hush-1", session_token="hush-2")
    assert "hush" not in repr(options)
    assert "hush" not in repr(open_store("s3://bucket/prefix", {"s3": options}))


@pytest.mark.parametrize(
    "wrong",
    [
        {"part_size": 5 * (1 << 20) - 1},
        {"parts_in_flight": 0},
        {"max_attempts": 0},
        {"access_key_id": "id"},
        {"secret_access_key": "hush"},
        {"endpoint_url": "https://user:hush@host"},
        {"endpoint_url": "host:9000"},
        {"sse_kms_key_id": "key"},
        {"sse": "AES256", "sse_kms_key_id": "key"},
        {"object_lock_mode": "GOVERNANCE"},
        {"object_lock_days": 3},
        {"object_lock_mode": "GOVERNANCE", "object_lock_days": -1},
        {"object_lock_mode": "GOVERNANCE", "object_lock_days": 3, "checksum": "none"},
        {"endpoint_url": "ftp://host"},
    ],
)
def test_options_that_can_not_be(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError) as caught:
        S3Options(**wrong)  # type: ignore[arg-type]
    assert "hush" not in str(caught.value)


def test_the_sdk_is_loaded_by_its_use_only() -> None:
    code = "import sys, kbackup.store; assert not {'boto3', 'botocore', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# Tell whether two addresses name one location, however they are written.


def options(endpoint_url: str) -> S3Options:
    return S3Options(endpoint_url=endpoint_url, access_key_id="id", secret_access_key="hush", region="eu-west-1")


@pytest.mark.parametrize(
    ("destination", "how"),
    [
        ("A", "is the archive itself"),
        ("A/", "is the archive itself"),
        ("./A", "is the archive itself"),
        ("A/../A", "is the archive itself"),
        ("file://{root}/A", "is the archive itself"),
        ("~/A", "is the archive itself"),
        ("link", "is the archive itself"),
        ("link/inside", "lies within the archive"),
        ("A/inside", "lies within the archive"),
        (".", "holds the archive"),
        ("AA", None),
        ("B/A", None),
    ],
)
def test_a_destination_directory_must_lie_apart_from_the_archive(
    destination: str, how: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "A").mkdir()
    (tmp_path / "link").symlink_to("A")
    _check(open_store(destination.format(root=tmp_path)), open_store("A"), how)


@pytest.mark.parametrize(
    ("destination", "archive", "how"),
    [
        ("s3://lake/kafka/", "s3://lake/kafka", "is the archive itself"),
        ("s3://lake", "s3://lake/kafka", "holds the archive"),
        ("s3://lake/kafka/copy", "s3://lake/kafka", "lies within the archive"),
        ("s3://lake/kafka-copy", "s3://lake/kafka", None),
        ("s3://copies/kafka", "s3://lake/kafka", None),
        ("lake/kafka", "s3://lake/kafka", None),
    ],
)
def test_a_destination_prefix_must_lie_apart_from_the_archive(destination: str, archive: str, how: str | None) -> None:
    here = options("http://here:9000")
    _check(open_store(destination, {"s3": here}), open_store(archive, {"s3": here}), how)


@pytest.mark.exhaustive(keep=2)
@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("http://here:9000", "http://here:9000/", True),
        ("http://localhost:9000", "http://127.0.0.1:9000", True),
        ("https://here", "https://here:443", True),
        ("http://here:9000", "http://there:9000", False),
        ("http://here:9000", "http://here:9001", False),
        ("", "https://s3.eu-central-1.amazonaws.com", True),
        ("", "http://here:9000", False),
    ],
)
def test_two_spellings_of_an_endpoint_are_one_server(one: str, other: str, same: bool) -> None:
    """A bucket of AWS is the same one in every region."""
    first, second = (open_store("s3://lake/kafka", {"s3": options(url)}) for url in (one, other))
    _check(first, second, "is the archive itself" if same else None)


@pytest.mark.exhaustive
def test_the_endpoint_of_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://here:9000")
    plain, named = (open_store("s3://lake/kafka", {"s3": options(url)}) for url in ("", "http://here:9000"))
    _check(plain, named, "is the archive itself")


def _check(destination: Store, archive: Store, how: str | None) -> None:
    with pytest.raises(UsageError, match=how) if how is not None else nullcontext():
        check_apart(destination, archive)


def test_credentials_in_an_address_are_refused_and_not_shown() -> None:
    for url in ("s3://AKIAEXAMPLE:hush/secret@bucket/prefix", "s3://AKIAEXAMPLE@bucket"):
        with pytest.raises(UsageError, match="holds credentials") as caught:
            open_store(url)
        assert "AKIAEXAMPLE" not in str(caught.value)
        assert "hush" not in str(caught.value)


# A store that ignores conditions is found out.


class Overwrites(FileStore):
    def put_new(self, key: str, data: Buffer) -> str:
        return self.put(key, data)


class Replaces(FileStore):
    def replace(self, key: str, data: Buffer, etag: str) -> str:
        return self.put(key, data)


class Uploads(FileStore):
    """One that ignores the condition of an upload: in parts, or of one that is not (`parts` False)."""

    parts = True

    def upload(self, key: str) -> Upload:  # type: ignore[override]
        return Overwriting(super().upload(key), lambda parts: parts == self.parts and self.delete([key]))


class Overwriting(LimitedUpload):
    def __init__(self, inner: Upload, before: Callable[[bool], object]) -> None:
        super().__init__(inner, RateLimit(1 << 40, "none"))
        self.before, self.parts = before, False

    def in_parts(self) -> None:
        self.parts = True

    def commit(self) -> tuple[int, int]:
        self.before(self.parts)
        return super().commit()


class UploadsWhole(Uploads):
    parts = False


class Races(FileStore):
    """One that looks first, and creates afterwards."""

    def put_new(self, key: str, data: Buffer) -> str:
        with suppress(NotFoundError):
            self.stat(key)
            raise AlreadyExistsError(key)
        time.sleep(0.05)
        return self.put(key, data)


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (Overwrites, "a create"),
        (Replaces, "a replace"),
        (Uploads, "a create in parts"),
        (UploadsWhole, "a create by an upload"),
        (Races, "creates at the same moment"),
    ],
)
def test_a_store_that_ignores_conditions(tmp_path: Path, kind: type[FileStore], what: str) -> None:
    store = kind(tmp_path)
    with pytest.raises(StoreError) as caught:
        check_conditional_writes(store, "probes", racing=True)
    assert caught.value.message.endswith(f"ignores the condition of {what}")
    assert not isinstance(caught.value, (AlreadyExistsError, PreconditionError))
    assert list(store.list()) == []
