"""Stores in S3: the options and the addresses of buckets. The SDK is imported where a store is opened."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from kbackup.errors import UsageError
from kbackup.store.base import (
    HadoopTables,
    KeyClasses,
    Store,
    StoreKind,
    StoreQuestion,
    check_endpoint,
    check_parts,
    check_retention,
)

MIB = 1 << 20
MIN_PART = 5 * MIB
MAX_PART = 512 * MIB

Sse = Literal["", "AES256", "aws:kms"]
Checksum = Literal["crc64nvme", "none"]
LockMode = Literal["", "GOVERNANCE", "COMPLIANCE"]


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Options:
    """Options of an S3 store: the keys of `[s3]` and their meaning. Empty strings and None leave a value to the
    environment, the profile or the role.

    `path_style` None: path style where an endpoint is set. `checksum` 'none' is for stores that know no
    CRC-64/NVME; uploads are then only protected by the transport. `part_size` is in bytes; an upload holds at
    most `parts_in_flight` + 1 parts in memory. Timeouts are in seconds. `requester_pays` accepts the bill of
    reading somebody else's bucket; `expected_bucket_owner` is an account id that the store compares.
    `object_lock_mode` and `object_lock_days` put every object under retention when it is written, except replaced ones.
    """

    endpoint_url: Annotated[str, "URL of the S3 server. Unset: AWS."] = ""
    region: Annotated[str, "Region of the bucket."] = ""
    profile: Annotated[str, "Profile of the AWS configuration files."] = ""
    path_style: Annotated[bool | None, "Put the bucket in the path of the URL. Unset: if an endpoint is set."] = None
    access_key_id: Annotated[str, "Access key. Unset: from the environment, the profile or the instance's role."] = ""
    secret_access_key: Annotated[str, "Secret of `access_key_id`."] = field(default="", repr=False)
    session_token: Annotated[str, "Token of temporary credentials."] = field(default="", repr=False)
    sse: Annotated[Sse, "Encryption by the store. Unset: the bucket's default."] = ""
    sse_kms_key_id: Annotated[str, "KMS key for `aws:kms`. Unset: the account's."] = ""
    storage_class: Annotated[str, "Storage class of segments. Unset: the bucket's default."] = ""
    checksum: Annotated[Checksum, "Checksum of uploads; `none` for stores without CRC-64/NVME."] = "crc64nvme"
    part_size: Annotated[int, "Size of an upload part."] = 16 * MIB
    parts_in_flight: Annotated[int, "Upload parts of one object in flight."] = 2
    max_attempts: Annotated[int, "Attempts of a request."] = 8
    connect_timeout: Annotated[float, "Time limit for a connection."] = 10.0
    read_timeout: Annotated[float, "Time limit for an answer."] = 60.0
    ca_bundle: Annotated[str, "PEM file of certificates to trust, in place of the system's."] = ""
    requester_pays: Annotated[bool, "Pay for reading somebody else's bucket."] = False
    expected_bucket_owner: Annotated[str, "Account that must own the bucket."] = ""
    object_lock_mode: Annotated[LockMode, "Lock objects when they are written. The bucket needs object lock."] = ""
    object_lock_days: Annotated[int, "Days of the object lock."] = 0

    def __post_init__(self) -> None:
        check_parts("s3", self.part_size, MIN_PART, MAX_PART, self.parts_in_flight, self.max_attempts)
        check_retention("s3", "object_lock", self.object_lock_mode, self.object_lock_days)
        check_endpoint(self.endpoint_url, "give them as access key id and secret access key instead")
        if bool(self.access_key_id) != bool(self.secret_access_key):
            raise UsageError("an access key id and a secret access key only work together", "set both or none")
        if self.sse_kms_key_id and self.sse != "aws:kms":
            raise UsageError("a KMS key id alone encrypts nothing", "set s3.sse to aws:kms")
        if self.object_lock_mode and self.checksum == "none":
            raise UsageError(
                "object lock takes checksums: stores want one with what they lock", "set s3.checksum to crc64nvme"
            )


def _open(url: str, options: S3Options, key_class: KeyClasses) -> Store:
    from kbackup.store.s3.store import S3Store

    bucket, _, prefix = url.partition("://")[2].partition("/")
    if ":" in bucket or "@" in bucket:
        raise UsageError(
            "the address of a bucket holds credentials, or a host",
            "write s3://bucket/prefix, and set s3.access_key_id, s3.secret_access_key and s3.endpoint_url",
        )
    if not bucket:
        raise UsageError(f"address {url!r} names no bucket", "write s3://bucket/prefix")
    return S3Store(bucket, prefix.rstrip("/"), options, url, key_class)


def _elsewhere(options: S3Options, **given: object) -> S3Options:
    """Return options for another bucket. A profile of its own replaces the credentials."""
    if "profile" in given:
        given |= {"access_key_id": "", "secret_access_key": "", "session_token": ""}
    return replace(options, **given)  # type: ignore[arg-type]


def _worked_with(options: S3Options) -> S3Options:
    return replace(options, object_lock_mode="", object_lock_days=0, storage_class="")


# Tables of Spark, by Hadoop's s3a.

_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_LOGINS = (
    *("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"),
    *("AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME", "AWS_WEB_IDENTITY_TOKEN_FILE"),
    *("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
    *("AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
    *("AWS_EC2_METADATA_DISABLED", "AWS_EC2_METADATA_SERVICE_ENDPOINT"),
)
_CONNECTIONS = ("AWS_USE_FIPS_ENDPOINT", "AWS_USE_DUALSTACK_ENDPOINT", "AWS_STS_REGIONAL_ENDPOINTS")
_TEMPORARY = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"


def hadoop_options(s3: S3Options, url: str, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return `[s3]` as options of s3a, for a table at `url`. They go with each read and write, and into no setting of
    the session: nobody sees them on a command line or a page."""
    # s3a knows no profiles.
    if s3.profile and not s3.access_key_id:
        from kbackup.store.s3.bucket import with_credentials

        s3 = with_credentials(s3)
    endpoint = s3.endpoint_url or _first_set(env, _ENDPOINTS)
    region = s3.region or _first_set(env, _REGIONS)
    if endpoint and not region:
        # Servers other than AWS have no regions, but a signature contains one.
        region = "us-east-1"
    path_style = bool(endpoint) if s3.path_style is None else s3.path_style
    encryption = {"AES256": "AES256", "aws:kms": "SSE-KMS"}
    given = {
        "endpoint": endpoint,
        "endpoint.region": region,
        "connection.ssl.enabled": str(not endpoint.startswith("http:")).lower(),
        "path.style.access": str(path_style).lower(),
        "access.key": s3.access_key_id,
        "secret.key": s3.secret_access_key,
        "session.token": s3.session_token,
        "aws.credentials.provider": _TEMPORARY if s3.session_token else "",
        "encryption.algorithm": encryption.get(s3.sse, ""),
        "encryption.key": s3.sse_kms_key_id,
        "attempts.maximum": str(s3.max_attempts),
        "connection.establish.timeout": f"{round(s3.connect_timeout * 1000)}ms",
        "connection.timeout": f"{round(s3.read_timeout * 1000)}ms",
        "requester.pays.enabled": str(s3.requester_pays).lower(),
    }
    return {f"fs.s3a.{name}": value for name, value in given.items() if value}


def _first_set(env: Mapping[str, str], names: tuple[str, ...]) -> str:
    """Return the value of the first of these variables that is set; '' if none is."""
    for name in names:
        if value := env.get(name):
            return value
    return ""


def _variables(given: Collection[str]) -> list[str]:
    """Return the variables by which the SDK finds what is left open beside the `given` options."""
    names = list(_CONNECTIONS)
    if "ca_bundle" not in given:
        names.append("AWS_CA_BUNDLE")
    if "endpoint_url" not in given:
        names += _ENDPOINTS
    if "region" not in given:
        names += _REGIONS
    if "access_key_id" not in given:
        names += _LOGINS
        # A profile that is named goes before credentials of the environment.
        if "profile" not in given:
            names += _CREDENTIALS
    return names


def _table_path(url: str) -> str:
    return "s3a://" + url.partition("://")[2]


KIND = StoreKind(
    "s3",
    "s3://bucket/prefix",
    _open,
    "s3",
    S3Options,
    ("endpoint_url", "region", "profile", "path_style"),
    (
        StoreQuestion("endpoint_url", "URL of the S3 server (empty: AWS)", variables=_ENDPOINTS),
        StoreQuestion("region", "Region (empty: as AWS's tools find it)", variables=_REGIONS),
        StoreQuestion("access_key_id", "Access key (empty: as AWS's tools find credentials)"),
        StoreQuestion("secret_access_key", "", "env:S3_SECRET_ACCESS_KEY", "access_key_id"),
    ),
    _elsewhere,
    _worked_with,
    HadoopTables("s3a", _table_path, hadoop_options),
    _variables,
)
