"""Options of an S3 store. No SDK is imported here, so that models of the configuration can hold them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple
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
    """Options of an S3 store. Empty strings and None leave a value to the environment, the profile or the role.

    `path_style` None: path style where an endpoint is set. `checksum` 'none' is for stores that know no
    CRC-64/NVME; uploads are then only protected by the transport. `part_size` is in bytes; an upload holds at
    most `parts_in_flight` + 1 parts in memory. Timeouts are in seconds. `requester_pays` accepts the bill of
    reading somebody else's bucket; `expected_bucket_owner` is an account id that the store compares.
    `object_lock_mode` and `object_lock_days` put every object under retention when it is written, except replaced ones.
    """

    endpoint_url: str = ""
    region: str = ""
    profile: str = ""
    path_style: bool | None = None
    access_key_id: str = ""
    secret_access_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    sse: Sse = ""
    sse_kms_key_id: str = ""
    storage_class: str = ""
    checksum: Checksum = "crc64nvme"
    part_size: int = 16 * MIB
    parts_in_flight: int = 2
    max_attempts: int = 8
    connect_timeout: float = 10.0
    read_timeout: float = 60.0
    ca_bundle: str = ""
    requester_pays: bool = False
    expected_bucket_owner: str = ""
    object_lock_mode: LockMode = ""
    object_lock_days: int = 0

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
