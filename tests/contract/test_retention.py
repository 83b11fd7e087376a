"""What stores tell of locks, holds and versions: no more than they know, and no role needs more rights for it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kbackup.archive import layout
from kbackup.archive.query.selection import Selection
from kbackup.archive.reader import open_archive
from kbackup.config.models import Backup
from kbackup.errors import NotFoundError
from kbackup.jobs.erase import Erasure, erase
from kbackup.jobs.key_matching import KeyMatch
from kbackup.jobs.remains import Remains
from kbackup.jobs.retention import Expiry, Policy, expire
from kbackup.jobs.status.job import archive_status
from kbackup.metrics.registry import Silent
from kbackup.store import Store, open_store
from kbackup.store.base import KEPT_AS_VERSION, NO_RETENTION, Retention
from kbackup.store.gcs import GcsOptions
from scripts.dev.gcs import FakeGcs
from scripts.dev.s3 import Minio, MinioWithKms, S3Server
from tests.conftest import watched
from tests.contract.conftest import AzureLocation, Location, options_of
from tests.contract.test_s3_security import role
from tests.support.archives import make_archive

DAYS = 3


def test_nothing_keeps_an_object_of_a_store_without_locks_and_versions(location: Location) -> None:
    store = location.store()
    store.put("dir/key", b"1")
    kept = store.retention("dir/key")
    if isinstance(location, AzureLocation):
        # Whether an account keeps deleted objects for some days is its own matter.
        assert kept == Retention(0.0, False, None)
    else:
        assert kept == NO_RETENTION
    store.delete(["dir/key"])
    assert store.deleted_versions("dir/key") in ([], None)
    with pytest.raises(NotFoundError):
        store.retention("dir/key")


@pytest.fixture
def server(minio_server: Minio) -> Minio:
    """The server that keeps versions and locks as S3 does; moto does not say that an object has no lock."""
    return minio_server


def opened(server: S3Server, bucket: str, **more: Any) -> Store:
    return open_store(f"s3://{bucket}/p", {"s3": options_of(server, **more)})


def new_bucket(server: S3Server, *, object_lock: bool = False) -> str:
    name = f"retention-{secrets.token_hex(8)}"
    server.create_bucket(name, object_lock=object_lock)
    return name


def test_a_bucket_with_versions_keeps_deleted_objects(server: S3Server) -> None:
    bucket = new_bucket(server)
    store = opened(server, bucket)
    store.put("before", b"1")
    versioning: Any = {"Status": "Enabled"}
    server.client().put_bucket_versioning(Bucket=bucket, VersioningConfiguration=versioning)
    store.put("key", b"1")
    store.put("key", b"2")
    store.put("key_index", b"1")
    assert store.retention("key") == Retention(0.0, False, KEPT_AS_VERSION)
    # Older than the versions: who may not ask for the state of the bucket can't know.
    assert store.retention("before").after_deletion in (None, 0.0)
    store.delete(["key"])
    assert store.deleted_versions("key") == [Retention(0.0, False, KEPT_AS_VERSION)] * 2


def test_a_lock_is_known_with_its_date_also_of_a_deleted_object(server: S3Server) -> None:
    store = opened(server, new_bucket(server, object_lock=True), object_lock_mode="GOVERNANCE", object_lock_days=DAYS)
    store.put("key", b"1")
    kept = store.retention("key")
    assert is_in_days(kept.until)
    assert (kept.held, kept.after_deletion) == (False, KEPT_AS_VERSION)
    assert store.delete(["key"]) == []
    version = only(store.deleted_versions("key"))
    assert (is_in_days(version.until), version.held) == (True, False)


def test_a_legal_hold_has_no_date(server: S3Server) -> None:
    bucket = new_bucket(server, object_lock=True)
    store = opened(server, bucket)
    store.put("key", b"1")
    assert store.retention("key") == Retention(0.0, False, KEPT_AS_VERSION)
    server.client().put_object_legal_hold(Bucket=bucket, Key="p/key", LegalHold={"Status": "ON"})
    assert store.retention("key") == Retention(0.0, True, KEPT_AS_VERSION)


def only(versions: list[Retention] | None) -> Retention:
    """The only one of the versions."""
    assert versions is not None
    assert len(versions) == 1
    return versions[0]


def is_in_days(until: float | None) -> bool:
    """Whether a time is about the end of a lock of `DAYS` that begins now."""
    assert until is not None
    expected = datetime.now(UTC) + timedelta(days=DAYS)
    return abs(until - expected.timestamp()) < 60


@pytest.fixture(scope="module")
def with_roles() -> Iterator[MinioWithKms]:
    with watched(MinioWithKms()) as running:
        yield running


@pytest.mark.parametrize("name", ["writer", "writer-locked", "reader", "expirer"])
def test_a_role_that_may_not_ask_for_locks_is_not_told_and_goes_on(with_roles: MinioWithKms, name: str) -> None:
    bucket = new_bucket(with_roles, object_lock=True)
    locked = {"object_lock_mode": "GOVERNANCE", "object_lock_days": DAYS}
    opened(with_roles, bucket, **locked).put("key", b"1")
    store = role(with_roles, name, bucket)
    kept = store.retention("key")
    # MinIO has dates in the headers of objects, and S3 shows them to nobody without the right: neither is a guess.
    assert kept.until is None or is_in_days(kept.until)
    assert kept.after_deletion == KEPT_AS_VERSION
    # MinIO lists versions for who may list objects. S3 has a right of its own for it.
    assert store.deleted_versions("key") in (None, [kept])


@pytest.mark.parametrize("name", ["writer", "reader"])
def test_a_role_that_may_not_ask_for_locks_knows_a_bucket_without_versions(with_roles: MinioWithKms, name: str) -> None:
    bucket = new_bucket(with_roles)
    opened(with_roles, bucket).put("key", b"1")
    assert role(with_roles, name, bucket).retention("key") == NO_RETENTION


def erased(store: Store) -> Remains:
    """Erase some records; what is left of them."""
    erasure = Erasure(Selection.of(("orders",), ()), KeyMatch([b"key 1"]))
    remains = erase(store, erasure, 60, Silent(), confirm=True).remains
    assert remains is not None
    return remains


def finding_of(store: Store) -> tuple[Remains | None, str]:
    """What the status of an archive has of erasures, and its sentence."""
    status = archive_status(open_archive(store), Backup(max_age=1e12))
    (message,) = [finding.message for finding in status.findings if finding.subject == "erasure"]
    return status.remains, message


def test_an_erasure_and_the_status_tell_until_when_a_lock_keeps_the_bytes(server: S3Server) -> None:
    bucket = new_bucket(server, object_lock=True)
    options = options_of(server, object_lock_mode="GOVERNANCE", object_lock_days=DAYS)
    store = open_store(f"s3://{bucket}/p", {"s3": options}, key_class=layout.key_class)
    make_archive(store)
    remains = erased(store)
    assert (remains.objects, remains.locked, remains.held, remains.untold) == (6, 6, 0, 0)
    assert remains.kept_as_versions
    until = remains.locked_until
    assert until is not None
    assert is_in_days(datetime.fromisoformat(until).timestamp())
    found, message = finding_of(store)
    assert found == remains
    assert f"locks keep 6 of them, the last one until {until}" in message
    assert "expire deletes them from" in message
    # The bucket hides what it may not delete: the bytes are there as versions.
    expire(store, Expiry(Policy(), None, timedelta(0)), 60, Silent(), confirm=True)
    found, message = finding_of(store)
    assert found is not None
    assert (found.objects, found.versions, found.locked_until) == (0, 6, until)
    assert "6 versions of deleted objects still have some of them" in message


def test_a_writer_erases_where_it_may_not_ask_for_locks(with_roles: MinioWithKms) -> None:
    bucket = new_bucket(with_roles, object_lock=True)
    store = role(with_roles, "writer", bucket)
    make_archive(store)
    remains = erased(store)
    assert (remains.objects, remains.untold) == (6, 6)
    assert remains.kept_as_versions
    _, message = finding_of(role(with_roles, "reader", bucket))
    assert "whether a lock keeps 6 of them is unknown" in message


def test_a_bucket_of_google_tells_of_versions(fakegcs_server: FakeGcs) -> None:
    bucket = f"retention-{secrets.token_hex(8)}"
    fakegcs_server.call("/storage/v1/b", {"name": bucket, "versioning": {"enabled": True}})
    store = open_store(f"gs://{bucket}/p", {"gcs": GcsOptions(**fakegcs_server.options)})
    store.put("key", b"1")
    assert store.retention("key") == Retention(0.0, False, KEPT_AS_VERSION)
    store.delete(["key"])
    version = only(store.deleted_versions("key"))
    assert version.after_deletion == KEPT_AS_VERSION
