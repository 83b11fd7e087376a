"""Our own connections at a broker that asks for every kind of login, and for each of them again after some seconds."""

from __future__ import annotations

import base64
import json
import logging
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import pytest
from confluent_kafka import admin
from kafka.protocol.admin import AlterClientQuotasRequest
from kafka.protocol.metadata import MetadataRequest

from kbackup.kafka.client import Connection
from kbackup.kafka.control.connection import BrokerConnection
from kbackup.kafka.control.errors import LoginError
from kbackup.kafka.control.router import Router
from scripts.dev.secured import SecuredBroker
from tests.support.local_http import Quiet, serving
from tests.support.secrets import make

USER = 'a=b,c"d e'  # what breaks other clients' SCRAM
PASSWORD = make("a,=password")
REAUTHENTICATE_MS = 2500
_SASL = "listener.name.sasl"
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"


@pytest.fixture(scope="module")
def broker() -> Iterator[SecuredBroker]:
    properties = {
        f"{_SASL}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        f"{_SASL}.plain.sasl.jaas.config": f'{_PLAIN} user_alice="{PASSWORD}";',
        f"{_SASL}.scram-sha-256.sasl.jaas.config": _SCRAM,
        f"{_SASL}.connections.max.reauth.ms": str(REAUTHENTICATE_MS),
        "authorizer.class.name": "",
    }
    with SecuredBroker(properties) as made:
        client = admin.AdminClient(made.client(log_level=0))
        for mechanism in (admin.ScramMechanism.SCRAM_SHA_256, admin.ScramMechanism.SCRAM_SHA_512):
            info = admin.ScramCredentialInfo(mechanism, 4096)
            wanted = admin.UserScramCredentialUpsertion(USER, info, PASSWORD.encode(), secrets.token_bytes(16))
            for future in client.alter_user_scram_credentials([wanted]).values():
                future.result(30)
        yield made


@contextmanager
def provider() -> Iterator[tuple[str, list[str]]]:
    """An OIDC provider whose tokens nobody signs: the broker's own validator takes them. Yields what was asked."""
    asked: list[str] = []

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            now = int(time.time())
            parts = ({"alg": "none"}, {"sub": "alice", "iat": now, "exp": now + 300})
            encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
            answer = json.dumps({"access_token": ".".join([*encoded, ""]), "expires_in": 300}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

    with serving(Handler) as url:
        yield f"{url}/token", asked


def plain(broker: SecuredBroker) -> Mapping[str, str]:
    return broker.scram("alice", PASSWORD, "PLAIN")


def scram_256(broker: SecuredBroker) -> Mapping[str, str]:
    return broker.scram(USER, PASSWORD, "SCRAM-SHA-256")


def scram_512(broker: SecuredBroker) -> Mapping[str, str]:
    return broker.scram(USER, PASSWORD, "SCRAM-SHA-512")


def unsigned(broker: SecuredBroker) -> Mapping[str, str]:
    return broker.token("alice")


def certificate(broker: SecuredBroker) -> Mapping[str, str]:
    return broker.certificate("alice")


@contextmanager
def router_of(properties: Mapping[str, str]) -> Iterator[Router]:
    router = Router(Connection(properties, "source"))
    yield router
    router.close()


@pytest.mark.parametrize("way", [plain, scram_256, scram_512, unsigned, certificate])
def test_each_login_is_taken_and_nothing_of_it_is_logged(
    way: object, broker: SecuredBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, logger="kbackup")
    with router_of({**way(broker), "debug": "all"}) as router:  # type: ignore[operator]  # one of the functions above
        assert len(router.metadata([]).brokers) == 1
    assert [record for record in caplog.records if record.name.startswith(("kbackup", "kafka"))] == []
    assert PASSWORD not in caplog.text


def test_a_wrong_password_is_refused_at_once(broker: SecuredBroker) -> None:
    with router_of(broker.scram(USER, "another", "SCRAM-SHA-256")) as router:
        began = time.monotonic()
        with pytest.raises(LoginError, match="SCRAM-SHA-256"):
            router.metadata([])
        assert time.monotonic() - began < 10


@pytest.mark.parametrize("way", [scram_512, unsigned])
def test_a_login_is_renewed_in_time(way: object, broker: SecuredBroker) -> None:
    """The broker ends connections that send something after their time: a change would be lost over one."""
    with router_of(way(broker)) as router:  # type: ignore[operator]  # one of the functions above
        until = time.monotonic() + 3 * REAUTHENTICATE_MS / 1000
        connections: set[BrokerConnection] = set()
        while time.monotonic() < until:
            router.ask(AlterClientQuotasRequest(entries=[], validate_only=True), change=True)
            connections.add(router.any_broker())
            router.ask(MetadataRequest(topics=[]), change=True)
            time.sleep(0.1)
    assert 3 <= len(connections) <= 6


def test_a_provider_is_asked_once_for_many_connections(broker: SecuredBroker) -> None:
    with provider() as (url, asked):
        own = {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "backup",
            "sasl.oauthbearer.client.secret": make("a client's secret"),
            "sasl.oauthbearer.token.endpoint.url": url,
        }
        with router_of({**broker.oauth(), **own}) as router:
            for _ in range(3):
                router.metadata([])
                router.close()
    assert asked == ["grant_type=client_credentials"]
