"""Test encryption by the store, the bucket's owner, object lock, and the roles of `infra/policies`.

Real servers check what they support; for the rest, tests compare the requests that are sent.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NoReturn

import pytest
from awscrt.checksums import crc64nvme
from botocore.exceptions import ClientError

from kbackup.archive import layout
from kbackup.errors import AlreadyExistsError, DeniedError, NotFoundError, StoreError, UsageError, WrongKeyError
from kbackup.jobs.copy import copy_archive
from kbackup.jobs.retention import Expiry, Policy, expire
from kbackup.jobs.verify import verify
from kbackup.metrics.registry import Silent
from kbackup.mirror.flow import write_status
from kbackup.mirror.status import first_status
from kbackup.store import S3Options, Store, open_store
from kbackup.store.base import Buffer, check_conditional_writes
from kbackup.store.crypt import CryptStore
from kbackup.store.crypt.kek import generate_key, load_kek
from kbackup.store.crypt.keyring import Keyring, rotate
from kbackup.store.s3.bucket import client_of
from scripts.dev.s3 import MinioWithKms, MotoServer, S3Server
from tests.conftest import watched
from tests.contract.conftest import PART, options_of, upload
from tests.support.archives import T0, make_archive
from tests.support.flow_maps import flow_of
from tests.support.memory_store import MemoryStore
from tests.support.repairs import ORDERS, harm, key_of, make, run

POLICIES = Path(__file__).parents[2] / "infra" / "policies"


@pytest.fixture(scope="module")
def server() -> Iterator[MinioWithKms]:
    with watched(MinioWithKms()) as running:
        yield running


def new_bucket(server: S3Server, **options: Any) -> str:
    name = f"security-{secrets.token_hex(8)}"
    server.create_bucket(name, **options)
    return name


def in_every_way(store: Store) -> list[str]:
    """Write an object in each way that stores have, and return their keys."""
    store.put("put", b"1")
    etag = store.put_new("new", b"2")
    store.replace("new", b"33", etag)
    upload(store, "small", b"4")
    upload(store, "large", bytes(2 * PART + 5))
    assert store.get("new") == b"33"
    assert store.get_range("large", 2 * PART, 5) == bytes(5)
    assert store.checksum("large") == crc64nvme(bytes(2 * PART + 5))
    return ["put", "new", "small", "large"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"sse": "AES256"}, {"ServerSideEncryption": "AES256"}),
        (
            {"sse": "aws:kms", "sse_kms_key_id": MinioWithKms.kms_key},
            {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": f"arn:aws:kms:{MinioWithKms.kms_key}"},
        ),
    ],
    ids=["SSE-S3", "SSE-KMS"],
)
def test_encryption_by_the_store(server: MinioWithKms, given: dict[str, str], expected: dict[str, str]) -> None:
    bucket = new_bucket(server)
    for key in in_every_way(open_store(f"s3://{bucket}/p", {"s3": options_of(server, **given)})):
        head: Any = server.client().head_object(Bucket=bucket, Key=f"p/{key}")
        assert {name: head.get(name) for name in expected} == expected


def test_a_kms_key_that_is_not_there(server: MinioWithKms) -> None:
    options = options_of(server, sse="aws:kms", sse_kms_key_id="no-such-key")
    store = open_store(f"s3://{new_bucket(server)}/p", {"s3": options})
    with pytest.raises(StoreError, match="key") as caught:
        store.put("key", b"")
    assert not isinstance(caught.value, NotFoundError)
    assert "s3.sse_kms_key_id" in caught.value.hint


def test_every_request_names_the_owner(moto_server: MotoServer) -> None:
    options = options_of(moto_server, expected_bucket_owner="111122223333")
    store = open_store(f"s3://{new_bucket(moto_server)}/p", {"s3": options})
    owners: dict[str, set[str | None]] = {}

    def note(params: dict[str, Any], model: Any, **_: Any) -> None:
        headers = {name.lower(): str(value) for name, value in params["headers"].items()}
        owners.setdefault(model.name, set()).add(headers.get("x-amz-expected-bucket-owner"))

    client_of(options).meta.events.register_last("before-call.s3", note)
    with pytest.raises(NotFoundError):
        store.stat("nothing")  # the first request of all looks for the bucket as well
    store.put("put", b"1")
    store.replace("put", b"2", store.stat("put").etag)
    upload(store, "large", bytes(PART + 1))
    store.upload("aborted").abort()
    assert b"".join(store.open_range("large", 5, 10)) == bytes(10)
    assert [info.key for info in store.list()] == ["large", "put"]
    assert store.delete(["put"]) == []
    uploads = {"CompleteMultipartUpload", "UploadPart"}
    assert owners.keys() >= uploads | {"PutObject", "GetObject", "HeadObject", "HeadBucket", "DeleteObjects"}
    assert set().union(*owners.values()) == {"111122223333"}


# Object lock


@pytest.mark.parametrize("mode", ["GOVERNANCE", "COMPLIANCE"])
def test_locked_objects_keep_their_retention(server: MinioWithKms, mode: str) -> None:
    bucket = new_bucket(server, object_lock=True)
    store = open_store(
        f"s3://{bucket}/p",
        {"s3": options_of(server, object_lock_mode=mode, object_lock_days=2)},
        key_class=layout.key_class,
    )
    client: Any = server.client()
    check_conditional_writes(store, "check/probe")
    lease = store.put_new("lock.json", b"1")
    for n in range(3):
        lease = store.replace("lock.json", b"%d" % n, lease)
    for key in in_every_way(store):
        assert client.get_object_retention(Bucket=bucket, Key=f"p/{key}")["Retention"]["Mode"] == mode
    with pytest.raises(AlreadyExistsError):
        store.put_new("put", b"2")
    versions = client.list_object_versions(Bucket=bucket, Prefix="p/")["Versions"]
    refused, deleted = {}, set()
    for version in versions:
        try:
            client.delete_object(Bucket=bucket, Key=version["Key"], VersionId=version["VersionId"])
            deleted.add(version["Key"].partition("/")[2].partition("/")[0])
        except ClientError as error:
            refused[version["Key"]] = error.response["Error"]["Message"]
    assert refused.keys() == {"p/put", "p/new", "p/small", "p/large"}
    assert all(re.search("WORM|lock", message) for message in refused.values())
    assert deleted == {"lock.json", "check"}
    # a plain delete hides an object; what it hid is still there
    assert store.delete(["large"]) == []
    with pytest.raises(NotFoundError):
        store.get("large")
    (marker,) = [m for m in client.list_object_versions(Bucket=bucket)["DeleteMarkers"] if m["Key"] == "p/large"]
    client.delete_object(Bucket=bucket, Key="p/large", VersionId=marker["VersionId"])
    assert store.stat("large").size == 2 * PART + 5


def test_replaced_objects_are_not_locked_and_all_others_are(server: MinioWithKms) -> None:
    """Two restore points, and a mirror that writes its status again and again."""
    bucket = new_bucket(server, object_lock=True)
    options = options_of(server, object_lock_mode="GOVERNANCE", object_lock_days=2)
    store = open_store(f"s3://{bucket}/p", {"s3": options}, key_class=layout.key_class)
    archive_id = make_archive(store).info.id
    for _ in range(2):
        write_status(store, first_status(flow_of(), archive_id, None))
    client: Any = server.client()
    versions: dict[str, list[bool]] = {}
    for version in client.list_object_versions(Bucket=bucket, Prefix="p/")["Versions"]:
        head = client.head_object(Bucket=bucket, Key=version["Key"], VersionId=version["VersionId"])
        versions.setdefault(version["Key"].removeprefix("p/"), []).append("ObjectLockMode" in head)
    locked_twice = [key for key, locks in versions.items() if len(locks) > 1 and any(locks)]
    assert locked_twice == [], "locked versions of a replaced object pile up"
    unlocked = {key for key, locks in versions.items() if not all(locks)}
    assert unlocked == {key for key in versions if layout.key_class(key).replaced}
    assert {"topics/orders/index_partition_000", "mirrors/A/B/status.json", layout.LATEST} <= unlocked
    assert layout.ARCHIVE in versions.keys() - unlocked
    assert all(key in versions.keys() - unlocked for key in versions if "/segment_" in key)


def test_object_lock_takes_a_bucket_for_it(server: MinioWithKms) -> None:
    options = options_of(server, object_lock_mode="GOVERNANCE", object_lock_days=2)
    store = open_store(f"s3://{new_bucket(server)}/p", {"s3": options})
    for write in (lambda: store.put("key", b""), lambda: upload(store, "key", bytes(PART + 1))):
        with pytest.raises(UsageError, match="ock") as caught:
            write()
        assert "made with object lock" in caught.value.hint


# The roles


def role(server: MinioWithKms, name: str, bucket: str, **options: Any) -> Store:
    """Open the archive at `p` of the bucket with the rights of one policy alone."""
    policy = (POLICIES / f"{name}.json").read_text().replace("BUCKET", bucket).replace("PREFIX", "p")
    return open_store(
        f"s3://{bucket}/p",
        {"s3": options_of(server, **server.credentials(policy), **options)},
        key_class=layout.key_class,
    )


def options_in(store: Any) -> S3Options:
    options: S3Options = store._bucket.options
    return options


def test_the_role_of_a_writer_writes_in_every_way_and_deletes_nothing(server: MinioWithKms) -> None:
    bucket = new_bucket(server)
    store = role(server, "writer", bucket)
    check_conditional_writes(store, "check")
    in_every_way(store)
    with store.upload("aborted") as aborted:
        aborted.write(bytes(3 * PART))
    assert "Uploads" not in server.client().list_multipart_uploads(Bucket=bucket)
    with pytest.raises(NotFoundError):
        store.get("nothing")
    (failed,) = store.delete(["put"])
    assert isinstance(failed.error, DeniedError)
    assert "rights to delete" in failed.error.hint
    assert store.get("put") == b"1"
    elsewhere = open_store(f"s3://{bucket}/other", {"s3": options_in(store)})
    with pytest.raises(DeniedError):
        elsewhere.put("key", b"")


def lock_until(store: Store, bucket: str, key: str, days: int) -> None:
    until = datetime.now(UTC) + timedelta(days=days)
    client_of(options_in(store)).put_object_retention(
        Bucket=bucket, Key=f"p/{key}", Retention={"Mode": "GOVERNANCE", "RetainUntilDate": until}
    )


def test_a_writer_deletes_nothing_of_a_mirror_and_locks_nothing(server: MinioWithKms) -> None:
    """Only the role of mirrors deletes the offset-map parts that it has folded."""
    bucket = new_bucket(server, object_lock=True)
    store, mirror = role(server, "writer", bucket), role(server, "mirror", bucket)
    keys = ["mirrors/A/B/flow.json", "mirrors/A/B/map/0000/0000000001-ab.parquet"]
    for key in keys:
        store.put(key, b"1")
    assert [failed.key for failed in store.delete(keys)] == keys
    with pytest.raises(ClientError, match="AccessDenied"):
        lock_until(store, bucket, keys[0], 1)
    assert [failed.key for failed in mirror.delete(keys)] == keys[:1]


def test_a_writer_with_locks_writes_locked_objects_and_releases_none(server: MinioWithKms) -> None:
    bucket = new_bucket(server, object_lock=True)
    store = role(server, "writer-locked", bucket, object_lock_mode="GOVERNANCE", object_lock_days=30)
    assert len(in_every_way(store)) == 4
    with pytest.raises(ClientError, match=r"AccessDenied|WORM"):
        lock_until(store, bucket, "put", 1)


def test_no_backup_needs_what_the_policy_for_aws_denies() -> None:
    """MinIO does not know `s3:if-none-match`: the writes without that header are held against the policy."""
    policy = json.loads((POLICIES / "aws" / "write-once.json").read_text())
    statement = policy["Statement"][0]
    denied = [resource.removeprefix("arn:aws:s3:::BUCKET/PREFIX/") for resource in statement["Resource"]]
    store = Unconditional()
    assert not any(store.list())  # a store that was asked before gets no copy of an archive, but its writes
    make(store)
    copy_archive(store, target := Unconditional(), 60, Silent())
    harm(store, f"{ORDERS}15_index", "flip")
    harm(store, key_of(store, 3, layout.MANIFEST), "gone")
    run(store)
    replaced = store.replaced | target.replaced
    assert {layout.LATEST, layout.LOCK, f"{ORDERS}15_index"} <= replaced
    allowed = [key for key in replaced if any(fnmatch(key, pattern) for pattern in denied)]
    assert not allowed, f"denied, and replaced all the same: {allowed}"
    kept = [e.key for e in store.list() if e.key not in replaced and not e.key.endswith("_index")]
    open_ones = [key for key in kept if not any(fnmatch(key, pattern) for pattern in denied)]
    assert open_ones == [layout.ARCHIVE], "an object that is written once may be replaced"


class Unconditional(MemoryStore):
    """Records the keys that are written without If-None-Match."""

    def __init__(self) -> None:
        super().__init__()
        self.replaced: set[str] = set()

    def put(self, key: str, data: Buffer) -> str:
        self.replaced.add(key)
        return super().put(key, data)

    def replace(self, key: str, data: Buffer, etag: str) -> str:
        self.replaced.add(key)
        return super().replace(key, data, etag)


def test_the_role_of_a_reader_reads_and_writes_nothing(server: MinioWithKms) -> None:
    bucket = new_bucket(server)
    keys = in_every_way(role(server, "writer", bucket))
    store = role(server, "reader", bucket)
    assert sorted(info.key for info in store.list()) == sorted(keys)
    assert store.get("new") == b"33"
    assert store.checksum("large") == crc64nvme(bytes(2 * PART + 5))
    for write in (
        lambda: store.put("more", b""),
        lambda: store.put_new("more", b""),
        lambda: store.replace("put", b"", store.stat("put").etag),
        lambda: upload(store, "more", bytes(PART + 1)),
    ):
        with pytest.raises(DeniedError):
            write()
    assert [failed.key for failed in store.delete(["put"])] == ["put"]
    assert len(list(store.list())) == len(keys)


def test_the_role_of_an_expirer_deletes_objects_but_not_the_bucket(server: MinioWithKms) -> None:
    bucket = new_bucket(server)
    store = role(server, "expirer", bucket)
    assert store.delete(in_every_way(store)) == []
    assert list(store.list()) == []
    with pytest.raises(ClientError):
        client_of(options_in(store)).delete_bucket(Bucket=bucket)


def test_writer_expires_points_and_expirer_deletes_objects(server: MinioWithKms) -> None:
    """A writer expires restore points but can't delete their objects, and reports it; an expirer deletes them."""
    bucket = new_bucket(server)
    archive = make_archive(role(server, "writer", bucket))
    point = archive.restore_point("latest")
    age = datetime.fromisoformat(point.committed_at) - datetime.fromtimestamp(T0 / 1000 + 8, UTC)
    expiry = Expiry(Policy(last=1), age, timedelta(0))
    begun = expire(role(server, "writer", bucket), expiry, 60, Silent(), confirm=True)
    assert (begun.expiration, begun.deleted) == (archive.state.number + 1, 0)
    assert begun.failed
    store = role(server, "reader", bucket)
    before = verify(store, "all", True, no_spark, Silent())
    assert (before.findings, before.restore_points) == ((), (2,))
    assert before.orphan_bytes > 0
    ended = expire(role(server, "expirer", bucket), expiry, 60, Silent(), confirm=True)
    assert (ended.expiration, ended.failed) == (None, {})
    assert ended.deleted >= len(begun.failed)
    after = verify(store, "all", True, no_spark, Silent())
    assert (after.findings, after.orphan_bytes) == ((), 0)


def no_spark() -> NoReturn:
    raise AssertionError("Spark was asked for")


def test_writer_rotates_keys_and_expirer_deletes_old_key_files(server: MinioWithKms, tmp_path: Path) -> None:
    """A writer lacks the right to delete the old key file: the rotation reports it, and every key still opens."""
    bucket = new_bucket(server)
    for name in ("old", "new"):
        (tmp_path / name).write_text(generate_key())
    old, new = (load_kek(f"file:{tmp_path / name}") for name in ("old", "new"))

    def opened(role_name: str, key: str) -> CryptStore:
        inner = role(server, role_name, bucket)
        return CryptStore(inner, Keyring(inner, f"file:{tmp_path / key}"), layout.key_class)

    opened("writer", "old").put("key", b"data")
    begun = rotate(opened("writer", "old").inner, old, new, "")
    assert (begun.keys, begun.removed) == (1, ())
    assert [type(failed.error) for failed in begun.undeleted] == [DeniedError]
    assert [opened("reader", key).get("key") for key in ("old", "new")] == [b"data"] * 2
    ended = rotate(opened("expirer", "old").inner, old, new, "")
    assert (ended.file, len(ended.removed), ended.undeleted) == (begun.file, 1, ())
    assert opened("reader", "new").get("key") == b"data"
    with pytest.raises(WrongKeyError):
        opened("reader", "old").get("key")


@pytest.mark.parametrize("path", sorted(POLICIES.glob("*.json")), ids=lambda path: path.stem)
def test_policies_stay_within_the_prefix(path: Path) -> None:
    for statement in json.loads(path.read_text())["Statement"]:
        assert statement["Effect"] == "Allow"
        assert not any("*" in action for action in statement["Action"])
        inside = all(resource.startswith("arn:aws:s3:::BUCKET/PREFIX/") for resource in statement["Resource"])
        only_lists = statement["Action"] == ["s3:ListBucket"]
        assert inside or (only_lists and statement["Condition"] == {"StringLike": {"s3:prefix": ["PREFIX/*"]}})


@pytest.mark.parametrize("name", sorted(path.stem for path in POLICIES.glob("*.json")))
def test_roles_list_nothing_outside_their_prefix(name: str, server: MinioWithKms) -> None:
    """A role can't list names outside its prefix, which would disclose topics of others."""
    bucket = new_bucket(server)
    for key in ("other/secret", "pp/secret", "top"):
        server.client().put_object(Bucket=bucket, Key=key, Body=b"")
    store = role(server, name, bucket)
    assert list(store.list()) == []
    assert list(store.list_dirs()) == []
    with pytest.raises(NotFoundError):
        store.stat("nothing")
    for prefix in ("", "other", "pp"):
        elsewhere = open_store(f"s3://{bucket}/{prefix}", {"s3": options_in(store)})
        with pytest.raises(DeniedError):
            list(elsewhere.list())
