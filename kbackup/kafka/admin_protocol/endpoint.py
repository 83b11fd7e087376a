"""Where and how to connect to brokers, by librdkafka's properties: addresses, TLS, logins and tokens.

Nothing here loads kafka-python. No error holds a secret.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
import ssl
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit

from confluent_kafka import KafkaError

from kbackup.util.scratch import ScratchFolder
from kbackup.util.text import words_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes


class NotMappedError(Exception):
    """A property that only librdkafka can follow."""

    def kafka_error(self) -> KafkaError:
        return KafkaError(KafkaError._UNSUPPORTED_FEATURE, str(self))


class LoginError(Exception):
    """The other half of a login is not what it must be."""


class NoConnectionError(Exception):
    """No broker let us in, or one that did ended the connection."""

    def kafka_error(self) -> KafkaError:
        return KafkaError(KafkaError._TRANSPORT, str(self))


class RefusedRequestError(Exception):
    """A broker answered with an error: Kafka's `code`, and its own words."""

    def __init__(self, code: int, words: str = "") -> None:
        super().__init__(words)
        self.code = code
        self.words = words

    def kafka_error(self) -> KafkaError:
        return KafkaError(self.code, self.words) if self.words else KafkaError(self.code)


TokenSource = Callable[[], tuple[str, Mapping[str, str]]]
"""Makes a token for OAUTHBEARER, and its SASL extensions."""

_DEFAULT_PORT = 9092
_TLS = ("SSL", "SASL_SSL")
_SASL = ("SASL_PLAINTEXT", "SASL_SSL")
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]

_TLS_PROPERTIES = {
    *("ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem"),
    *("ssl.key.location", "ssl.key.pem", "ssl.key.password"),
    *("ssl.keystore.location", "ssl.keystore.password"),
    *("ssl.endpoint.identification.algorithm", "enable.ssl.certificate.verification", "ssl.cipher.suites"),
}
_ADDRESS = re.compile(r"^(?:[A-Za-z_]+://)?(?:\[(?P<ip6>[^\]]+)\]|(?P<host>[^:\[\]]+))(?::(?P<port>\d+))?$")


@dataclass(frozen=True, kw_only=True)
class Login:
    """The credentials that a client logs in with."""

    mechanism: Mechanism
    user: str = ""
    password: str = field(default="", repr=False)
    token: TokenSource | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """`tls` has the properties of TLS, None for plain text. `timeout` is in seconds."""

    addresses: tuple[tuple[str, int], ...]
    tls: Mapping[str, str] | None = field(repr=False)
    login: Login | None
    timeout: float
    client_id: str


def endpoint_of(properties: Mapping[str, str], token: TokenSource | None, timeout: float) -> Endpoint:
    """Return where and how to connect; `NotMappedError` if the properties ask for what only librdkafka can do.

    `token` is the user's own function for tokens, None if there is none."""
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in ("PLAINTEXT", *_TLS, *_SASL):
        raise NotMappedError(f"security.protocol {protocol} is not supported")
    addresses = []
    for text in words_of(properties["bootstrap.servers"]):
        if (found := _ADDRESS.match(text)) is None:
            raise NotMappedError(f"bootstrap.servers has {text!r}, which is no host:port")
        addresses.append((found["ip6"] or found["host"], int(found["port"] or _DEFAULT_PORT)))
    tls: dict[str, str] | None = None
    if protocol in _TLS:
        tls = {name: value for name, value in properties.items() if name in _TLS_PROPERTIES}
        for name in properties:
            if name.startswith(("ssl.", "ssl_")) and name not in tls:
                raise NotMappedError(f"{name} works in librdkafka alone")
    milliseconds = properties.get("socket.timeout.ms", "")
    return Endpoint(
        addresses=tuple(addresses),
        tls=tls,
        login=_login(properties, token, timeout) if protocol in _SASL else None,
        timeout=min(timeout, int(milliseconds) / 1000) if milliseconds.isdecimal() else timeout,
        client_id=properties.get("client.id", "kbackup"),
    )


def _login(properties: Mapping[str, str], token: TokenSource | None, timeout: float) -> Login:
    name = properties.get("sasl.mechanism", properties.get("sasl.mechanisms", "GSSAPI")).upper()
    mechanism = next((each for each in get_args(Mechanism) if each == name), None)
    if mechanism is None:
        raise NotMappedError(f"sasl.mechanism {name} works in librdkafka alone")
    if mechanism == "OAUTHBEARER":
        return Login(mechanism=mechanism, token=token or _oidc(properties, timeout))
    return Login(
        mechanism=mechanism, user=properties.get("sasl.username", ""), password=properties.get("sasl.password", "")
    )


# TLS. Files are PEM; a key store is PKCS12. cryptography is imported where there is a key: most connections have none.


def tls_context(properties: Mapping[str, str]) -> ssl.SSLContext:
    """Return the context for librdkafka's properties. `ssl.SSLError`, `OSError` or `ValueError` for files and keys that
    can't be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if properties.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
        context.check_hostname = False
    if properties.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if ciphers := properties.get("ssl.cipher.suites"):
        context.set_ciphers(ciphers)
    location, text = properties.get("ssl.ca.location", ""), properties.get("ssl.ca.pem", "")
    if text:
        context.load_verify_locations(cadata=text)
    if location and location != "probe":
        folder = Path(location).is_dir()
        context.load_verify_locations(**({"capath": location} if folder else {"cafile": location}))
    elif not text:
        context.load_default_certs()
    chain, key = _own(properties)
    if chain and key:
        from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

        # OpenSSL reads them from a file alone: the key is encrypted in it by a password that nobody else has.
        password = secrets.token_hex(32)
        sealed = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password.encode()))
        with ScratchFolder("tls") as scratch:
            file = scratch.path / "client.pem"
            file.write_bytes(chain + b"\n" + sealed)
            context.load_cert_chain(file, password=password)
    return context


def _own(properties: Mapping[str, str]) -> tuple[bytes, PrivateKeyTypes | None]:
    """Return the client's own certificates in PEM, and its key."""
    if store := properties.get("ssl.keystore.location"):
        from cryptography.hazmat.primitives.serialization import Encoding, pkcs12

        password = properties.get("ssl.keystore.password", "").encode() or None
        key, own, others = pkcs12.load_key_and_certificates(Path(store).read_bytes(), password)
        certificates = [own, *others] if own is not None else others
        return b"".join(each.public_bytes(Encoding.PEM) for each in certificates), key
    chain, text = (
        Path(location).read_bytes()
        if (location := properties.get(f"ssl.{part}.location"))
        else properties.get(f"ssl.{part}.pem", "").encode()
        for part in ("certificate", "key")
    )
    if not text:
        return chain, None
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    return chain, load_pem_private_key(text, properties.get("ssl.key.password", "").encode() or None)


# Tokens of an OIDC provider by client credentials (RFC 6749, 4.4), as librdkafka's `sasl.oauthbearer.method=oidc`
# asks for them.


_ID = ("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.credentials.client.id")
_SECRET = ("sasl.oauthbearer.client.secret", "sasl.oauthbearer.client.credentials.client.secret")
_URL = "sasl.oauthbearer.token.endpoint.url"
_SCOPE, _EXTENSIONS = "sasl.oauthbearer.scope", "sasl.oauthbearer.extensions"
_METHOD, _GRANT = "sasl.oauthbearer.method", "sasl.oauthbearer.grant.type"
_KNOWN = {*_ID, *_SECRET, _URL, _SCOPE, _EXTENSIONS, _METHOD, _GRANT}
_LARGEST_TOKEN = 1 << 20  # bytes of an answer


def _oidc(properties: Mapping[str, str], timeout: float) -> TokenSource:
    if properties.get(_METHOD, "").lower() != "oidc":
        raise NotMappedError("tokens that nobody signs are made by librdkafka alone")
    unknown = [name for name in properties if name.startswith("sasl.oauthbearer.") and name not in _KNOWN]
    if properties.get(_GRANT, "client_credentials").lower() != "client_credentials":
        unknown = [_GRANT]
    if unknown:
        raise NotMappedError(f"{unknown[0]} works in librdkafka alone")
    return lambda: fetch_token(properties, timeout)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: the server redirected to would get the secret too."""

    def redirect_request(self, *request: object) -> None:
        return None


def fetch_token(properties: Mapping[str, str], timeout: float) -> tuple[str, Mapping[str, str]]:
    """Return a token and its SASL extensions. `LoginError`, without a secret in its text, where there is no token."""
    url = properties.get(_URL, "")
    where = urlsplit(url)
    if where.scheme not in ("http", "https"):
        raise LoginError(f"{_URL} is no address of the web")
    form = {"grant_type": "client_credentials"}
    if scope := properties.get(_SCOPE):
        form["scope"] = scope
    user, secret = (next((properties[n] for n in names if n in properties), "") for names in (_ID, _SECRET))
    basic = base64.b64encode(f"{user}:{secret}".encode()).decode()
    request = urllib.request.Request(  # noqa: S310 (the scheme was checked)
        url, data=urlencode(form).encode(), headers={"Accept": "application/json", "Authorization": f"Basic {basic}"}
    )
    names = ("ca.location", "ca.pem")
    trusted = {f"ssl.{n}": properties[f"https.{n}"] for n in names if f"https.{n}" in properties}
    secured = urllib.request.HTTPSHandler(context=tls_context(trusted))
    try:
        with urllib.request.build_opener(secured, _NoRedirects).open(request, timeout=timeout) as answer:
            token = json.loads(answer.read(_LARGEST_TOKEN))["access_token"]
    except HTTPError as error:
        with error:
            raise LoginError(f"no token: {where.hostname} answered {error.code}") from None
    except (OSError, HTTPException) as error:
        raise LoginError(f"no token: {where.hostname} did not answer: {error}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise LoginError(f"no token: the answer of {where.hostname} holds none") from None
    pairs = (pair.partition("=") for pair in properties.get(_EXTENSIONS, "").split(",") if pair)
    return str(token), {name.strip(): value.strip() for name, _, value in pairs}
