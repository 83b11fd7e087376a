"""Options of S3 become arguments, clients and limits."""

from __future__ import annotations

import gc
import os
import pickle
import socket
import weakref
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from botocore import exceptions as boto

from kbackup.archive import layout
from kbackup.errors import (
    CorruptError,
    DeniedError,
    KbackupError,
    NotFoundError,
    OutcomeUnknownError,
    PreconditionError,
    StoreError,
    UnreachableError,
    UsageError,
)
from kbackup.store import S3Options
from kbackup.store.parts import SMALL, Body, PartBuffer, part_size_of
from kbackup.store.s3 import upload
from kbackup.store.s3.bucket import Bucket, attempts
from kbackup.store.s3.errors import ConflictError, NoSuchUploadError, from_boto, never_sent
from kbackup.store.s3.store import S3Store
from kbackup.store.s3.upload import S3Upload


def answer(status: int, code: str, text: str = "") -> boto.ClientError:
    response = {"Error": {"Code": code, "Message": text}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return boto.ClientError(response, "PutObject")  # type: ignore[arg-type]


@pytest.mark.parametrize("part_size", [5 << 20, 8 << 20, 512 << 20])
def test_parts_hold_the_largest_object(part_size: int) -> None:
    sizes = [part_size_of(number, part_size) for number in range(1, 10_001)]
    assert sum(sizes) >= 5 << 40
    needed = next(count for count, total in enumerate(accumulate(sizes), 1) if total >= 5 << 40)
    assert max(sizes[:needed]) <= 5 << 30


def test_options_of_s3_become_arguments_of_its_requests() -> None:
    options = S3Options(
        sse="aws:kms", sse_kms_key_id="k", storage_class="STANDARD_IA", requester_pays=True, expected_bucket_owner="1"
    )
    bucket = Bucket("b", "p", options)
    assert bucket.common == {"Bucket": "b", "ExpectedBucketOwner": "1", "RequestPayer": "requester"}
    assert bucket.create == {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "k", "StorageClass": "STANDARD_IA"}
    assert Bucket("b", "p", S3Options()).create == {}


def test_only_what_is_never_rewritten_is_locked() -> None:
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
        assert timedelta(0) <= found["ObjectLockRetainUntilDate"] - before - timedelta(days=3) < timedelta(hours=1)
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


@pytest.mark.parametrize(
    ("refusal", "kind", "hint"),
    [
        (answer(400, "InvalidRequest", "Bucket is missing Object Lock Configuration"), UsageError, "with object lock"),
        (answer(403, "AccessDenied"), DeniedError, "s3.expected_bucket_owner"),
    ],
)
def test_a_refusal_of_s3_has_a_hint(refusal: Exception, kind: type[KbackupError], hint: str) -> None:
    error = from_boto("s3://b/k", refusal, False)
    assert type(error) is kind
    assert hint in error.hint


def test_a_key_is_as_long_as_s3_takes() -> None:
    bucket = Bucket("b", "p" * 100, S3Options())
    assert len(bucket.full("k" * 923)) == 1024
    with pytest.raises(StoreError, match="1024"):
        bucket.full("k" * 924)


@pytest.mark.parametrize(
    ("given", "endpoint", "signed"),
    [
        ({"endpoint_url": "http://host:9000"}, "http://host:9000", False),  # the signed CRC-64/NVME covers the body
        ({"endpoint_url": "http://host:9000", "checksum": "none"}, "http://host:9000", True),
        ({"endpoint_url": "https://host"}, "https://host", False),
        ({"region": "eu-west-1"}, "https://s3.eu-west-1.amazonaws.com", False),
    ],
)
def test_a_client_has_the_given_endpoint_and_checksum(
    given: dict[str, Any], endpoint: str, signed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    client = Bucket("b", "", S3Options(access_key_id="i", secret_access_key="s", **given)).client
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


# S3's answers in our words, without a server.


ANSWERS = [
    (404, "NoSuchKey", NotFoundError),
    (404, "404", NotFoundError),
    (404, "NoSuchBucket", UnreachableError),
    (404, "NoSuchUpload", NoSuchUploadError),
    (403, "AccessDenied", DeniedError),
    (403, "403", DeniedError),
    (401, "Unauthorized", DeniedError),
    (403, "InvalidAccessKeyId", DeniedError),
    (403, "SignatureDoesNotMatch", DeniedError),
    (400, "ExpiredToken", DeniedError),
    (403, "RequestTimeTooSkewed", DeniedError),
    (403, "InvalidObjectState", StoreError),
    (412, "PreconditionFailed", PreconditionError),
    (409, "ConditionalRequestConflict", ConflictError),
    (416, "InvalidRange", CorruptError),
    (400, "BadDigest", StoreError),
    (301, "PermanentRedirect", UnreachableError),
    (500, "InternalError", UnreachableError),
    (503, "SlowDown", UnreachableError),
    (429, "TooManyRequests", UnreachableError),
    (507, "XMinioStorageFull", StoreError),
    (501, "NotImplemented", StoreError),
    (404, "kms:KeyNotFound", StoreError),
    (400, "KMS.DisabledException", StoreError),
    (400, "Whatever", StoreError),
]


@pytest.mark.parametrize(("status", "code", "kind"), ANSWERS)
def test_an_answer_of_s3_becomes_an_error(status: int, code: str, kind: type[KbackupError]) -> None:
    error = from_boto("s3://bucket/key", answer(status, code, "What it says."), False)
    assert type(error) is kind
    assert "s3://bucket/key" in error.message
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize(
    ("status", "code"), [(412, "PreconditionFailed"), (404, "NoSuchUpload"), (503, "SlowDown"), (400, "BadDigest")]
)
def test_an_answer_after_a_lost_one_tells_nothing(status: int, code: str) -> None:
    assert type(from_boto("s3://bucket/key", answer(status, code), True)) is OutcomeUnknownError


REFUSED = boto.EndpointConnectionError(endpoint_url="https://host")
CLOSED = boto.ConnectionClosedError(endpoint_url="https://host")
UNTRUSTED = boto.SSLError(endpoint_url="https://host", error=Exception("CERTIFICATE_VERIFY_FAILED"))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (REFUSED, UnreachableError),
        (CLOSED, UnreachableError),
        (UNTRUSTED, UnreachableError),
        (boto.ReadTimeoutError(endpoint_url="https://host"), UnreachableError),
        (boto.NoCredentialsError(), DeniedError),
        (boto.ProfileNotFound(profile="p"), UsageError),
        (boto.ParamValidationError(report="bad bucket name"), UsageError),
        (boto.FlexibleChecksumError(error_msg="expected x"), CorruptError),
    ],
)
def test_a_failure_of_the_client_becomes_an_error(error: Exception, kind: type[KbackupError]) -> None:
    assert type(from_boto("s3://bucket/key", error, False)) is kind


def test_unsent_requests_are_recognized() -> None:
    assert never_sent(REFUSED)
    assert never_sent(UNTRUSTED)
    assert never_sent(boto.ConnectTimeoutError(endpoint_url="https://host"))
    assert not never_sent(CLOSED)
    assert not never_sent(boto.ReadTimeoutError(endpoint_url="https://host"))


def test_conflicts_are_tried_again_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    send = Mock(side_effect=[ConflictError("1"), ConflictError("2"), "etag", *[ConflictError("again")] * 6])
    assert upload.over_conflicts(send) == "etag"
    assert waits == [0.1, 0.2]
    with pytest.raises(StoreError, match="again"):
        upload.over_conflicts(send)
    assert send.call_count == 9


@pytest.mark.parametrize("how", ["lost", "busy"])
@pytest.mark.parametrize("then", [[PreconditionError("taken")], [ConflictError("again")] * 5], ids=["taken", "again"])
def test_a_conflict_may_be_with_a_lost_attempt_of_our_own(
    how: str, then: list[StoreError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    bucket = Bucket("b", "", S3Options())
    answers: list[StoreError] = [ConflictError("first"), *then]

    def send() -> str:
        with bucket.asking("key", writing=True):
            setattr(attempts, how, len(answers) == 1 + len(then))
            raise answers.pop(0)

    with pytest.raises(OutcomeUnknownError):
        upload.over_conflicts(send)
    attempts.lost = attempts.busy = False
    with pytest.raises(PreconditionError):
        upload.over_conflicts(Mock(side_effect=[ConflictError("of another"), PreconditionError("taken")]))


# Bodies of requests to S3: pieces of memory as a file, and one client for all stores of a process.


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
    _, view, _ = views
    assert view[5] == 99, "it is no copy"


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
    rest, _ = drain(body)
    assert rest == whole[650_000:]
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
        options = S3Options(part_size=part_size)
        super().__init__(S3Store("bucket"), Bucket("bucket", "", options), "key")
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
@pytest.mark.exhaustive
def test_a_forked_process_makes_its_own_client() -> None:
    bucket = Bucket("a", "", options("one"))
    before = bucket.client
    gc.collect()
    pid = os.fork()
    if not pid:
        os._exit(int(bucket.client is before))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert bucket.client is before


def test_half_a_date_is_asked_for_again() -> None:
    """Some servers send no header after the object's date that shows whether the date is whole."""
    head = 'HTTP/1.1 200 OK\r\nDate: x GMT\r\nETag: "1"\r\nContent-Length: 0\r\nLast-Modified: Thu, 26 N'
    answers = [head, f"{head}ov 2026 08:00:00 GMT\r\n\r\n"]

    def serve(listener: socket.socket) -> None:
        for answer in answers:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer.encode())

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        listener.settimeout(5)
        served = pool.submit(serve, listener)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        options = S3Options(endpoint_url=url, access_key_id="i", secret_access_key="s", max_attempts=2)
        assert S3Store("bucket", "", options).stat("key").etag == '"1"'
        served.result()
