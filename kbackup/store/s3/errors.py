"""S3's errors in the store's words. Messages hold the service's text, never headers or signatures."""

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
from kbackup.store.base import SHORTER

_NEVER_SENT = (boto.EndpointConnectionError, boto.ConnectTimeoutError, boto.ProxyConnectionError)
_NO_ANSWER = (boto.ConnectionError, boto.HTTPClientError)
DROPPED = (boto.ResponseStreamingError, boto.IncompleteReadError, boto.ReadTimeoutError, boto.ConnectionClosedError)
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
    "ExpiredToken": "give new credentials: the session token has expired",
    "InvalidToken": "give new credentials: the session token is not valid",
    "RequestTimeTooSkewed": "set this machine's clock",
}
_RIGHTS = (
    "check the credentials' rights (without s3:ListBucket, missing objects are denied as well), and "
    "s3.expected_bucket_owner where that is set"
)
_UNLOCKED = "use a bucket that was made with object lock, or unset s3.object_lock_mode"
_DAMAGED = {"BadDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch", "InvalidDigest"}
_FULL = {"XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "QuotaExceeded", "InsufficientStorage"}
_REGION = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
_SLOW = {"SlowDown", "SlowDownRead", "SlowDownWrite", "Throttling", "ThrottlingException", "RequestLimitExceeded"}


class ConflictError(StoreError):
    """Another conditional write of the object was under way (409); nothing was written and a retry may succeed."""

    default_hint = "run the command again: another writer was faster"


class NoSuchUploadError(StoreError):
    """The unfinished upload does not exist any more."""

    default_hint = "run the command again: another tool or a rule removed the unfinished upload"


def from_boto(name: str, error: Exception, lost: bool) -> KbackupError:
    """Return kbackup's error for boto's error on object `name`. `lost`: an attempt of this write may have taken
    effect without an answer."""
    if isinstance(error, boto.ClientError):
        return _from_answer(name, error, lost)
    # A read's body differs from the checksum that the store keeps.
    if isinstance(error, boto.FlexibleChecksumError):
        return CorruptError(f"{name}: {error}", "run again; if it fails again, restore the object from a copy")
    if lost:
        return OutcomeUnknownError(f"{name}: no answer to a write ({_kind(error)})")
    if isinstance(error, _CREDENTIALS):
        return DeniedError(
            f"{name}: no usable credentials ({_kind(error)})",
            "set s3.access_key_id and s3.secret_access_key, a profile, AWS's own variables, or give a role",
        )
    if isinstance(error, _SETTINGS):
        return UsageError(f"{name}: {error}", "set the region, the endpoint or the profile")
    if isinstance(error, boto.SSLError):
        return UnreachableError(f"{name}: {error}", "check the endpoint's certificate, or set the CA bundle")
    if isinstance(error, (*_NO_ANSWER, *DROPPED)):
        return UnreachableError(f"{name}: {error}", "check the endpoint, the network and whether the store is up")
    return StoreError(f"{name}: {_kind(error)}: {error}")


def never_sent(error: Exception) -> bool:
    """Return True if the failed attempt can't have changed anything: it had no connection, or no trusted one."""
    untrusted = isinstance(error, boto.SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error)
    return untrusted or isinstance(error, _NEVER_SENT)


def _kind(error: Exception) -> str:
    return type(error).__name__


def status_of(error: boto.ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _from_answer(name: str, error: boto.ClientError, lost: bool) -> KbackupError:
    answer = error.response.get("Error", {})
    code, status = str(answer.get("Code", "")), status_of(error)
    text = str(answer.get("Message", "")).rstrip(".")
    message = f"{name}: {code}: {text}" if text else f"{name}: {code or status}"
    if code == "NoSuchBucket":
        return UnreachableError(f"{name}: the bucket does not exist", "check its name and region, or create it")
    if status == 412 or code == "PreconditionFailed":
        return unless_lost(PreconditionError(message), lost)
    if code == "NoSuchUpload":
        return unless_lost(NoSuchUploadError(message), lost)
    if code == "InvalidRange" or status == 416:
        return CorruptError(message, SHORTER)
    if status == 409 and code in {"ConditionalRequestConflict", "OperationAborted"}:
        return ConflictError(message)
    if code.lower().startswith("kms"):
        return StoreError(message, "check s3.sse_kms_key_id, that the key is enabled, and the rights to use it")
    if code in {"NoSuchKey", "NotFound"} or status == 404:
        return NotFoundError(f"{name} does not exist")
    if code == "InvalidRequest" and "lock" in text.lower():
        return UsageError(message, _UNLOCKED)
    if code == "InvalidObjectState":
        return StoreError(message, "restore it to a tier that answers at once: it is in an archive tier")
    if status in {401, 403} or code in _DENIED:
        return DeniedError(message, _DENIED.get(code, _RIGHTS))
    if code in _DAMAGED:
        # Nothing was stored: what is there is not damaged, and the bytes may be sent again.
        hint = "run again, and check memory and network: the bytes were damaged on their way"
        return unless_lost(StoreError(message, hint), lost)
    if code in _FULL or status == 507:
        return StoreError(f"{name}: the store is full", "make room or raise the quota, then run again")
    if code in _REGION:
        return UnreachableError(message, "set the bucket's region")
    if status == 501 or code == "NotImplemented":
        return StoreError(message, "set s3.checksum to none, or use another store: this one lacks an operation")
    if status >= 500 or status == 429 or code in _SLOW:
        return unless_lost(UnreachableError(message, "run again later: the store is overloaded or broken"), lost)
    return StoreError(message)


def unless_lost(error: KbackupError, lost: bool) -> KbackupError:
    """Return `error`, or OutcomeUnknownError if an earlier attempt of the write may have succeeded."""
    if not lost:
        return error
    return OutcomeUnknownError(f"{error.message}, after an attempt without an answer")
