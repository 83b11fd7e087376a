"""Java's client.properties in librdkafka's words. That librdkafka takes the result is asked of librdkafka itself."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from hypothesis import given
from hypothesis import strategies as st

from kbackup.config.clients import CONTROLLED, load_client_properties, normal_pem, parse_properties, translate
from kbackup.errors import UsageError

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
PEM = "-----BEGIN CERTIFICATE-----\n" + "A" * 64 + "\nBB==\n-----END CERTIFICATE-----\n"


def translated(**java: str) -> dict[str, str]:
    return translate({name.replace("_", "."): value for name, value in java.items()}, "f").properties


def refused(**java: str) -> UsageError:
    with pytest.raises(UsageError) as raised:
        translated(**java)
    assert raised.value.message.startswith("f: ")
    return raised.value


def test_a_file_of_scram_over_tls(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "bootstrap.servers=b1:9093,b2:9093\nsecurity.protocol=SASL_SSL \nsasl.mechanism=SCRAM-SHA-512\n"
        f'sasl.jaas.config={SCRAM} required \\\n  username="alice" \\\n  password="a\\\\"b;c=d";\n'
        "ssl.truststore.type=PEM\nssl.truststore.location=/etc/ca.pem\nrequest.timeout.ms=20000\nmax.poll.records=5\n"
        "ssl.endpoint.identification.algorithm=\nsend.buffer.bytes=-1\nkey.deserializer=x.StringDeserializer\n"
    )
    client = load_client_properties(str(file))
    assert client.properties == {
        "bootstrap.servers": "b1:9093,b2:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": 'a"b;c=d',
        "ssl.ca.location": "/etc/ca.pem",
        "socket.timeout.ms": "20000",
        "ssl.endpoint.identification.algorithm": "none",
        "socket.send.buffer.bytes": "0",
    }
    assert client.notes == (
        f"{file}: max.poll.records is left out: kbackup joins no consumer group",
        f"{file}: key.deserializer is left out: records are copied as they are",
    )


@pytest.mark.parametrize(
    "config",
    [
        f"{PLAIN} required username=\"u\" password='p';",
        f"  {PLAIN} optional password=p username=u ; ",
        f'{SCRAM}\n required\n username = "u"\n password = "p"\n;',
    ],
)
def test_user_and_password_of_jaas(config: str) -> None:
    assert translated(sasl_jaas_config=config) == {"sasl.username": "u", "sasl.password": "p"}


def test_settings_of_java_for_tokens_become_librdkafkas() -> None:
    """Of client credentials, and tokens that nobody signs."""
    assert translated(
        sasl_mechanism="OAUTHBEARER",
        sasl_oauthbearer_token_endpoint_url="https://idp/token",
        sasl_login_callback_handler_class=OAUTH.replace("Module", "CallbackHandler"),
        sasl_jaas_config=f'{OAUTH} required clientId="backup" clientSecret="hush" scope="kafka";',
    ) == {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": "https://idp/token",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "backup",
        "sasl.oauthbearer.client.secret": "hush",
        "sasl.oauthbearer.scope": "kafka",
    }
    options = 'unsecuredLoginStringClaim_sub="backup" unsecuredLoginLifetimeSeconds="600"'
    assert translated(sasl_jaas_config=f"{OAUTH} required {options};") == {
        "enable.sasl.oauthbearer.unsecure.jwt": "true",
        "sasl.oauthbearer.config": "principal=backup lifeSeconds=600",
    }


@pytest.mark.parametrize(
    ("config", "why", "remedy"),
    [
        ('com.sun.security.auth.module.Krb5LoginModule required keyTab="hush";', "Krb5LoginModule", "log in by SCRAM"),
        ('x.OAuthBearerLoginModule required clientSecret="hush";', "OAuthBearer", "sasl.oauthbearer.method=oidc"),
        ("software.amazon.msk.auth.iam.IAMLoginModule required;", "IAMLoginModule", "ScramLoginModule"),
        (f'{SCRAM} required username="hush" password="hush" tokenauth="true";', "delegation tokens", "SCRAM"),
        (f'{PLAIN} required username="hush";', "no password", "PlainLoginModule required"),
        (f'{PLAIN} required username="u" password="hush"', "semicolon", ""),
        (f'{PLAIN} required username="u" password="hush;', "quote", ""),
        (f'{PLAIN} required username="u" "hush" "hush";', "name=value", ""),
        (f'{PLAIN} required username="u" password="hush"; {PLAIN} required;', "not one login module", ""),
    ],
)
def test_jaas_that_cannot_be_used(config: str, why: str, remedy: str) -> None:
    error = refused(sasl_jaas_config=config)
    assert error.message.startswith("f: sasl.jaas.config: ")
    assert why in error.message
    assert remedy in error.hint
    assert "hush" not in str(error)


def test_java_pem_stores_become_librdkafka_pems() -> None:
    inline = PEM.replace("\n", " ")
    assert translated(
        ssl_truststore_type="pem",
        ssl_truststore_certificates=inline,
        ssl_keystore_type="PEM",
        ssl_keystore_key=inline.replace("CERTIFICATE", "ENCRYPTED PRIVATE KEY"),
        ssl_keystore_certificate_chain=inline + inline,
        ssl_key_password="k",
    ) == {
        "ssl.ca.pem": PEM,
        "ssl.key.pem": PEM.replace("CERTIFICATE", "ENCRYPTED PRIVATE KEY"),
        "ssl.certificate.pem": PEM + PEM,
        "ssl.key.password": "k",
    }
    assert translated(ssl_keystore_type="PEM", ssl_keystore_location="k.pem") == {
        "ssl.certificate.location": "k.pem",
        "ssl.key.location": "k.pem",
    }


def test_pkcs12_key_stores_pass() -> None:
    for java in ({"ssl_keystore_type": "PKCS12", "ssl_keystore_location": "k.jks"}, {"ssl_keystore_location": "k.p12"}):
        assert translated(**java, ssl_keystore_password="p") == {
            "ssl.keystore.location": java["ssl_keystore_location"],
            "ssl.keystore.password": "p",
        }


JKS = "ssl.truststore.location is a JKS trust store"
PKCS12 = "ssl.truststore.location is a PKCS12 trust store"
KEYS = "ssl.keystore.location is a JKS key store"


@pytest.mark.parametrize(
    ("java", "message", "hint"),
    [
        ({"ssl_truststore_location": "t.jks"}, JKS, "keytool -list -rfc -keystore t.jks"),
        (
            {"ssl_truststore_location": "t.p12", "ssl_truststore_type": "PKCS12"},
            PKCS12,
            "openssl pkcs12 -in t.p12 -nokeys -out ca.pem",
        ),
        ({"ssl_keystore_location": "k.jks"}, KEYS, "keytool -importkeystore -srckeystore k.jks"),
        ({"sasl_login_callback_handler_class": "x.Y"}, "sasl.login.callback.handler.class names Java code", ""),
        ({"ssl_engine_factory_class": "x.Y"}, "ssl.engine.factory.class names Java code", ""),
        ({"sasl_login_class": "x.Y"}, "sasl.login.class names Java code", ""),
        ({"security_providers": "x.Y"}, "security.providers names Java code", ""),
        ({"sasl_mechanism": "AWS_MSK_IAM"}, "AWS_MSK_IAM exists in Java only", ""),
    ],
)
def test_what_only_java_has_is_refused(java: dict[str, str], message: str, hint: str) -> None:
    error = refused(**java, ssl_truststore_password="hush", ssl_keystore_password="hush")
    assert message in error.message
    assert hint in error.hint
    assert "hush" not in str(error)


def test_controlled_properties_are_left_out_of_shared_files() -> None:
    client = translate(dict.fromkeys(CONTROLLED, "x"), "f")
    assert client.properties == {}
    assert client.notes == tuple(f"f: {name} is left out: {why}" for name, why in CONTROLLED.items())


def test_librdkafka_takes_what_comes_out() -> None:
    bundle = files("botocore").joinpath("cacert.pem").read_text(encoding="utf-8")
    authority = bundle[bundle.index("-----BEGIN") :].partition("-----END CERTIFICATE-----")
    properties = translated(
        bootstrap_servers="127.0.0.1:1",
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-256",
        sasl_jaas_config=f'{SCRAM} required username="u" password="p";',
        ssl_truststore_type="PEM",
        ssl_truststore_certificates="".join(authority[:2]).replace("\n", " "),
        ssl_endpoint_identification_algorithm="",
        client_dns_lookup="use_all_dns_ips",
        request_timeout_ms="20000",
        receive_buffer_bytes="-1",
        fetch_max_wait_ms="100",
        max_request_size="2000000",
        compression_type="zstd",
        reconnect_backoff_max_ms="100",
    )
    assert AdminClient({**properties, "log_level": 0}) is not None


def test_text_that_is_no_pem_stays() -> None:
    assert normal_pem("-----BEGIN X----- a") == "-----BEGIN X----- a"


# Java's properties files: the examples of `java.util.Properties.load`, and what a ten-line writer of them writes.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Truth = Beauty", {"Truth": "Beauty"}),
        (" Truth:Beauty", {"Truth": "Beauty"}),
        ("Truth                    :Beauty", {"Truth": "Beauty"}),
        (
            "fruits   apple, banana, pear, \\\n    cantaloupe, \\\r\n\t mango",
            {"fruits": "apple, banana, pear, cantaloupe, mango"},
        ),
        ("cheeses", {"cheeses": ""}),
        ("# a\n! b \\\n\nc=d#e\n", {"c": "d#e"}),
        ("a=1\\\n# no comment\nb=2", {"a": "1# no comment", "b": "2"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        (r"a\=b\:c\ d==e", {"a=b:c d": "=e"}),
        (r"tab=\t\n\r\f\q\"", {"tab": '\t\n\r\fq"'}),
        (r"u=é\uD83D\uDE00", {"u": "é😀"}),
        ("a=1\ra=2", {"a": "2"}),
        ("trailing= x  ", {"trailing": "x  "}),
        ("end=a\\", {"end": "a"}),
        ("", {}),
    ],
)
def test_parsing_follows_the_java_documentation(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text.encode("latin-1"), "f") == expected


@pytest.mark.parametrize("value", [r"hush\u12G4", r"hush\u12", r"hush\uD83D"])
def test_malformed_escapes_name_the_line_and_no_value(value: str) -> None:
    with pytest.raises(UsageError, match=r"^client\.properties: line 2 ") as raised:
        parse_properties(f"\nsasl.password={value}\n".encode("latin-1"), "client.properties")
    assert "hush" not in str(raised.value)


def _escaped(text: str) -> str:
    units = text.encode("utf-16-be")
    codes = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    return "".join(chr(code) if chr(code).isascii() and chr(code).isalnum() else f"\\u{code:04x}" for code in codes)


@given(st.dictionaries(st.text(), st.text()), st.sampled_from(["=", ":", " ", " = ", "\t:\t"]))
def test_escaped_properties_are_read_back(values: dict[str, str], sign: str) -> None:
    values.pop("", None) if sign == " " else None
    lines = [f"{_escaped(name)}{sign}{_escaped(value)}" for name, value in values.items()]
    assert parse_properties("\n".join(lines).encode("latin-1"), "f") == values
