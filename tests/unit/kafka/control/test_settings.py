"""librdkafka's properties as a connection of our own follows them, or refuses to."""

from __future__ import annotations

import base64
import ctypes
import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kbackup.errors import UsageError
from kbackup.kafka.client import Connection
from kbackup.kafka.control.errors import UnsupportedSettingError
from kbackup.kafka.control.router import Router
from kbackup.kafka.control.settings import FOLLOWED, MEANS_NOTHING, REFUSED, ConnectionSettings, settings_of
from kbackup.kafka.control.tokens import unsigned_token
from kbackup.native.property_check import _library

HIDDEN = "not-to-be-seen"
OIDC = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_method": "oidc"}


def of(**properties: str) -> ConnectionSettings:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    return settings_of({"bootstrap.servers": "h:1", **named}, None)


def properties_of_librdkafka(file: Path) -> dict[str, str]:
    """The names of its properties, as it shows them itself, with whom each is for: C, P or * for both."""
    library, c = _library(), ctypes.CDLL(None)
    c.fopen.restype = ctypes.c_void_p
    c.fclose.argtypes = library.rd_kafka_conf_properties_show.argtypes = (ctypes.c_void_p,)
    stream = c.fopen(str(file).encode(), b"w")
    library.rd_kafka_conf_properties_show(stream)
    c.fclose(stream)
    shown = file.read_text().partition("## Topic")[0]
    rows = [line.split("|") for line in shown.splitlines() if line.count("|") >= 5]
    return {row[0].strip(): row[1].strip() for row in rows[2:]}


def test_every_property_of_librdkafka_that_is_for_all_clients_has_its_place(tmp_path: Path) -> None:
    """A new release may bring some: each is followed, means nothing, or is refused."""
    known = properties_of_librdkafka(tmp_path / "properties")
    assert len(known) > 150
    tables = (FOLLOWED, MEANS_NOTHING, REFUSED)
    placed = [name for table in tables for name in table]
    assert [name for name, whose in known.items() if whose == "*" and name not in placed] == []
    assert [name for name in placed if placed.count(name) > 1] == []


def test_every_property_with_a_place_is_one_of_librdkafkas(tmp_path: Path) -> None:
    known = properties_of_librdkafka(tmp_path / "properties")
    # those that it hides in its documents, or shows to builds with other features alone
    hidden = {
        "client.software.name",
        "client.software.version",
        "metadata.request.timeout.ms",
        "allow.auto.create.topics",
        "enable.sparse.connections",
        "enable_sasl_queue",
        "test.mock.num.brokers",
        "test.mock.broker.rtt",
    }
    placed = {*FOLLOWED, *MEANS_NOTHING, *REFUSED}
    assert placed - known.keys() <= hidden


@pytest.mark.parametrize(
    ("servers", "addresses"),
    [
        ("a", (("a", 9092),)),
        ("a:1, b:2,", (("a", 1), ("b", 2))),
        ("[::1]:9093", (("::1", 9093),)),
        ("SASL_SSL://kafka.example.com:443", (("kafka.example.com", 443),)),
    ],
)
def test_bootstrap_servers_are_hosts_and_ports(servers: str, addresses: tuple[tuple[str, int], ...]) -> None:
    assert of(bootstrap_servers=servers).addresses == addresses


def test_aliases_of_bootstrap_servers_are_resolved_where_the_settings_ask_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [(0, 0, 0, "", ("10.0.0.1", 9)), (0, 0, 0, "", ("10.0.0.2", 9))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)
    monkeypatch.setattr(socket, "getnameinfo", lambda target, _: (f"node-{target[0][-1]}", "9"))
    lookup = "resolve_canonical_bootstrap_servers_only"
    made = of(bootstrap_servers="alias:9", client_dns_lookup=lookup)
    assert made.addresses == (("node-1", 9), ("node-2", 9))


def test_plain_text_needs_neither_tls_nor_login() -> None:
    made = of(ssl_ca_location="/unused", sasl_password=HIDDEN, ssl_engine_location="/unused")
    assert (made.tls, made.login) == (None, None)


def test_times_and_sizes_are_followed_up_to_our_own() -> None:
    usual = of()
    assert (usual.request_seconds, usual.setup_seconds, usual.versions_seconds) == (30.0, 30.0, 10.0)
    assert usual.largest_answer == 100_000_000
    made = of(
        socket_timeout_ms="5000",
        socket_connection_setup_timeout_ms="0x3e8",
        api_version_request_timeout_ms="99999999",
        receive_message_max_bytes="5000000",
        connections_max_idle_ms="60000",
    )
    assert (made.request_seconds, made.setup_seconds, made.versions_seconds) == (5.0, 1.0, 10.0)
    assert (made.largest_answer, made.idle_seconds) == (5_000_000, 60.0)


def test_sockets_are_set_as_the_settings_say() -> None:
    no_delay = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    assert of().socket_options == (no_delay,)
    made = of(
        socket_nagle_disable="f",
        socket_keepalive_enable="TRUE",
        socket_send_buffer_bytes="70000",
        socket_receive_buffer_bytes="80000",
        broker_address_family="v6",
    )
    assert made.socket_options == (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.SOL_SOCKET, socket.SO_SNDBUF, 70000),
        (socket.SOL_SOCKET, socket.SO_RCVBUF, 80000),
    )
    assert made.family == socket.AF_INET6


def test_a_login_is_shown_without_its_password() -> None:
    made = of(security_protocol="sasl_ssl", sasl_mechanism="SCRAM-SHA-512", sasl_username="b o%b", sasl_password=HIDDEN)
    assert made.tls is not None
    assert made.login is not None
    assert (made.login.mechanism, made.login.user, made.login.password) == ("SCRAM-SHA-512", "b o%b", HIDDEN)
    assert HIDDEN not in repr(made)


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI"}, "sasl.mechanism GSSAPI"),
        ({"security_protocol": "SASL_PLAINTEXT"}, "sasl.mechanism GSSAPI"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}, "sasl.username"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}, "takes a function for tokens"),
        ({**OIDC, "sasl_oauthbearer_grant_type": "jwt-bearer"}, "sasl.oauthbearer.grant.type"),
        ({**OIDC, "sasl_oauthbearer_new_property": HIDDEN}, "sasl.oauthbearer.new.property"),
        ({**OIDC, "enable_sasl_oauthbearer_unsecure_jwt": "1"}, "excludes"),
        ({"security_protocol": "SSL", "ssl_engine_location": HIDDEN}, "ssl.engine.location"),
        ({"security_protocol": "SSL", "ssl_curves_list": "X25519:P-256"}, "ssl.curves.list"),
        ({"security_protocol": "SSL", "ssl_sigalgs_list": HIDDEN}, "ssl.sigalgs.list"),
        ({"security_protocol": "SSL", "ssl_providers": "legacy"}, "ssl.providers"),
        ({"security_protocol": "SSL", "ssl_new_property": HIDDEN}, "ssl.new.property"),
        ({"security_protocol": "SSL", "ssl_key_pem": HIDDEN, "ssl_certificate_pem": HIDDEN}, "can't be used"),
        ({"security_protocol": "SSL", "ssl_ca_location": "/nowhere"}, "No such file"),
        ({"security_protocol": "QUIC"}, "security.protocol QUIC"),
        ({"bootstrap_servers": "a:b:c"}, "'a:b:c'"),
        ({"bootstrap_servers": ","}, "names no address"),
    ],
)
def test_what_cant_be_followed_is_refused_by_name(properties: dict[str, str], named: str) -> None:
    with pytest.raises(UnsupportedSettingError) as raised:
        of(**properties)
    assert named in str(raised.value)
    assert HIDDEN not in str(raised.value)


def test_a_refused_setting_is_an_error_of_the_configuration() -> None:
    properties = {"bootstrap.servers": "h:1", "security.protocol": "SSL", "ssl.engine.location": HIDDEN}
    with pytest.raises(UsageError) as raised:
        Router(Connection(properties, "target"))
    assert raised.value.message.startswith("[target] can't be used to ask brokers: ssl.engine.location ")
    assert HIDDEN not in raised.value.message + raised.value.hint


def claims(token: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
    return found


def test_tokens_that_nobody_signs_are_as_librdkafka_makes_them() -> None:
    config = (
        "principal=admin scope=one,,two,one lifeSeconds=60 principalClaimName=name scopeClaimName=roles extension_a=b"
    )
    properties = {
        "bootstrap.servers": "h:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "enable.sasl.oauthbearer.unsecure.jwt": "true",
        "sasl.oauthbearer.config": config,
    }
    login = settings_of(properties, None).login
    assert login is not None
    assert login.token is not None
    token = login.token()
    assert token.value.startswith("eyJhbGciOiJub25lIn0.")  # {"alg":"none"}
    assert token.value.endswith(".")
    found = claims(token.value)
    assert (found["name"], found["roles"]) == ("admin", ["one", "two"])
    assert token.principal == "admin"
    assert token.extensions == {"a": "b"}
    assert token.expires == pytest.approx(time.time() + 60, abs=5)
    assert found["exp"] == pytest.approx(token.expires)


def test_an_unsigned_token_is_never_issued_ahead_of_the_clock() -> None:
    """A broker compares whole milliseconds, with the token's rounded up."""
    tokens = unsigned_token("principal=admin")
    for _ in range(200):
        issued = claims(tokens().value)["iat"]
        assert isinstance(issued, int)
        assert issued <= time.time()


@pytest.mark.parametrize(
    "config",
    ["", "scope=a", "principal=", "principal=a principal=b", "principal=a lifeSeconds=long", "principal=a oops"],
)
def test_an_odd_config_of_unsigned_tokens_is_refused(config: str) -> None:
    properties = {
        "bootstrap.servers": "h:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "enable.sasl.oauthbearer.unsecure.jwt": "true",
        "sasl.oauthbearer.config": config,
    }
    with pytest.raises(UnsupportedSettingError, match=r"sasl\.oauthbearer\.config"):
        settings_of(properties, None)


def test_kafka_python_is_not_loaded_to_read_settings() -> None:
    """It takes a third of a second."""
    command = [sys.executable, "-c", "import sys, kbackup.kafka.control.settings; sys.exit('kafka' in sys.modules)"]
    assert subprocess.run(command, check=False).returncode == 0
