"""S3's answers in our words, without a server."""

from __future__ import annotations

import pickle

import pytest
from botocore import exceptions as boto

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
from kbackup.store.s3 import upload
from kbackup.store.s3.errors import ConflictError, NoSuchUploadError, from_boto, never_sent
from tests.support.s3_answers import answer

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
def test_answers(status: int, code: str, kind: type[KbackupError]) -> None:
    error = from_boto("s3://bucket/key", answer(status, code, "What it says."), False)
    assert type(error) is kind
    assert "s3://bucket/key" in error.message
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize(
    ("status", "code"),
    [(412, "PreconditionFailed"), (404, "NoSuchUpload"), (503, "SlowDown"), (400, "BadDigest")],
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
def test_failures(error: Exception, kind: type[KbackupError]) -> None:
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
    answers = [ConflictError("1"), ConflictError("2"), "etag"]

    def send() -> str:
        said = answers.pop(0)
        if isinstance(said, ConflictError):
            raise said
        return str(said)

    assert upload.over_conflicts(send) == "etag"
    assert waits == [0.1, 0.2]
    answers += [ConflictError("again")] * 6
    with pytest.raises(StoreError, match="again"):
        upload.over_conflicts(send)
    assert answers == []
