"""Check errors and retries of stores in Azure when logins, container, endpoint or the network fail."""

from __future__ import annotations

import socket
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.storage.blob import ContainerSasPermissions, generate_container_sas

from kbackup.errors import AlreadyExistsError, DeniedError, OutcomeUnknownError, StoreError, UnreachableError
from kbackup.store import Store, open_store
from kbackup.store.azure import AzureOptions
from scripts.dev.azurite import Azurite
from tests.contract import test_s3_cut_headers as cut_headers
from tests.contract import test_s3_faults as faults
from tests.contract.conftest import PART, AzureLocation, data_of, upload
from tests.contract.proxy import Proxy
from tests.contract.test_s3_cut_headers import LARGE, cuts_in, put_objects, uploads
from tests.contract.test_s3_faults import asks_of
from tests.support.secrets import know, make

# the same faults as of S3, where the requests are alike
test_a_lost_answer_to_a_write_that_took_effect = faults.test_a_lost_answer_to_a_write_that_took_effect
test_a_lost_answer_about_a_refused_write = faults.test_a_lost_answer_about_a_refused_write
test_all_answers_lost_but_reading_back_tells = faults.test_all_answers_lost_but_reading_back_tells
test_an_answer_lost_and_then_nobody_there = faults.test_an_answer_lost_and_then_nobody_there
test_a_part_that_can_not_be_sent_keeps_its_error = faults.test_a_part_that_can_not_be_sent_keeps_its_error
test_cut_bodies_are_resumed = faults.test_cut_bodies_are_resumed
test_filling_goes_on_where_a_connection_dropped = faults.test_filling_goes_on_where_a_connection_dropped
test_reads_are_not_resumed_for_ever_and_of_one_version = faults.test_reads_are_not_resumed_for_ever_and_of_one_version


pytestmark = pytest.mark.usefixtures("short_waits")


@pytest.fixture
def s3_location(azurite_server: Azurite) -> AzureLocation:
    """Azurite in place of the servers of `tests.contract.test_s3_faults`."""
    return AzureLocation(azurite_server)


def test_a_wrong_key_is_denied(s3_location: AzureLocation) -> None:
    key = make("d3Jvbmc=")
    store = s3_location.opened(account_key=key)
    asks = asks_of(store)
    del asks[8]  # `delete` returns it
    (failed,) = store.delete(["key"])
    assert isinstance(failed.error, DeniedError)
    for ask in asks:
        with pytest.raises(DeniedError, match=s3_location.bucket) as caught:
            ask()
        assert "azure.account_key" in caught.value.hint
        assert key not in str(caught.value)


def test_a_missing_container_is_unreachable(s3_location: AzureLocation) -> None:
    store = open_store(f"az://{s3_location.server.account}/no-such/prefix", {"azure": s3_location.options()})
    for ask in asks_of(store):
        with pytest.raises(UnreachableError, match=r"no-such.*the container does not exist"):
            ask()


def test_a_closed_port_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    options = AzureOptions(endpoint_url=f"http://127.0.0.1:{port}/a", sas_token="sig=hush", max_attempts=2)
    for ask in asks_of(open_store("az://a/container/prefix", {"azure": options})):
        with pytest.raises(UnreachableError, match=f"port={port}.*refused;") as caught:
            ask()
        assert "hush" not in str(caught.value)


def sas_of(location: AzureLocation, rights: str, hours: int = 1) -> str:
    server, ends = location.server, datetime.now(UTC) + timedelta(hours=hours)
    allowed = ContainerSasPermissions.from_string(rights)
    token = generate_container_sas(
        server.account, location.bucket, account_key=server.account_key, permission=allowed, expiry=ends
    )
    know("a SAS token's signature", token.rpartition("sig=")[2])
    return token


def test_a_sas_token_permits_what_it_names_until_it_expires(s3_location: AzureLocation) -> None:
    def opened(token: str) -> Store:
        return s3_location.opened(account_key="", sas_token=token)

    upload(opened(sas_of(s3_location, "racwdl")), "key", LARGE)
    reader = opened("?" + sas_of(s3_location, "rl"))
    assert reader.get("key") == LARGE
    assert [info.key for info in reader.list()] == ["key"]
    for store in (reader, opened(sas_of(s3_location, "rl", -1))):
        with pytest.raises(DeniedError) as caught:
            store.put("key", b"")
        assert "sig=" not in str(caught.value)


@pytest.mark.parametrize("name", ["AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN"])
def test_logins_of_the_environment(s3_location: AzureLocation, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = s3_location.server
    value = {
        "AZURE_STORAGE_CONNECTION_STRING": server.env["AZURE_STORAGE_CONNECTION_STRING"],
        "AZURE_STORAGE_KEY": server.account_key,
        "AZURE_STORAGE_SAS_TOKEN": sas_of(s3_location, "racwdl"),
    }[name]
    monkeypatch.setenv(name, value)
    endpoint: dict[str, Any] = {} if name.endswith("STRING") else {"endpoint_url": server.endpoint_url}
    store = open_store(s3_location.url, {"azure": AzureOptions(**endpoint)})
    store.put("key", b"1")
    assert s3_location.store().get("key") == b"1"


@pytest.mark.parametrize("status", [429, 500, 503])
def test_every_request_is_repeated_when_the_store_is_busy(through: Store, proxy: Proxy, status: int) -> None:
    asks: dict[int, Any] = dict(enumerate(asks_of(through)))
    del asks[7]  # `replace` of a version that is not one
    for n, ask in asks.items():
        through.delete(["key"]) if n in {6, 9, 10} else through.put("key", b"1")
        proxy.answer_instead("", status, handled=(False, False))
        ask()


@pytest.mark.parametrize("write", ["put", "put_new", "replace"])
def test_an_error_about_a_write_that_took_effect(through: Store, proxy: Proxy, write: str) -> None:
    first = (through.put("key", b"1"),) if write == "replace" else ()
    proxy.answer_instead("^PUT", 500, handled=(True,))
    etag = getattr(through, write)("key", b"ours", *first)
    assert through.get_with_etag("key") == (b"ours", etag)


def test_a_store_that_stays_busy_is_unreachable(through: Store, proxy: Proxy) -> None:
    text = "<Error><Code>ServerBusy</Code><Message>The server is busy.</Message></Error>"
    proxy.answer_instead("", 503, text, handled=(False,) * 3)
    with pytest.raises(UnreachableError, match="The server is busy") as caught:
        through.get("key")
    assert "fewer tasks" in caught.value.hint


@pytest.mark.parametrize(
    ("lost", "size"), [("^PUT", 7), *((lost, 2 * PART + 1) for lost in ("^PUT .*comp=block&", "^PUT .*comp=blocklist"))]
)
def test_lost_answers_to_an_upload(through: Store, proxy: Proxy, lost: str, size: int) -> None:
    proxy.lose_answers(lost, 2)
    upload(through, "key", data_of(size))
    assert through.get("key") == data_of(size)


def test_a_lost_commit_over_a_taken_key(through: Store, proxy: Proxy) -> None:
    through.put("key", b"theirs")
    proxy.lose_answers("^PUT .*comp=blocklist", 1)
    with pytest.raises(AlreadyExistsError):
        upload(through, "key", LARGE)
    assert through.get("key") == b"theirs"


def test_a_commit_without_any_answer(through: Store, proxy: Proxy, s3_location: AzureLocation) -> None:
    proxy.lose_answers("^PUT .*comp=blocklist", 1, then_refuse=True)
    with pytest.raises(OutcomeUnknownError) as caught:
        upload(through, "key", LARGE)
    assert s3_location.store().get("key") == LARGE
    assert any("reading back" in note for note in caught.value.__notes__)


def test_damaged_bytes_are_refused(s3_location: AzureLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbackup.store.azure.store._md5_of", lambda views: "1B2M2Y8AsgTpgAmY7PhCfg==")
    for size in (10, PART + 10):
        with pytest.raises(StoreError, match="Md5Mismatch"):
            upload(s3_location.store(), "key", data_of(size))
    assert list(s3_location.store().list()) == []


CHECKS = {
    name: cut_headers.CHECKS[name] for name in ("get_range", "get_empty", "fill", "list", "stat", "put_new", "replace")
} | {"delete": ("^DELETE", cut_headers.delete), "upload_commit": ("^PUT .*comp=blocklist", uploads)}


@pytest.mark.parametrize("name", CHECKS)
def test_an_answer_cut_in_any_header_is_asked_for_again(through: Store, proxy: Proxy, name: str) -> None:
    put_objects(through)
    request, check = CHECKS[name]
    before = len(proxy.answers)
    check(through)
    asked = [line for line in proxy.requests[before:] if line.startswith(request.partition(" ")[0][1:])]
    answer = proxy.answers[before + proxy.requests[before:].index(asked[-1])]
    for after in [*cuts_in(answer)][:: 5 if check is uploads else 1]:
        proxy.cut_answers(request, after)
        check(through)
        assert not proxy.answers_to_cut, f"no answer was cut after {after} bytes"


def test_a_server_that_cuts_every_answer_is_unreachable(through: Store, proxy: Proxy) -> None:
    put_objects(through)
    asks: list[Any] = [lambda: through.get("key"), lambda: [*through.list()], lambda: through.stat("key")]
    for ask in asks:
        proxy.cut_answers("", *[40] * 100)
        with pytest.raises(UnreachableError):
            ask()
    proxy.cut_answers("")
