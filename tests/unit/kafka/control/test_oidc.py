"""Tokens of a provider of the test's own: what it is asked, and what becomes of its answers."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat

from kbackup.kafka.control import oidc
from kbackup.kafka.control.errors import LoginError, UnsupportedSettingError
from kbackup.kafka.control.settings import settings_of
from kbackup.kafka.control.tokens import TokenCache
from kbackup.kafka.oauth import OAuthToken
from tests.support.local_http import Quiet, serving

HIDDEN = "not-to-be-seen"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"


@dataclass
class Asked:
    """One request to a provider."""

    path: str
    headers: Mapping[str, str]
    form: dict[str, list[str]] = field(default_factory=dict)


@contextmanager
def provider(*answers: tuple[int, bytes]) -> Iterator[tuple[str, list[Asked]]]:
    """Gives these answers, one a request. Yields the address, and what was asked."""
    asked: list[Asked] = []
    waiting = [*answers]

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length", "0"))
            form = parse_qs(self.rfile.read(length).decode())
            asked.append(Asked(self.path, dict(self.headers), form))
            status, answer = waiting.pop(0)
            self.send_response(status)
            self.send_header("Location", "http://127.0.0.1:1/elsewhere")
            self.end_headers()
            self.wfile.write(answer)

        do_POST = do_GET  # noqa: N815 (the name is the library's)

    with serving(Handler) as url:
        yield f"{url}/token?tenant=1", asked
    assert not waiting


def source(url: str, **more: str) -> TokenCache:
    """What gives tokens of the provider at `url`; a name in `more` has _ for each dot after `sasl.oauthbearer.`."""
    named = {f"sasl.oauthbearer.{name.replace('_', '.')}": value for name, value in more.items()}
    properties = {
        "bootstrap.servers": "h:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "OIDC",
        "sasl.oauthbearer.client.id": "backup",
        "sasl.oauthbearer.client.secret": HIDDEN,
        "sasl.oauthbearer.token.endpoint.url": url,
        "sasl.oauthbearer.scope": "kafka read",
        "sasl.oauthbearer.extensions": "logicalCluster=x, pool=y",
        **named,
    }
    login = settings_of(properties, None).login
    assert login is not None
    assert login.token is not None
    return login.token


def jwt(**claims: object) -> str:
    parts = ({"alg": "none"}, claims)
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*encoded, ""])


def granted(token: str, **more: object) -> tuple[int, bytes]:
    return 200, json.dumps({"access_token": token, **more}).encode()


def test_client_credentials_give_a_token() -> None:
    with provider(granted("a.b.c", expires_in=300)) as (url, (*asked,)):
        pass_on = source(url)
        token = pass_on()
    assert token.value == "a.b.c"
    assert token.extensions == {"logicalCluster": "x", "pool": "y"}
    assert 290 < token.expires - time.time() <= 300
    assert not asked


def test_a_provider_is_asked_for_what_the_settings_say() -> None:
    with provider(granted("a.b.c")) as (url, asked):
        source(url)()
    assert asked[0].path == "/token?tenant=1"
    assert asked[0].form == {"grant_type": ["client_credentials"], "scope": ["kafka read"]}
    scheme, _, pair = asked[0].headers["Authorization"].partition(" ")
    assert scheme == "Basic"
    assert base64.b64decode(pair).decode() == f"backup:{HIDDEN}"


def test_a_token_is_kept_until_most_of_its_life_is_over() -> None:
    now = time.time()
    lasting, short = jwt(sub="backup", exp=now + 300), jwt(sub="backup", exp=now + 0.5)
    with provider(granted(short), granted(lasting)) as (url, asked):
        give = source(url)
        assert give().value == short
        time.sleep(0.45)
        assert [give().value for _ in range(3)] == [lasting] * 3
        assert len(asked) == 2


def test_a_refused_token_is_asked_for_again() -> None:
    made: list[OAuthToken] = []

    def make() -> OAuthToken:
        made.append(OAuthToken("t", time.time() + 100))
        return made[-1]

    cache = TokenCache(make)
    assert (cache(), cache()) == (made[0], made[0])
    cache.forget()
    cache()
    assert len(made) == 2


def test_the_principal_is_the_claim_that_is_named() -> None:
    with provider(granted(jwt(sub="x", azp="me"))) as (url, _):
        assert source(url, sub_claim_name="azp")().principal == "me"


def test_a_busy_provider_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oidc, "_PAUSES", (0.0, 0.0))
    with provider((503, b""), (429, b""), granted("a.b.c")) as (url, asked):
        assert source(url)().value == "a.b.c"
        assert len(asked) == 3
    with provider((503, b""), (503, b""), (503, b"")) as (url, _), pytest.raises(LoginError, match="answered 503"):
        source(url)()


@pytest.mark.parametrize(
    ("status", "answer", "message"),
    [
        (401, HIDDEN.encode(), "answered 401"),
        (302, HIDDEN.encode(), "answered 302"),
        (200, b'{"error": "' + HIDDEN.encode() + b'"}', "holds none"),
        (200, b"[]", "holds none"),
        (200, b"[" * 100_000, "holds none"),
        (200, b"<html>" + HIDDEN.encode(), "holds none"),
    ],
)
def test_a_provider_without_a_token_is_a_login_error_without_secrets(status: int, answer: bytes, message: str) -> None:
    with provider((status, answer)) as (url, _), pytest.raises(LoginError) as raised:
        source(url)()
    assert message in str(raised.value)
    assert HIDDEN not in str(raised.value)


def test_a_provider_that_is_not_there_is_a_login_error() -> None:
    with pytest.raises(LoginError, match="did not answer"):
        source("http://127.0.0.1:1/token")()


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"token_endpoint_url": "file:///etc/passwd"}, "token.endpoint.url"),
        ({"token_endpoint_url": ""}, "token.endpoint.url"),
        ({"client_secret": ""}, "client.secret"),
        ({"grant_type": "password"}, "grant.type password"),
        ({"metadata_authentication_type": "aws_iam"}, "metadata.authentication.type aws_iam"),
        ({"assertion_file": "/a", "assertion_private_key_pem": HIDDEN}, "excludes"),
    ],
)
def test_settings_that_give_no_token_are_refused_by_name(more: dict[str, str], named: str) -> None:
    with pytest.raises(UnsupportedSettingError) as raised:
        source("http://127.0.0.1:1/token", **more)
    assert named in str(raised.value)
    assert HIDDEN not in str(raised.value)


# Assertions: tokens that we sign ourselves.


def claims_of(assertion: str) -> tuple[dict[str, Any], dict[str, Any], bytes, bytes]:
    """Header, payload, signature, and what was signed."""
    header, payload, signature = (base64.urlsafe_b64decode(part + "==") for part in assertion.split("."))
    return json.loads(header), json.loads(payload), signature, assertion.rpartition(".")[0].encode()


def test_an_assertion_signed_by_an_rsa_key_gives_a_token(tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 2048)
    file = tmp_path / "key.pem"
    encryption = BestAvailableEncryption(HIDDEN.encode())
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    template = tmp_path / "template.json"
    template.write_text(json.dumps({"header": {"kid": "7", "alg": "none"}, "payload": {"tenant": "t", "sub": "x"}}))
    with provider(granted("a.b.c")) as (url, asked):
        give = source(
            url,
            grant_type=JWT_BEARER,
            assertion_private_key_file=str(file),
            assertion_private_key_passphrase=HIDDEN,
            assertion_jwt_template_file=str(template),
            assertion_claim_sub="backup",
            assertion_claim_aud="idp",
            assertion_claim_jti_include="true",
        )
        assert give().value == "a.b.c"
    form = asked[0].form
    assert form["grant_type"] == [JWT_BEARER]
    assert "Authorization" not in asked[0].headers
    header, payload, signature, signed = claims_of(form["assertion"][0])
    assert header == {"kid": "7", "alg": "RS256", "typ": "JWT"}
    assert {name: payload[name] for name in ("tenant", "sub", "aud")} == {"tenant": "t", "sub": "backup", "aud": "idp"}
    assert payload["exp"] - payload["iat"] == 300
    assert payload["iat"] - payload["nbf"] == 60
    assert len(payload["jti"]) == 36
    key.public_key().verify(signature, signed, padding.PKCS1v15(), SHA256())


def test_an_assertion_signed_by_an_elliptic_key_gives_a_token() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    with provider((200, json.dumps({"id_token": "i.d.t"}).encode())) as (url, asked):
        give = source(url, grant_type=JWT_BEARER, assertion_private_key_pem=pem, assertion_algorithm="ES256")
        assert give().value == "i.d.t"
    header, _, signature, signed = claims_of(asked[0].form["assertion"][0])
    assert header["alg"] == "ES256"
    first, second = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big")
    key.public_key().verify(encode_dss_signature(first, second), signed, ec.ECDSA(SHA256()))


def test_an_assertion_in_a_file_gives_a_token(tmp_path: Path) -> None:
    file = tmp_path / "assertion"
    file.write_text("our.own.assertion\n")
    with provider(granted("a.b.c")) as (url, asked):
        source(url, grant_type=JWT_BEARER, assertion_file=str(file))()
    assert asked[0].form["assertion"] == ["our.own.assertion"]


def test_an_assertion_that_cant_be_made_is_a_login_error_without_secrets() -> None:
    give = source("http://127.0.0.1:1/token", grant_type=JWT_BEARER, assertion_private_key_pem=HIDDEN)
    with pytest.raises(LoginError, match="the assertion can't be made") as raised:
        give()
    assert HIDDEN not in str(raised.value)


def test_a_machine_of_azures_is_asked_for_its_token() -> None:
    with provider(granted("a.b.c")) as (url, asked):
        properties = {
            "sasl.oauthbearer.metadata.authentication.type": "azure_imds",
            "sasl.oauthbearer.token.endpoint.url": url,
            "sasl.oauthbearer.config": "query=resource=kafka",
        }
        assert oidc.provider_of(properties, 5.0)().value == "a.b.c"
    assert asked[0].path == "/token?tenant=1&resource=kafka"
    assert asked[0].headers["Metadata"] == "true"
    assert asked[0].form == {}
