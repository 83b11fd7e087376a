"""librdkafka's properties as a connection of our own follows them, or refuses to."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kbackup.kafka.admin_protocol.endpoint import Endpoint, NotMappedError, endpoint_of

HIDDEN = "not-to-be-seen"
OIDC = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_method": "oidc"}


def of(**properties: str) -> Endpoint:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    return endpoint_of({"bootstrap.servers": "h:1", **named}, None, 30.0)


@pytest.mark.parametrize(
    ("servers", "addresses"),
    [
        ("a", (("a", 9092),)),
        ("a:1, b:2,", (("a", 1), ("b", 2))),
        ("[::1]:9093", (("::1", 9093),)),
        ("SASL_SSL://kafka.example.com:443", (("kafka.example.com", 443),)),
    ],
)
def test_addresses(servers: str, addresses: tuple[tuple[str, int], ...]) -> None:
    assert of(bootstrap_servers=servers).addresses == addresses


def test_plain_text_needs_neither_tls_nor_login() -> None:
    made = of(ssl_ca_location="/unused", sasl_password=HIDDEN)
    assert (made.tls, made.login, made.timeout) == (None, None, 30.0)
    assert of(socket_timeout_ms="5000").timeout == 5.0


def test_tls_and_login() -> None:
    made = of(
        security_protocol="sasl_ssl",
        ssl_ca_location="/ca.pem",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username="b o%b",
        sasl_password=HIDDEN,
    )
    assert made.tls == {"ssl.ca.location": "/ca.pem"}
    assert made.login is not None
    assert (made.login.mechanism, made.login.user, made.login.password) == ("SCRAM-SHA-512", "b o%b", HIDDEN)
    assert HIDDEN not in repr(made)


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI"}, "sasl.mechanism GSSAPI"),
        ({"security_protocol": "SASL_PLAINTEXT"}, "sasl.mechanism GSSAPI"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}, "nobody signs"),
        ({**OIDC, "sasl_oauthbearer_grant_type": "jwt-bearer"}, "sasl.oauthbearer.grant.type"),
        ({**OIDC, "sasl_oauthbearer_assertion_private_key_pem": HIDDEN}, "sasl.oauthbearer.assertion"),
        ({"security_protocol": "SSL", "ssl_engine_location": HIDDEN}, "ssl.engine.location"),
        ({"security_protocol": "QUIC"}, "security.protocol QUIC"),
        ({"bootstrap_servers": "a:b:c"}, "'a:b:c'"),
    ],
)
def test_unsupported_properties_are_named(properties: dict[str, str], named: str) -> None:
    with pytest.raises(NotMappedError) as raised:
        of(**properties)
    assert named in str(raised.value)
    assert HIDDEN not in str(raised.value)


def test_kafka_python_is_not_loaded_before_a_connection_is_opened() -> None:
    """It takes a third of a second."""
    modules = "import sys, kbackup.kafka.admin.cluster, kbackup.kafka.admin_protocol.endpoint"
    command = [sys.executable, "-c", f"{modules}; sys.exit('kafka' in sys.modules)"]
    assert subprocess.run(command, check=False).returncode == 0
