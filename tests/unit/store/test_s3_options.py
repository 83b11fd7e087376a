"""Options of S3 become arguments, clients and limits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from kbackup.archive import layout
from kbackup.errors import (
    DeniedError,
    KbackupError,
    NotFoundError,
    StoreError,
    UsageError,
)
from kbackup.store import S3Options
from kbackup.store.s3 import S3Store
from kbackup.store.s3.bucket import Bucket
from kbackup.store.s3.errors import from_boto
from kbackup.store.s3.upload import S3Upload
from tests.support.s3_answers import answer


@pytest.mark.parametrize("part_size", [5 << 20, 8 << 20, 512 << 20])
def test_parts_hold_the_largest_object(part_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    upload = S3Upload(Bucket("bucket", "", S3Options(part_size=part_size)), "key")
    total = 0
    while total < 5 << 40:
        assert upload._part_size <= 5 << 30
        total += upload._part_size
        upload._number += 1
    assert upload._number - 1 <= 10_000


def test_options_become_arguments() -> None:
    options = S3Options(
        sse="aws:kms",
        sse_kms_key_id="k",
        storage_class="STANDARD_IA",
        requester_pays=True,
        expected_bucket_owner="1",
    )
    bucket = Bucket("b", "p", options)
    assert bucket.common == {"Bucket": "b", "ExpectedBucketOwner": "1", "RequestPayer": "requester"}
    assert bucket.create == {
        "ServerSideEncryption": "aws:kms",
        "SSEKMSKeyId": "k",
        "StorageClass": "STANDARD_IA",
    }
    assert Bucket("b", "p", S3Options()).create == {}


def test_retention() -> None:
    bucket = Bucket("b", "p", S3Options(object_lock_mode="COMPLIANCE", object_lock_days=3), layout.key_class)
    before = datetime.now(UTC)
    for key in (
        "archive.json",
        "topics/t/segment_partition_000_from_offset_0000000000_index",
        "backups/0000000001/manifest.json",
        "keys/k.json",
    ):
        found = bucket.retention(key)
        assert found["ObjectLockMode"] == "COMPLIANCE"
        assert (
            timedelta(0)
            <= found["ObjectLockRetainUntilDate"] - before - timedelta(days=3)
            < timedelta(hours=1)
        )
    for key in (
        "lock.json",
        "check/some/probe",
        "catalog/latest.json",
        "topics/t@2/index_partition_000",
        "topics/t/consumer_offsets_partition_000",
        "mirrors/A/B/status.json",
    ):
        assert bucket.retention(key) == {}, key
    assert Bucket("b", "p", S3Options()).retention("archive.json") == {}


def test_a_bucket_without_object_lock() -> None:
    said = from_boto(
        "s3://b/k", answer(400, "InvalidRequest", "Bucket is missing Object Lock Configuration"), False
    )
    assert type(said) is UsageError
    assert "made with object lock" in said.hint


def test_a_key_is_as_long_as_s3_takes() -> None:
    bucket = Bucket("b", "p" * 100, S3Options())
    assert len(bucket.full("k" * 923)) == 1024
    with pytest.raises(StoreError, match="1024"):
        bucket.full("k" * 924)


@pytest.mark.parametrize(
    ("options", "endpoint", "signed"),
    [
        (
            S3Options(endpoint_url="http://host:9000", access_key_id="i", secret_access_key="s"),
            "http://host:9000",
            False,  # the signed CRC-64/NVME covers the body
        ),
        (
            S3Options(
                endpoint_url="http://host:9000", access_key_id="i", secret_access_key="s", checksum="none"
            ),
            "http://host:9000",
            True,
        ),
        (
            S3Options(endpoint_url="https://host", access_key_id="i", secret_access_key="s"),
            "https://host",
            False,
        ),
        (
            S3Options(region="eu-west-1", access_key_id="i", secret_access_key="s"),
            "https://s3.eu-west-1.amazonaws.com",
            False,
        ),
    ],
)
def test_clients(options: S3Options, endpoint: str, signed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    client = Bucket("b", "", options).client
    assert client.meta.endpoint_url == endpoint
    assert client.meta.config.s3.get("payload_signing_enabled", True) is signed  # type: ignore[attr-defined]


class DeniesReading:
    """A client of a role that may list a prefix only, as AWS answers it; `listed` None: not even that."""

    def __init__(self, listed: list[str] | None) -> None:
        self.listed = listed

    def head_object(self, **asked: object) -> object:
        raise answer(403, "403")

    def get_object(self, **asked: object) -> object:
        raise answer(403, "AccessDenied")

    def list_objects_v2(self, Prefix: str, **asked: object) -> object:  # noqa: N803 (boto's name)
        if self.listed is None:
            raise answer(403, "AccessDenied")
        return {"Contents": [{"Key": key} for key in self.listed if key.startswith(Prefix)]}


@pytest.mark.parametrize(
    ("listed", "error"),
    [([], NotFoundError), (["p/key2"], NotFoundError), (["p/key"], DeniedError), (None, DeniedError)],
)
def test_denied_where_an_object_is_missing(
    listed: list[str] | None, error: type[KbackupError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bucket, "client", DeniesReading(listed))
    monkeypatch.setattr(Bucket, "check_exists", lambda self: None)
    store = S3Store("bucket", "p", S3Options(), "s3://bucket/p")
    for ask in (store.get, store.stat):
        with pytest.raises(error) as caught:
            ask("key")
        assert type(caught.value) is error
