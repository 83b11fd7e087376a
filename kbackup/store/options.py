"""Options of an S3 store. No SDK is imported here, so that models of the configuration can hold them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple
from urllib.parse import urlsplit

from kbackup.errors import UsageError

MIB = 1 << 20
MIN_PART = 5 * MIB
MAX_PART = 512 * MIB

Sse = Literal["", "AES256", "aws:kms"]
Checksum = Literal["crc64nvme", "none"]
LockMode = Literal["", "GOVERNANCE", "COMPLIANCE"]


class KeyClass(NamedTuple):
    """`replaced`: the object is replaced or removed soon, and takes no retention: locked versions would pile up.
    `plain`: the object is not encrypted. `largest`: bytes of the largest such object that is read as a whole, several
    times what an archive has; longer ones are streamed."""

    replaced: bool = False
    plain: bool = False
    largest: int = 1 << 30


KeyClasses = Callable[[str], KeyClass]
"""Return the class of a key. Who opens a store knows the layout of its keys; the function must be picklable."""


def write_once(key: str) -> KeyClass:
    """Return the class of an object that is never replaced."""
    return KeyClass()


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
        if not MIN_PART <= self.part_size <= MAX_PART:
            raise UsageError(f"part size {self.part_size} can't be used", f"choose {MIN_PART} to {MAX_PART} bytes")
        if self.parts_in_flight < 1 or self.max_attempts < 1:
            raise UsageError(
                f"{self.parts_in_flight} parts in flight and {self.max_attempts} attempts can't be used",
                "set s3.parts_in_flight and s3.max_attempts to 1 or more",
            )
        if bool(self.access_key_id) != bool(self.secret_access_key):
            raise UsageError("an access key id and a secret access key only work together", "set both or none")
        if self.sse_kms_key_id and self.sse != "aws:kms":
            raise UsageError("a KMS key id alone encrypts nothing", "set s3.sse to aws:kms")
        if self.object_lock_days < 0 or bool(self.object_lock_mode) != bool(self.object_lock_days):
            raise UsageError(
                "object lock takes a mode and a number of days",
                "set s3.object_lock_mode and s3.object_lock_days, or neither",
            )
        if self.object_lock_mode and self.checksum == "none":
            raise UsageError(
                "object lock takes checksums: stores want one with what they lock", "set s3.checksum to crc64nvme"
            )

        parts = urlsplit(self.endpoint_url)
        if parts.username is not None or parts.password is not None:
            raise UsageError(
                "the endpoint URL holds credentials", "give them as access key id and secret access key instead"
            )
        if self.endpoint_url and (parts.scheme not in {"http", "https"} or not parts.hostname):
            raise UsageError(f"endpoint {self.endpoint_url!r} can't be used", "write it as https://host:port")
