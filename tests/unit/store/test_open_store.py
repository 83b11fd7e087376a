"""Open stores by their URLs; refuse invalid URLs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kbackup.errors import UsageError
from kbackup.store import S3Options, open_store
from kbackup.store.file import FileStore
from kbackup.store.s3 import S3Store


def test_a_path_and_a_file_url_are_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url in (
        f"file://{tmp_path}/a%20b",
        f"file://localhost{tmp_path}/a%20b",
        f"{tmp_path}/a b",
        "a b",
        "./a b/",
    ):
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


def test_a_relative_path_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("archive")
    monkeypatch.chdir("/")
    store.put("key", b"")
    assert (tmp_path / "archive" / "key").exists()


@pytest.mark.parametrize(
    "url", ["s3://bucket", "s3://bucket/", "s3://bucket/some/prefix", "s3://bucket/prefix/"]
)
def test_a_bucket(url: str) -> None:
    store = open_store(url)
    assert isinstance(store, S3Store)
    assert store.url == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "file:relative",
        "file://host/path",
        "file://",
        "s3://",
        "s3:///prefix",
        "gs://bucket",
        "s3a://bucket/x",
        "s3:/bucket/x",
        "s3:bucket",
        "S3:/bucket",
        "s3a:/bucket/x",
        "https:/host/bucket",
    ],
)
def test_invalid_locations(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_store(url)
    assert "s3://bucket/prefix" in caught.value.hint


def test_secrets_do_not_show() -> None:
    options = S3Options(access_key_id="id", secret_access_key="hush-1", session_token="hush-2")
    assert "hush" not in repr(options)
    assert "hush" not in repr(open_store("s3://bucket/prefix", options))


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
