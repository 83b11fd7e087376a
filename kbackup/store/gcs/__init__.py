"""Stores in Google Cloud Storage: the options. No SDK is imported before a store is opened."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

from kbackup.errors import UsageError
from kbackup.store.base import KeyClasses, Store, StoreKind, StoreQuestion, check_endpoint, check_retention

MIB = 1 << 20
PART_UNIT = 256 << 10
"""Google keeps parts of an unfinished upload in multiples of this."""
MAX_PART = 512 * MIB

RetentionMode = Literal["", "Unlocked", "Locked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GcsOptions:
    """Options of a store in Google Cloud Storage: the keys of `[gcs]`. Empty strings leave a value to the environment.

    Without `credentials_file`, application default credentials log in; nobody does at an endpoint without TLS, which is
    an emulator. `part_size` is in bytes; an upload holds two parts in memory, since Google takes one after another.
    Timeouts are in seconds. `storage_class` and retention are for objects that are never replaced.
    """

    endpoint_url: Annotated[str, "URL of the server. Unset: `STORAGE_EMULATOR_HOST`, else Google."] = ""
    credentials_file: Annotated[str, "JSON of a service account or workload identity. Unset: the default login."] = ""
    project: Annotated[str, "Project that pays for requests. Unset: the bucket's."] = ""
    storage_class: Annotated[str, "Storage class of segments. Unset: the bucket's default."] = ""
    part_size: Annotated[int, "Size of an upload part: a multiple of 256 KiB."] = 16 * MIB
    max_attempts: Annotated[int, "Attempts of a request."] = 8
    connect_timeout: Annotated[float, "Time limit for a connection."] = 10.0
    read_timeout: Annotated[float, "Time limit for an answer."] = 60.0
    ca_bundle: Annotated[str, "PEM file of certificates to trust, in place of the system's."] = ""
    retention_mode: Annotated[RetentionMode, "Retain objects when they are written. The bucket needs retention."] = ""
    retention_days: Annotated[int, "Days of the retention."] = 0

    def __post_init__(self) -> None:
        if not PART_UNIT <= self.part_size <= MAX_PART or self.part_size % PART_UNIT:
            hint = f"choose a multiple of {PART_UNIT} bytes, {MAX_PART} at most"
            raise UsageError(f"part size {self.part_size} can't be used", hint)
        if self.max_attempts < 1:
            raise UsageError(f"{self.max_attempts} attempts can't be used", "set gcs.max_attempts to 1 or more")
        check_retention("gcs", "retention", self.retention_mode, self.retention_days)
        check_endpoint(self.endpoint_url, "set gcs.credentials_file instead")


def _open(url: str, options: GcsOptions, key_class: KeyClasses) -> Store:
    bucket, _, prefix = url.partition("://")[2].partition("/")
    if not bucket or ":" in bucket or "@" in bucket:
        raise UsageError(
            f"address {url!r} names no bucket", "write gs://bucket/prefix, and log in by gcs.credentials_file"
        )
    try:
        from kbackup.store.gcs.store import GcsStore
    except ImportError as missing:
        raise UsageError(f"{url}: Google's libraries are missing", 'run pip install "kafka-kbackup[gcs]"') from missing
    return GcsStore(bucket, prefix.rstrip("/"), options, url, key_class)


def _variables(given: Collection[str]) -> list[str]:
    """Return the variables by which the SDK finds what is left open beside the `given` options."""
    names = ["GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT", "GOOGLE_CLOUD_QUOTA_PROJECT"]
    if "endpoint_url" not in given:
        names.append("STORAGE_EMULATOR_HOST")
    if "credentials_file" not in given:
        names += ["GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG", "GCE_METADATA_HOST"]
    return names


KIND = StoreKind(
    "gs",
    "gs://bucket/prefix",
    _open,
    "gcs",
    GcsOptions,
    ("endpoint_url", "credentials_file", "project"),
    (StoreQuestion("credentials_file", "JSON file of a service account (empty: the default login)"),),
    worked_with=partial(replace, retention_mode="", retention_days=0, storage_class=""),
    variables=_variables,
)
