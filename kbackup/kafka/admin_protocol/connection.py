"""Why there is no connection, or no answer. No text holds a secret."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
import socket
import ssl
import struct
import tempfile
import urllib.request
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit

from confluent_kafka import KafkaError

from kbackup.kafka.admin_protocol.messages import (
    RESPONSES,
    ApiVersionsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes


class NotMappedError(Exception):
    """A property that only librdkafka can follow."""


class LoginError(Exception):
    """The other half of a login is not what it must be."""


class NoConnectionError(Exception):
    """No broker let us in, or one that did ended the connection."""


class RefusedRequestError(Exception):
    """A broker answered with an error: Kafka's `code`, and its own words."""

    def __init__(self, code: int, words: str = "") -> None:
        super().__init__(words)
        self.code = code
        self.words = words


# A TLS context by librdkafka's properties. Files are PEM; a key store is PKCS12.


# cryptography is imported where there is a key: most connections have none


def tls_context(properties: Mapping[str, str]) -> ssl.SSLContext:
    """Raise `ssl.SSLError`, `OSError` or `ValueError` for files and keys that can't be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if properties.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
        context.check_hostname = False
    if properties.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if ciphers := properties.get("ssl.cipher.suites"):
        context.set_ciphers(ciphers)
    _load_authorities(context, properties)
    _load_own(context, properties)
    return context


def _load_authorities(context: ssl.SSLContext, properties: Mapping[str, str]) -> None:
    location, text = properties.get("ssl.ca.location", ""), properties.get("ssl.ca.pem", "")
    if text:
        context.load_verify_locations(cadata=text)
    if location and location != "probe":
        folder = Path(location).is_dir()
        context.load_verify_locations(**({"capath": location} if folder else {"cafile": location}))
    elif not text:
        context.load_default_certs()


def _load_own(context: ssl.SSLContext, properties: Mapping[str, str]) -> None:
    """The client's certificate and key."""
    chain, key = _own(properties)
    if not chain or not key:
        return
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

    # OpenSSL reads them from a file alone: the key is encrypted in it by a password that nobody else has.
    password = secrets.token_hex(32)
    sealed = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password.encode()))
    with tempfile.TemporaryDirectory(prefix="kbackup-tls-") as folder:
        file = Path(folder, "client.pem")
        file.write_bytes(chain + b"\n" + sealed)
        context.load_cert_chain(file, password=password)


def _own(properties: Mapping[str, str]) -> tuple[bytes, PrivateKeyTypes | None]:
    if store := properties.get("ssl.keystore.location"):
        return _from_key_store(Path(store), properties.get("ssl.keystore.password", ""))
    chain, key = (_text(properties, f"ssl.{part}") for part in ("certificate", "key"))
    if not key:
        return chain, None
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    password = properties.get("ssl.key.password", "").encode() or None
    return chain, load_pem_private_key(key, password)


def _text(properties: Mapping[str, str], name: str) -> bytes:
    if location := properties.get(f"{name}.location"):
        return Path(location).read_bytes()
    return properties.get(f"{name}.pem", "").encode()


def _from_key_store(path: Path, password: str) -> tuple[bytes, PrivateKeyTypes | None]:
    from cryptography.hazmat.primitives.serialization import Encoding, pkcs12

    key, own, others = pkcs12.load_key_and_certificates(path.read_bytes(), password.encode() or None)
    chain = [own, *others] if own is not None else others
    return b"".join(each.public_bytes(Encoding.PEM) for each in chain), key


# Tokens of an OIDC provider by client credentials (RFC 6749, 4.4), as librdkafka's `sasl.oauthbearer.method=oidc`
# asks for them.


_ID = ("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.credentials.client.id")
_SECRET = ("sasl.oauthbearer.client.secret", "sasl.oauthbearer.client.credentials.client.secret")
_URL = "sasl.oauthbearer.token.endpoint.url"
_SCOPE, _EXTENSIONS = "sasl.oauthbearer.scope", "sasl.oauthbearer.extensions"
_METHOD, _GRANT = "sasl.oauthbearer.method", "sasl.oauthbearer.grant.type"
_KNOWN = {*_ID, *_SECRET, _URL, _SCOPE, _EXTENSIONS, _METHOD, _GRANT}
_LARGEST_TOKEN = 1 << 20  # bytes of an answer


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: the server redirected to would get the secret too."""

    def redirect_request(self, *request: object) -> None:
        return None


def asks_for_oidc(properties: Mapping[str, str]) -> bool:
    return properties.get(_METHOD, "").lower() == "oidc"


def not_mapped(properties: Mapping[str, str]) -> str:
    """The name of a property that only librdkafka can follow; '' where there is none."""
    if properties.get(_GRANT, "client_credentials").lower() != "client_credentials":
        return _GRANT
    return next((n for n in properties if n.startswith("sasl.oauthbearer.") and n not in _KNOWN), "")


def fetch_token(properties: Mapping[str, str], timeout: float) -> tuple[str, Mapping[str, str]]:
    """A token and its SASL extensions; `LoginError` where the provider gives none, without a secret in its text."""
    url = properties.get(_URL, "")
    where = urlsplit(url)
    if where.scheme not in ("http", "https"):
        raise LoginError(f"{_URL} is no address of the web")
    form = {"grant_type": "client_credentials"}
    if scope := properties.get(_SCOPE):
        form["scope"] = scope
    pair = f"{_first(properties, _ID)}:{_first(properties, _SECRET)}"
    request = urllib.request.Request(  # noqa: S310 (the scheme was checked)
        url,
        data=urlencode(form).encode(),
        headers={
            "Accept": "application/json",
            "Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}",
        },
    )
    secured = urllib.request.HTTPSHandler(context=_context(properties))
    try:
        with urllib.request.build_opener(secured, _NoRedirects).open(request, timeout=timeout) as answer:
            token = json.loads(answer.read(_LARGEST_TOKEN))["access_token"]
    except HTTPError as error:
        with error:
            raise LoginError(f"no token: {where.hostname} answered {error.code}") from None
    except (OSError, HTTPException) as error:
        raise LoginError(f"no token: {where.hostname} did not answer: {error}") from None
    except (ValueError, KeyError, TypeError):
        raise LoginError(f"no token: the answer of {where.hostname} holds none") from None
    pairs = (pair.partition("=") for pair in properties.get(_EXTENSIONS, "").split(",") if pair)
    return str(token), {name.strip(): value.strip() for name, _, value in pairs}


def _context(properties: Mapping[str, str]) -> ssl.SSLContext:
    names = ("ca.location", "ca.pem")
    return tls_context({f"ssl.{n}": properties[f"https.{n}"] for n in names if f"https.{n}" in properties})


def _first(properties: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((properties[name] for name in names if name in properties), "")


# Read addresses, TLS and login of a connection from librdkafka's properties; a pure function.


TokenSource = Callable[[], tuple[str, Mapping[str, str]]]
"""Makes a token for OAUTHBEARER, and its SASL extensions."""

_DEFAULT_PORT = 9092
_TLS = ("SSL", "SASL_SSL")
_SASL = ("SASL_PLAINTEXT", "SASL_SSL")
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
_MECHANISMS: tuple[Mechanism, ...] = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

_TLS_PROPERTIES = {
    *("ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem"),
    *(
        "ssl.key.location",
        "ssl.key.pem",
        "ssl.key.password",
        "ssl.keystore.location",
        "ssl.keystore.password",
    ),
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


def endpoint_of(
    properties: Mapping[str, str],
    token: TokenSource | None,
    timeout: float,
) -> Endpoint:
    """Return where and how to connect; `NotMappedError` where the properties ask for what only librdkafka can do.

    `token` is the user's own function for tokens, None where there is none."""
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in ("PLAINTEXT", *_TLS, *_SASL):
        raise NotMappedError(f"security.protocol {protocol} is not supported")
    milliseconds = properties.get("socket.timeout.ms", "")
    return Endpoint(
        addresses=tuple(map(_address, filter(None, _split(properties["bootstrap.servers"])))),
        tls=_tls(properties) if protocol in _TLS else None,
        login=_login(properties, token, timeout) if protocol in _SASL else None,
        timeout=min(timeout, int(milliseconds) / 1000) if milliseconds.isdecimal() else timeout,
        client_id=properties.get("client.id", "kbackup"),
    )


def _split(servers: str) -> list[str]:
    return [address.strip() for address in servers.split(",")]


def _address(text: str) -> tuple[str, int]:
    found = _ADDRESS.match(text)
    if found is None:
        raise NotMappedError(f"bootstrap.servers has {text!r}, which is no host:port")
    return found["ip6"] or found["host"], int(found["port"] or _DEFAULT_PORT)


def _tls(properties: Mapping[str, str]) -> dict[str, str]:
    for name in properties:
        if name.startswith(("ssl.", "ssl_")) and name not in _TLS_PROPERTIES:
            raise NotMappedError(f"{name} works in librdkafka alone")
    return {name: value for name, value in properties.items() if name in _TLS_PROPERTIES}


def _login(properties: Mapping[str, str], token: TokenSource | None, timeout: float) -> Login:
    name = properties.get("sasl.mechanism", properties.get("sasl.mechanisms", "GSSAPI")).upper()
    mechanism = next((each for each in _MECHANISMS if each == name), None)
    if mechanism is None:
        raise NotMappedError(f"sasl.mechanism {name} works in librdkafka alone")
    if mechanism == "OAUTHBEARER":
        token = token or _oidc(properties, timeout)
        if token is None:
            raise NotMappedError("tokens that nobody signs are made by librdkafka alone")
        return Login(mechanism=mechanism, token=token)
    return Login(
        mechanism=mechanism,
        user=properties.get("sasl.username", ""),
        password=properties.get("sasl.password", ""),
    )


def _oidc(properties: Mapping[str, str], timeout: float) -> TokenSource | None:
    """Return the source of tokens of an OIDC provider; None where the properties name no provider."""
    if not asks_for_oidc(properties):
        return None
    if name := not_mapped(properties):
        raise NotMappedError(f"{name} works in librdkafka alone")
    return lambda: fetch_token(properties, timeout)


# The client's half of a SASL login: PLAIN (RFC 4616), SCRAM (RFC 5802) and OAUTHBEARER (RFC 7628).


Conversation = Generator[bytes, bytes, None]
"""Yields what the client says, and takes what the broker answers."""

_MOST_ITERATIONS = 10_000_000


def conversation(login: Login) -> Conversation:
    if login.mechanism == "PLAIN":
        return _plain(login)
    if login.mechanism == "OAUTHBEARER":
        return _bearer(login)
    return _scram(login, login.mechanism.removeprefix("SCRAM-").replace("-", "").lower())


def _plain(login: Login) -> Conversation:
    yield b"\0" + login.user.encode() + b"\0" + login.password.encode()


def _bearer(login: Login) -> Conversation:
    if login.token is None:
        raise LoginError("no function gives a token")
    token, extensions = login.token()
    pairs = "".join(f"\x01{name}={value}" for name, value in extensions.items())
    refusal = yield f"n,,\x01auth=Bearer {token}{pairs}\x01\x01".encode()
    if refusal:
        yield b"\x01"  # the broker then says why


def _scram(login: Login, digest: str) -> Conversation:
    """`digest` is the name of a hash in `hashlib`."""
    user = login.user.replace("=", "=3D").replace(",", "=2C")
    nonce = secrets.token_hex(16)
    first = f"n={user},r={nonce}"
    answer = (yield f"n,,{first}".encode()).decode()
    challenge = _fields(answer)
    if not challenge.get("r", "").startswith(nonce) or not {"s", "i"} <= challenge.keys():
        raise LoginError("the broker's answer to a SCRAM login is not one to this login")
    if not 0 < (rounds := int(challenge["i"])) <= _MOST_ITERATIONS:
        raise LoginError(f"the broker asks for {rounds} iterations")
    salted = hashlib.pbkdf2_hmac(digest, login.password.encode(), base64.b64decode(challenge["s"]), rounds)
    client = hmac.digest(salted, b"Client Key", digest)
    last = f"c=biws,r={challenge['r']}"
    signed = f"{first},{answer},{last}".encode()
    signature = hmac.digest(hashlib.new(digest, client).digest(), signed, digest)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client, signature, strict=True))).decode()
    verdict = _fields((yield f"{last},p={proof}".encode()).decode())
    expected = hmac.digest(hmac.digest(salted, b"Server Key", digest), signed, digest)
    if not hmac.compare_digest(base64.b64decode(verdict.get("v", "")), expected):
        raise LoginError("the broker can't prove that it knows the SCRAM user")


def _fields(message: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in message.split(",") if "=" in pair)


# A connection to one broker: TLS, login, and one request after another. Nothing that it carries is ever logged.


_LARGEST = 256 << 20  # bytes of an answer
_SOFTWARE = {"client_software_name": "kbackup", "client_software_version": "1"}
_VERSIONS_WITH_FEATURES = 3  # brokers since 2.4; older ones answer by version 0


class BrokerConnection:
    """Made by `connect`. `features` are the finalized ones, by name; None where the broker says nothing of them."""

    def __init__(self, stream: socket.socket, client_id: str) -> None:
        self._stream = stream
        self._client_id = client_id
        self._sent = 0
        self._versions: dict[int, tuple[int, int]] = {}
        self.features: dict[str, int] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        self._stream.close()

    def ask(self, request: Any, newest: int | None = None) -> Any:
        """The response to a request of `messages`, in the newest version that both sides know, at most `newest`.

        `RefusedRequestError` where the response holds an error for the whole, or the broker doesn't know the request.
        """
        low, high = self._versions.get(request.API_KEY, (0, -1))
        version = min(high, request.max_version if newest is None else newest)
        if version < low:
            raise RefusedRequestError(KafkaError.UNSUPPORTED_VERSION, "the brokers are too old for it")
        response = self._exchange(request, version)
        if code := getattr(response, "error_code", 0):
            raise RefusedRequestError(code, getattr(response, "error_message", "") or "")
        return response

    def learn_versions(self) -> None:
        """Ask the broker for the versions that it supports: the first request of a connection."""
        response = self._exchange(ApiVersionsRequest(**_SOFTWARE), _VERSIONS_WITH_FEATURES)
        if response.error_code == KafkaError.UNSUPPORTED_VERSION:
            response = self._exchange(ApiVersionsRequest(), 0)
        if response.error_code:
            raise RefusedRequestError(response.error_code)
        self._versions = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
        if response.finalized_features_epoch >= 0:
            self.features = {f.name: f.max_version_level for f in response.finalized_features or ()}

    def newest_version(self, api_key: int) -> int:
        """The newest version of a request that the broker knows; -1 where it doesn't know the request."""
        return self._versions.get(api_key, (0, -1))[1]

    def log_in(self, endpoint: Endpoint) -> None:
        if endpoint.login is None:
            return
        self.ask(SaslHandshakeRequest(mechanism=endpoint.login.mechanism))
        talk = conversation(endpoint.login)
        said = next(talk)
        while True:
            answer = self.ask(SaslAuthenticateRequest(auth_bytes=said))
            try:
                said = talk.send(answer.auth_bytes or b"")
            except StopIteration:
                return

    def _exchange(self, request: Any, version: int) -> Any:
        self._sent += 1
        request.with_header(correlation_id=self._sent, client_id=self._client_id)
        try:
            self._stream.sendall(request.encode(version=version, header=True, framed=True))
            (size,) = struct.unpack(">i", self._receive(4))
            if not 0 < size <= _LARGEST:
                raise NoConnectionError("the answer is not Kafka's: is security.protocol right?")
            data = self._receive(size)
        except OSError as error:
            raise NoConnectionError(f"the connection ended: {error}") from error
        (correlation,) = struct.unpack(">i", data[:4])
        if correlation != self._sent:
            raise NoConnectionError("the answer is not Kafka's: is security.protocol right?")
        try:
            return RESPONSES[type(request)].decode(bytes(data), version=version, header=True)
        except (ValueError, IndexError, struct.error) as error:
            raise NoConnectionError(f"the answer to {type(request).__name__} can't be read") from error

    def _receive(self, size: int) -> bytearray:
        data = bytearray(size)
        at = 0
        while at < size:
            count = self._stream.recv_into(memoryview(data)[at:])
            if not count:
                raise NoConnectionError("the broker closed the connection: is security.protocol right?")
            at += count
        return data


def connect(endpoint: Endpoint) -> BrokerConnection:
    """A connection that is logged in, to the first address that takes it; `NoConnectionError` where none does."""
    try:
        context = tls_context(endpoint.tls) if endpoint.tls is not None else None
    except (OSError, ValueError) as error:
        raise NoConnectionError(f"certificates or keys can't be used: {error}") from error
    failures: list[str] = []
    for host, port in endpoint.addresses:
        try:
            return _open(endpoint, host, port, context)
        except (OSError, NoConnectionError, LoginError) as error:
            failures.append(f"{host}:{port}: {error}")
        except RefusedRequestError as error:
            words = error.words or KafkaError(error.code).str()
            failures.append(f"{host}:{port}: {words}")
    raise NoConnectionError(_listed(failures))


def _open(endpoint: Endpoint, host: str, port: int, context: ssl.SSLContext | None) -> BrokerConnection:
    stream = socket.create_connection((host, port), timeout=endpoint.timeout)
    try:
        if context is not None:
            stream = context.wrap_socket(stream, server_hostname=host)
        broker = BrokerConnection(stream, endpoint.client_id)
        broker.learn_versions()
        broker.log_in(endpoint)
    except BaseException:
        stream.close()
        raise
    return broker


def _listed(failures: Sequence[str]) -> str:
    return "; ".join(failures) or "bootstrap.servers names no address"
