"""A secret that travels without TLS is warned of, wherever it goes to; on this machine's loopback nobody listens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from kbackup.cli.common.notify import Notifier
from kbackup.config import Config
from kbackup.config.models import Notify
from kbackup.kafka.client import Connection
from kbackup.kafka.schema_registry import SchemaRegistry
from kbackup.schemas.base import RegistryOptions
from kbackup.store import S3Options, open_store
from kbackup.store.azure import AzureOptions
from kbackup.store.gcs import GcsOptions
from kbackup.util import plain_http
from kbackup.util.plain_http import is_loopback


@pytest.fixture(autouse=True)
def not_warned_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_http, "_warned", set())


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.WARNING, plain_http.__name__):
        yield caplog


def s3(url: str) -> None:
    options = S3Options(endpoint_url=url, access_key_id="me", secret_access_key="hush", session_token="hush")
    _ = open_store("s3://b/p", {"s3": options}).address


def s3_key(url: str) -> None:
    options = S3Options(endpoint_url=url, access_key_id="me", secret_access_key="hush")
    _ = open_store("s3://b/p", {"s3": options}).address


def azure(url: str) -> None:
    _ = open_store("az://acct/c/p", {"azure": AzureOptions(endpoint_url=url, sas_token="sig=hush")}).address


def azure_key(url: str) -> None:
    _ = open_store("az://acct/c/p", {"azure": AzureOptions(endpoint_url=url, account_key="aHVzaA==")}).address


def gcs(url: str) -> None:
    open_store("gs://b/p", {"gcs": GcsOptions(endpoint_url=url, credentials_file="/etc/me.json")})


def emulator(url: str) -> None:
    open_store("gs://b/p", {"gcs": GcsOptions(endpoint_url=url)})


def registry(url: str) -> None:
    SchemaRegistry(RegistryOptions(url=f"https://first.example.com,{url}", token="hush"))


def registry_password(url: str) -> None:
    SchemaRegistry(RegistryOptions(url=url, user="me", password="hush"), "target_schema_registry")


def open_registry(url: str) -> None:
    SchemaRegistry(RegistryOptions(url=url))


def webhook(url: str) -> None:
    Notifier(Config(notify=Notify(url=f"{url}/hush")), "backup")


def oidc(url: str) -> None:
    name = "sasl.oauthbearer.token.endpoint.url"
    Connection({"bootstrap.servers": "b:1", "sasl.oauthbearer.method": "OIDC", name: f"{url}/token"}, "source")


SECRETS: list[tuple[Callable[[str], None], str]] = [
    (s3, "the session token of s3"),
    (azure, "the SAS token of azure"),
    (gcs, "the token of gcs"),
    (registry, "the token of schema_registry"),
    (registry_password, "the password of target_schema_registry"),
    (webhook, "notify.url, itself a secret,"),
    (oidc, "the client secret of the source cluster"),
]


@pytest.mark.parametrize(("use", "secret"), SECRETS)
def test_a_secret_over_plain_http_is_warned_of_once(
    use: Callable[[str], None], secret: str, logged: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        use("http://far.example.com:8081")
    text = f"{secret} goes to far.example.com over plain http, where others can read it: use https"
    assert [record.message for record in logged.records] == [text]


@pytest.mark.parametrize("use", [use for use, _ in SECRETS])
@pytest.mark.parametrize("url", ["https://far.example.com:8081", "http://localhost:8081", "http://127.0.0.1:8081"])
def test_tls_and_loopback_are_not_warned_of(
    use: Callable[[str], None], url: str, logged: pytest.LogCaptureFixture
) -> None:
    use(url)
    assert logged.records == []


@pytest.mark.parametrize("use", [s3_key, azure_key, emulator, open_registry])
def test_what_sends_no_secret_is_not_warned_of(use: Callable[[str], None], logged: pytest.LogCaptureFixture) -> None:
    """Keys of S3 and Azure sign requests: they stay here."""
    use("http://far.example.com:8081")
    assert logged.records == []


@pytest.mark.parametrize("host", ["localhost", "a.localhost", "127.0.0.1", "127.8.8.8", "::1"])
def test_names_and_addresses_of_this_host_are_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "localhost.example.com", "127.0.0.1.example.com", "10.0.0.1", "0.0.0.0", "::"])
def test_other_names_and_addresses_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)
