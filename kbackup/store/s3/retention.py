"""What S3 tells of the locks and versions of objects. Reading and writing need none of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from kbackup.store.base import KEPT_AS_VERSION, Retention
from kbackup.store.bucket import STRANGE
from kbackup.store.s3.bucket import Bucket

_NOT_LOCKED = ("NoSuchObjectLockConfiguration", "ObjectLockConfigurationNotFoundError", "InvalidRequest")
"""How servers answer about an object without a lock, or in a bucket without locks."""
_BEFORE_VERSIONS = "null"
"""The version of an object from before its bucket kept versions, or from when it kept them no more."""


def retention_of(bucket: Bucket, full: str, version: str | None) -> Retention:
    """Return what keeps the current object with the bucket's key `full`. `version` is what its headers name; None if
    they name none: then the bucket keeps no versions, and without versions there are no locks."""
    until, held = _locks(bucket, {"Key": full})
    if version is None:
        return Retention(until or 0.0, held or False, 0.0)
    # Whether a deletion removes the version 'null' depends on the bucket's state, which a writer may not ask for.
    after_deletion = None if version == _BEFORE_VERSIONS else KEPT_AS_VERSION
    return Retention(until, held, after_deletion)


def versions_of(bucket: Bucket, full: str) -> list[Retention] | None:
    """Return what keeps each version of a deleted object; None if the server does not tell."""
    # The key itself is the first one that begins with it. More than a page of versions is no object of an archive.
    answer = _asked(bucket, "list_object_versions", {"Prefix": full})
    if answer is None:
        return None
    kept: list[Retention] = []
    for entry in answer.get("Versions", ()):
        if entry.get("Key") == full:
            until, held = _locks(bucket, {"Key": full, "VersionId": entry.get("VersionId")})
            kept.append(Retention(until, held, KEPT_AS_VERSION))
    return kept


def _locks(bucket: Bucket, named: Mapping[str, Any]) -> tuple[float | None, bool | None]:
    """Return the end of an object's lock (seconds since the epoch, 0 without one), and whether a legal hold keeps it;
    None for what the server does not tell."""
    until: float | None = None
    held: bool | None = None
    locked = _asked(bucket, "get_object_retention", named)
    if locked is not None:
        date = locked.get("Retention", {}).get("RetainUntilDate")
        until = date.timestamp() if date is not None else 0.0
    hold = _asked(bucket, "get_object_legal_hold", named)
    if hold is not None:
        held = hold.get("LegalHold", {}).get("Status") == "ON"
    return until, held


def _asked(bucket: Bucket, operation: str, named: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return an answer: an empty one if nothing is locked, None if the server does not tell."""
    request: Callable[..., Any] = getattr(bucket.client, operation)
    try:
        answer: dict[str, Any] = request(**bucket.common, **named)
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code")
        return {} if code in _NOT_LOCKED else None
    except (BotoCoreError, ResponseParserError, *STRANGE):
        return None
    return answer
