"""Options of Azure become logins, headers and limits; its answers become our errors."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Mapping
from io import BytesIO
from typing import Any
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

import pytest
import requests
from azure.core.credentials import AccessToken
from requests.adapters import HTTPAdapter
from urllib3 import HTTPResponse

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
from kbackup.store import open_store
from kbackup.store.azure import AzureOptions
from kbackup.store.azure.container import Container, from_answer
from kbackup.store.base import check_apart

KEY = "c2VjcmV0"
STRING = f"DefaultEndpointsProtocol=https;AccountName=acct;AccountKey={KEY};EndpointSuffix=core.windows.net"
STRING_OF_OTHER = STRING.replace("acct", "other")
PUBLIC = "https://acct.blob.core.windows.net"


class Service:
    """The service behind the network: it answers every request alike, or lets it fail, and remembers them all."""

    def __init__(self, status: int = 404, body: str = "", failure: str = "") -> None:
        self.status, self.body, self.failure = status, body, failure
        self.requests: list[requests.PreparedRequest] = []

    def answer(self, adapter: HTTPAdapter, request: requests.PreparedRequest, **_: object) -> requests.Response:
        self.requests.append(request)
        if self.failure:
            raise requests.ConnectionError(self.failure)
        headers = {"date": "Mon, 01 Jan 2024 00:00:00 GMT", "content-length": str(len(self.body.encode()))}
        body = BytesIO(self.body.encode())
        return adapter.build_response(request, HTTPResponse(body, headers, self.status, preload_content=False))


class Identity:
    """A login that gives tokens without asking anybody."""

    def get_token(self, *scopes: str, **_: object) -> AccessToken:
        return AccessToken("of-identity", int(time.time()) + 3600)


def stand_in(monkeypatch: pytest.MonkeyPatch, service: Service) -> Service:
    """Answer all requests of this test by `service`; nothing of the surroundings logs in."""
    for name in [name for name in os.environ if name.startswith(("AZURE_", "IDENTITY_", "MSI_"))]:
        monkeypatch.delenv(name)

    def send(adapter: HTTPAdapter, request: requests.PreparedRequest, **given: object) -> requests.Response:
        return service.answer(adapter, request, **given)

    monkeypatch.setattr(HTTPAdapter, "send", send)
    monkeypatch.setattr("azure.identity.DefaultAzureCredential", Identity)
    return service


@pytest.mark.parametrize(
    "wrong",
    [
        {"part_size": (1 << 20) - 1},
        {"parts_in_flight": 0},
        {"max_attempts": 0},
        {"immutability_mode": "Locked"},
        {"immutability_days": 3},
        {"immutability_mode": "Locked", "immutability_days": -1},
        {"endpoint_url": "host:9000"},
        {"endpoint_url": "https://user:hush@host"},
        {"endpoint_url": "https://host?sig=hush"},
    ],
)
def test_options_that_can_not_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        AzureOptions(**wrong)
    assert "hush" not in str(caught.value)


def test_secrets_do_not_show() -> None:
    options = AzureOptions(account_key="hush-1", sas_token="hush-2", connection_string="hush-3")
    assert "hush" not in repr(options)


@pytest.mark.parametrize(
    "url",
    ["az://", "az://acct", "az://acct/", "az://acct.blob.core.windows.net/c", "az://a:b@acct/c", "az://acct/c?sig=1"],
)
def test_an_invalid_azure_address_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_store(url)
    assert "az://account/container/prefix" in caught.value.hint
    assert "a:b" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "env", "endpoint", "scheme", "sas"),
    [
        ({"account_key": KEY}, {}, PUBLIC, "SharedKey", ""),
        ({"sas_token": "?sv=1&sig=x"}, {"AZURE_STORAGE_KEY": KEY}, PUBLIC, "", "sv=1&sig=x"),
        ({"connection_string": STRING}, {}, PUBLIC, "SharedKey", ""),
        (
            {"connection_string": "BlobEndpoint=https://h/acct;SharedAccessSignature=sv=1&sig=x"},
            *({}, "https://h/acct", "", "sv=1&sig=x"),
        ),
        ({}, {"AZURE_STORAGE_KEY": KEY}, PUBLIC, "SharedKey", ""),
        ({}, {"AZURE_STORAGE_SAS_TOKEN": "sv=1"}, PUBLIC, "", "sv=1"),
        ({}, {"AZURE_STORAGE_CONNECTION_STRING": STRING}, PUBLIC, "SharedKey", ""),
        ({}, {}, PUBLIC, "Bearer", ""),
        # what the environment has for another account
        ({}, {"AZURE_STORAGE_ACCOUNT": "other", "AZURE_STORAGE_KEY": KEY}, PUBLIC, "Bearer", ""),
        ({}, {"AZURE_STORAGE_CONNECTION_STRING": STRING_OF_OTHER}, PUBLIC, "Bearer", ""),
        ({}, {"AZURE_STORAGE_CONNECTION_STRING": STRING_OF_OTHER, "AZURE_STORAGE_KEY": KEY}, PUBLIC, "Bearer", ""),
    ],
)
def test_the_credential_is_chosen_by_options_before_the_environment(
    given: dict[str, Any], env: Mapping[str, str], endpoint: str, scheme: str, sas: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = stand_in(monkeypatch, Service())
    for name, value in env.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(NotFoundError):
        open_store("az://acct/c/p", {"azure": AzureOptions(**given)}).get("key")

    (request,) = service.requests
    address, _, query = str(request.url).partition("?")
    assert address == f"{endpoint}/c/p/key"
    assert query == sas
    assert str(request.headers.get("Authorization", "")).partition(" ")[0] == scheme


def test_a_connection_string_of_another_account_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    service = stand_in(monkeypatch, Service())

    with pytest.raises(UsageError, match="of the account acct, not of other") as caught:
        open_store("az://other/c/p", {"azure": AzureOptions(connection_string=STRING)}).get("key")
    assert KEY not in str(caught.value)
    with pytest.raises(UsageError, match="can't be used"):
        open_store("az://other/c/p", {"azure": AzureOptions(connection_string="nothing")}).get("key")
    assert not service.requests


def test_an_identity_needs_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    service = stand_in(monkeypatch, Service())
    options = AzureOptions(endpoint_url="http://127.0.0.1:1/acct", max_attempts=1)

    with pytest.raises(UsageError, match="TLS"):
        open_store("az://acct/c/p", {"azure": options}).get("key")
    assert not service.requests


def test_headers_of_new_objects() -> None:
    options = AzureOptions(access_tier="Cool", immutability_mode="Locked", immutability_days=3)
    container = Container("acct", "c", "p", options, layout.key_class)
    made = container.creation("archive.json", 1)
    assert made["x-ms-meta-kbackup_crc64nvme"] == f"{1:016x}"
    assert made["x-ms-access-tier"] == "Cool"
    assert made["x-ms-immutability-policy-mode"] == "Locked"
    assert made["x-ms-immutability-policy-until-date"].endswith("GMT")
    replaced = container.creation("lock.json", 1)
    assert {name for name in replaced if name.startswith("x-ms")} == {"x-ms-meta-kbackup_crc64nvme"}


@pytest.mark.parametrize("key", ["a.", "a./b", "a\\b", "..."])
def test_names_that_the_service_changes_are_refused(key: str) -> None:
    with pytest.raises(StoreError, match="Azure keeps no names"):
        Container("acct", "c", "p", AzureOptions()).full(key)


def test_a_listing_in_the_order_of_utf_16_comes_in_that_of_utf_8(monkeypatch: pytest.MonkeyPatch) -> None:
    """Azurite lists so: a character beyond the first 65,536 is before the highest ones of these."""
    names = ["a", "a\U0001f600", "a\U0001f600b", "a\uffee", "ab", "b\uffee", "b\uffeec", "c"]
    in_utf_16 = sorted(names, key=lambda name: name.encode("utf-16-be"))
    assert in_utf_16 != sorted(names)
    items = "".join(
        f"<Blob><Name>p/{escape(name)}</Name><Properties><Content-Length>1</Content-Length><Etag>e</Etag>"
        "<Last-Modified>Mon, 01 Jan 2024 00:00:00 GMT</Last-Modified></Properties></Blob>"
        for name in in_utf_16
    )
    listing = f"<EnumerationResults><Blobs>{items}</Blobs><NextMarker/></EnumerationResults>"
    service = stand_in(monkeypatch, Service(200, listing))
    store = open_store("az://acct/c/p", {"azure": AzureOptions(account_key=KEY)})

    assert [info.key for info in store.list()] == sorted(names)
    (request,) = service.requests
    assert parse_qs(urlsplit(str(request.url)).query)["prefix"] == ["p/"]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("", "https://acct.blob.core.windows.net/", True),
        ("", "https://acct.z12.blob.storage.azure.net", True),
        ("https://acct.blob.core.windows.net:443", "https://acct.blob.core.windows.net", True),
        ("http://127.0.0.1:10000/acct", "http://127.0.0.1:10000/acct/", True),
        ("", "http://127.0.0.1:10000/acct", False),
    ],
)
def test_an_account_has_one_address(one: str, other: str, same: bool) -> None:
    first, second = (
        open_store("az://acct/c/p", {"azure": AzureOptions(endpoint_url=url, account_key=KEY)}) for url in (one, other)
    )
    assert (first.address == second.address) is same
    if same:
        with pytest.raises(UsageError, match="is the archive itself"):
            check_apart(first, second)


class Said:
    """An answer of the service."""

    def __init__(self, status: int, code: str, detail: str = "", text: str = "What it says.\nTime:1") -> None:
        self.status_code, self.reason = status, "reason"
        self.headers = {"x-ms-error-code": code} if code else {}
        more = f"<AuthenticationErrorDetail>{detail}</AuthenticationErrorDetail>" if detail else ""
        self.content = f"<Error><Code>{code}</Code><Message>{text}</Message>{more}</Error>".encode()


def error_of(said: Said, lost: bool = False) -> KbackupError:
    answer: Any = said
    return from_answer("az://a/c/key", answer, lost)


@pytest.mark.parametrize(
    ("status", "code", "kind", "hint"),
    [
        (404, "BlobNotFound", NotFoundError, ""),
        (404, "ContainerNotFound", UnreachableError, "create it"),
        (409, "ContainerBeingDeleted", UnreachableError, "create it"),
        (409, "BlobAlreadyExists", PreconditionError, ""),
        (412, "ConditionNotMet", PreconditionError, ""),
        (400, "InvalidBlockList", PreconditionError, ""),
        (412, "LeaseIdMissing", StoreError, ""),
        (416, "InvalidRange", CorruptError, ""),
        (403, "AuthorizationFailure", DeniedError, "rules for networks"),
        (403, "AuthorizationPermissionMismatch", DeniedError, "Storage Blob Data Contributor"),
        (403, "KeyBasedAuthenticationNotPermitted", DeniedError, "log in by an identity"),
        (401, "NoAuthenticationInformation", DeniedError, "az login"),
        (409, "BlobImmutableDueToPolicy", DeniedError, "immutable"),
        (400, "Md5Mismatch", StoreError, "damaged on their way"),
        (409, "BlobArchived", StoreError, "rehydrate"),
        (503, "ServerBusy", UnreachableError, "overloaded"),
        (500, "OperationTimedOut", UnreachableError, "overloaded"),
        (429, "", UnreachableError, "overloaded"),
        (400, "Whatever", StoreError, ""),
    ],
)
def test_an_answer_of_azure_becomes_an_error_with_a_hint(
    status: int, code: str, kind: type[KbackupError], hint: str
) -> None:
    error = error_of(Said(status, code))
    assert type(error) is kind
    assert hint in error.hint
    assert error.message.startswith("az://a/c/key") or "container" in error.message
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize(
    ("detail", "hint"),
    [
        ("Request date header too old: 'Mon, 01 Jan 2024 00:00:00 GMT'", "clock"),
        ("Signature not valid in the specified time frame: Start [] - Expiry [2024]", "new SAS token"),
        ("The MAC signature found in the HTTP request 'x' is not the same", "azure.account_key"),
    ],
)
def test_a_refused_authentication_has_a_hint_to_its_reason(detail: str, hint: str) -> None:
    error = error_of(Said(403, "AuthenticationFailed", detail))
    assert type(error) is DeniedError
    assert hint in error.hint
    assert detail.partition(":")[0] in error.message


@pytest.mark.parametrize(("status", "code"), [(412, "ConditionNotMet"), (503, "ServerBusy"), (400, "Md5Mismatch")])
def test_an_answer_after_a_lost_one_tells_nothing(status: int, code: str) -> None:
    assert type(error_of(Said(status, code), lost=True)) is OutcomeUnknownError


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("X(host='h'): Max retries exceeded with url: /c/k?sig=hush (Caused by SSLError(SSLError(1, 'bad')))", "bad"),
        (
            "X(host='h', port=1): Max retries with url: /c?sig=hush (Caused by NewConnectionError('no route'))",
            "no route",
        ),
        ("<X object at 0x1>: failed to resolve 'h'", "failed to resolve 'h"),
        ("it failed at /c/k?sv=1&sig=hush again", "it failed at /c/k again"),
    ],
)
def test_no_query_is_in_a_message(text: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, Service(failure=text))
    store = open_store("az://a/c", {"azure": AzureOptions(account_key=KEY, max_attempts=1)})

    with pytest.raises(UnreachableError) as caught:
        store.get("key")
    assert shown in caught.value.message
    assert not any(noise in caught.value.message for noise in ("hush", "Max retries", "object at"))


def test_stores_share_a_client_of_this_process() -> None:
    options = AzureOptions(account_key=KEY)
    one, other = Container("acct", "a", "", options), Container("acct", "b", "p", options)
    assert one.client is other.client is pickle.loads(pickle.dumps(one)).client
    assert Container("other", "a", "", options).client is not one.client


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # other tests may have left threads
def test_a_forked_process_makes_its_own_client() -> None:
    container = Container("acct", "a", "", AzureOptions(account_key=KEY))
    before = container.client
    pid = os.fork()
    if not pid:
        os._exit(int(container.client is before))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert container.client is before
