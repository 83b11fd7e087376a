"""Stores in Azure Blob Storage: the options and the addresses of containers. The SDK is imported where a store is
opened."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from kbackup.errors import UsageError
from kbackup.store.base import KeyClasses, Store, StoreKind, StoreQuestion, check_endpoint, check_parts, check_retention

MIB = 1 << 20
MIN_PART = MIB
MAX_PART = 512 * MIB
FORM = "az://account/container/prefix"

Tier = Literal["", "Hot", "Cool", "Cold"]
ImmutabilityMode = Literal["", "Unlocked", "Locked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureOptions:
    """Options of a store in Azure Blob Storage: the keys of `[azure]` and their meaning. Empty strings leave a value
    to the environment, as Azure's own command line reads it.

    Of connection string, account key and SAS token the first that is set is used; without any, the identity that
    Azure's tools find. `part_size` is in bytes; an upload holds at most `parts_in_flight` + 1 parts in memory. Timeouts
    are in seconds. `immutability_mode` and `immutability_days` put every object under a policy when it is written,
    except replaced ones.
    """

    endpoint_url: Annotated[str, "URL of the blob service. Unset: the account's in Azure's public cloud."] = ""
    connection_string: Annotated[str, "Connection string of the account."] = field(default="", repr=False)
    account_key: Annotated[str, "Key of the account."] = field(default="", repr=False)
    sas_token: Annotated[str, "Shared access signature."] = field(default="", repr=False)
    access_tier: Annotated[Tier, "Access tier of objects that are never replaced. Unset: the account's."] = ""
    part_size: Annotated[int, "Size of an upload part."] = 16 * MIB
    parts_in_flight: Annotated[int, "Upload parts of one object in flight."] = 2
    max_attempts: Annotated[int, "Attempts of a request."] = 8
    connect_timeout: Annotated[float, "Time limit for a connection."] = 10.0
    read_timeout: Annotated[float, "Time limit for an answer."] = 60.0
    ca_bundle: Annotated[str, "PEM file of certificates to trust, in place of the system's."] = ""
    immutability_mode: Annotated[
        ImmutabilityMode,
        "Make objects immutable when they are written. The container needs version-level immutability.",
    ] = ""
    immutability_days: Annotated[int, "Days of immutability."] = 0

    def __post_init__(self) -> None:
        check_parts("azure", self.part_size, MIN_PART, MAX_PART, self.parts_in_flight, self.max_attempts)
        check_retention("azure", "immutability", self.immutability_mode, self.immutability_days)
        check_endpoint(self.endpoint_url, "set azure.sas_token or azure.account_key instead", "https://host")


def _open(url: str, options: AzureOptions, key_class: KeyClasses) -> Store:
    account, _, rest = url.partition("://")[2].partition("/")
    container, _, prefix = rest.partition("/")
    is_account = account.isalnum() and account.isascii()
    is_container = container != "" and not any(sign in container for sign in ":@?")
    if not is_account or not is_container:
        raise UsageError(
            "the address names no account and container of Azure, or holds more",
            f"write {FORM}, the account by its name alone; hosts and credentials are settings of [azure]",
        )
    try:
        from kbackup.store.azure.store import AzureStore
    except ImportError as missing:
        raise UsageError(f"{url}: Azure's libraries are missing", 'run pip install "kafka-kbackup[azure]"') from missing
    return AzureStore(account.lower(), container, prefix.rstrip("/"), options, url, key_class)


def _worked_with(options: AzureOptions) -> AzureOptions:
    return replace(options, immutability_mode="", immutability_days=0, access_tier="")


_ACCOUNT = ("AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_CONNECTION_STRING")
_IDENTITY = (
    *("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_AUTHORITY_HOST", "AZURE_CONFIG_DIR"),
    *("AZURE_CLIENT_CERTIFICATE_PATH", "AZURE_CLIENT_CERTIFICATE_PASSWORD", "AZURE_FEDERATED_TOKEN_FILE"),
    *("AZURE_USERNAME", "AZURE_PASSWORD", "AZURE_TOKEN_CREDENTIALS"),
)


def _variables(given: Collection[str]) -> tuple[str, ...]:
    """Return the variables by which the SDK finds a login, unless one is among the `given` options."""
    if {"account_key", "sas_token", "connection_string"}.isdisjoint(given):
        return _ACCOUNT + _IDENTITY
    return ()


KIND = StoreKind(
    "az",
    FORM,
    _open,
    "azure",
    AzureOptions,
    ("endpoint_url",),
    (StoreQuestion("endpoint_url", "URL of the blob service (empty: Azure's public cloud)"),),
    worked_with=_worked_with,
    variables=_variables,
)
