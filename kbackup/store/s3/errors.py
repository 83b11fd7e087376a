"""S3's errors in the store's words. Messages hold what the service says, never headers or signatures."""

from __future__ import annotations

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

_NEVER_SENT = (boto.EndpointConnectionError, boto.ConnectTimeoutError, boto.ProxyConnectionError)
_NO_ANSWER = (boto.ConnectionError, boto.HTTPClientError)
DROPPED = (
    boto.ResponseStreamingError,
    boto.IncompleteReadError,
    boto.ReadTimeoutError,
    boto.ConnectionClosedError,
)
"""A connection that broke while a body was read."""

_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.TokenRetrievalError,
    boto.SSOError,
    boto.NoAuthTokenError,
)
_SETTINGS = (
    boto.ProfileNotFound,
    boto.NoRegionError,
    boto.InvalidRegionError,
    boto.ConfigParseError,
    boto.ParamValidationError,
)
_DENIED = {
    "InvalidAccessKeyId": "check the access key id",
    "SignatureDoesNotMatch": "check the secret access key",
    "ExpiredToken": "the session token has expired: get new credentials",
    "InvalidToken": "the session token is not valid: get new credentials",
    "RequestTimeTooSkewed": "set this machine's clock",
}
_RIGHTS = (
    "check the credentials' rights (without s3:ListBucket, missing objects are denied as well), and "
    "s3.expected_bucket_owner where that is set"
)
_UNLOCKED = "s3.object_lock_mode needs a bucket that was made with object lock"
_DAMAGED = {"BadDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch", "InvalidDigest"}
_FULL = {"XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "QuotaExceeded", "InsufficientStorage"}
_REGION = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
_SLOW = {
    "SlowDown",
    "SlowDownRead",
    "SlowDownWrite",
    "Throttling",
    "ThrottlingException",
    "RequestLimitExceeded",
}

SHORTER = "the object is shorter than the archive says: it was cut or replaced"


class ConflictError(StoreError):
    """Another conditional write of the object was under way (409); nothing was done and it may be tried
    again."""


class UploadGoneError(StoreError):
    """The unfinished upload is no more."""


def from_boto(what: str, error: Exception, lost: bool) -> KbackupError:
    """Our error for one of boto's. `lost`: an attempt of this write may have taken effect without an
    answer."""
    if isinstance(error, boto.ClientError):
        return _from_answer(what, error, lost)
    if isinstance(error, boto.FlexibleChecksumError):
        return CorruptError(f"{what}: {error}", "the object was damaged in the store or on its way")
    if lost:
        return OutcomeUnknownError(
            f"{what}: no answer to a write ({_kind(error)})", "it may have taken effect"
        )
    if isinstance(error, _CREDENTIALS):
        return DeniedError(
            f"{what}: no usable credentials ({_kind(error)})",
            "set s3.access_key_id and s3.secret_access_key, a profile, AWS's own variables, or give a role",
        )
    if isinstance(error, _SETTINGS):
        return UsageError(f"{what}: {error}", "set the region, the endpoint or the profile")
    if isinstance(error, boto.SSLError):
        return UnreachableError(f"{what}: {error}", "check the endpoint's certificate, or set the CA bundle")
    if isinstance(error, (*_NO_ANSWER, *DROPPED)):
        return UnreachableError(
            f"{what}: {error}", "check the endpoint, the network and whether the store is up"
        )
    return StoreError(f"{what}: {_kind(error)}: {error}")


def never_sent(error: Exception) -> bool:
    """Whether the failed attempt can't have changed anything: no connection, or none that was trusted."""
    untrusted = isinstance(error, boto.SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error)
    return untrusted or isinstance(error, _NEVER_SENT)


def _kind(error: Exception) -> str:
    return type(error).__name__


def status_of(error: boto.ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def code_of(error: boto.ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _from_answer(what: str, error: boto.ClientError, lost: bool) -> KbackupError:
    code, status = code_of(error), status_of(error)
    text = str(error.response.get("Error", {}).get("Message", "")).rstrip(".")
    said = f"{what}: {code}: {text}" if text else f"{what}: {code or status}"
    if code == "NoSuchBucket":
        return UnreachableError(
            f"{what}: the bucket does not exist", "check its name and region, or create it"
        )
    if status == 412 or code == "PreconditionFailed":
        return _unless_lost(PreconditionError(said, "it is another version by now"), lost)
    if code == "NoSuchUpload":
        return _unless_lost(
            UploadGoneError(said, "the unfinished upload was removed by another tool or a rule"), lost
        )
    if code == "InvalidRange" or status == 416:
        return CorruptError(said, SHORTER)
    if status == 409 and code in {"ConditionalRequestConflict", "OperationAborted"}:
        return ConflictError(said, "another writer was faster; run again")
    if code.lower().startswith("kms"):
        return StoreError(said, "check s3.sse_kms_key_id, that the key is enabled, and the rights to use it")
    if code in {"NoSuchKey", "NotFound"} or status == 404:
        return NotFoundError(f"{what} does not exist")
    if code == "InvalidRequest" and "lock" in text.lower():
        return UsageError(said, _UNLOCKED)
    if code == "InvalidObjectState":
        return StoreError(said, "the object is in an archive tier: restore it there first")
    if status in {401, 403} or code in _DENIED:
        return DeniedError(said, _DENIED.get(code, _RIGHTS))
    if code in _DAMAGED:
        # nothing was stored: no damage to what is there, and it may be sent again
        damaged = "the bytes were damaged on their way; run again, and check memory and network"
        return _unless_lost(StoreError(said, damaged), lost)
    if code in _FULL or status == 507:
        return StoreError(f"{what}: the store is full", "make room or raise the quota, then run again")
    if code in _REGION:
        return UnreachableError(said, "set the bucket's region")
    if status == 501 or code == "NotImplemented":
        return StoreError(said, "this store lacks an operation; try checksum = none, or use another one")
    if status >= 500 or status == 429 or code in _SLOW:
        return _unless_lost(
            UnreachableError(said, "the store is overloaded or broken; run again later"), lost
        )
    return StoreError(said)


def _unless_lost(error: KbackupError, lost: bool) -> KbackupError:
    """What a retried attempt was told says nothing when an earlier one may have been our own success."""
    if not lost:
        return error
    return OutcomeUnknownError(
        f"{error.message}, after an attempt without an answer", "it may have taken effect"
    )
