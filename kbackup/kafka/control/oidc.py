"""Tokens of an OIDC provider, as librdkafka's `sasl.oauthbearer.method=oidc` asks for them.

A provider is asked by client credentials (RFC 6749, 4.4), or by an assertion that we sign or a file holds (RFC 7523).
On a machine of Azure's, the machine's own metadata service gives a token. No error holds a secret.
"""

from __future__ import annotations

import base64
import binascii
import json
import time
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit

from kbackup.kafka.control.errors import LoginError, UnsupportedSettingError
from kbackup.kafka.control.tls import private_key, tls_context
from kbackup.kafka.control.tokens import TokenSource, jose, jose_bytes
from kbackup.kafka.control.values import is_true, number_of
from kbackup.kafka.oauth import OAuthToken

_OAUTH = "sasl.oauthbearer."
_ID = f"{_OAUTH}client.id"
_SECRET = f"{_OAUTH}client.secret"
_CREDENTIALS = f"{_OAUTH}client.credentials.client"
"""Where the aliases of both begin."""

_URL = f"{_OAUTH}token.endpoint.url"
_SCOPE = f"{_OAUTH}scope"
_EXTENSIONS = f"{_OAUTH}extensions"
_SUBJECT = f"{_OAUTH}sub.claim.name"
_GRANT = f"{_OAUTH}grant.type"
_MACHINE = f"{_OAUTH}metadata.authentication.type"
_ASSERTION = f"{_OAUTH}assertion"
_CLAIM = f"{_ASSERTION}.claim"
_KEY = f"{_ASSERTION}.private.key"

OIDC_PROPERTIES = {
    *(_ID, _SECRET, f"{_CREDENTIALS}.id", f"{_CREDENTIALS}.secret"),
    *(_URL, _SCOPE, _EXTENSIONS, _SUBJECT, _GRANT, _MACHINE),
    *(f"{_ASSERTION}.file", f"{_ASSERTION}.algorithm", f"{_ASSERTION}.jwt.template.file"),
    *(f"{_KEY}.file", f"{_KEY}.pem", f"{_KEY}.passphrase"),
    *(f"{_CLAIM}.aud", f"{_CLAIM}.iss", f"{_CLAIM}.sub"),
    *(f"{_CLAIM}.exp.seconds", f"{_CLAIM}.nbf.seconds", f"{_CLAIM}.jti.include"),
    *("https.ca.location", "https.ca.pem"),
}
"""The properties that `provider_of` follows."""

_CLIENT_CREDENTIALS = "client_credentials"
_JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_AZURE = "azure_imds"
_AZURE_URL = "http://169.254.169.254/metadata/identity/oauth2/token"
_LARGEST_TOKEN = 1 << 20  # bytes of an answer
_SHORT_LIFE = 60.0  # s: how long a token is kept that doesn't say when it expires
_TEMPORARY = (408, 425, 429, 500, 502, 503, 504)
"""Answers of a provider after which librdkafka asks again, too."""

_PAUSES = (0.5, 1.0, 2.0)  # s, before a provider is asked again


def provider_of(properties: Mapping[str, str], timeout: float) -> TokenSource:
    """Return what asks the provider. Raise `UnsupportedSettingError` for settings that can't be followed."""
    machine = properties.get(_MACHINE, "none").lower()
    if machine not in ("none", _AZURE):
        raise UnsupportedSettingError(f"{_MACHINE} {machine} is not supported")
    grant = properties.get(_GRANT, _CLIENT_CREDENTIALS).lower()
    if grant not in (_CLIENT_CREDENTIALS, _JWT_BEARER):
        raise UnsupportedSettingError(f"{_GRANT} {grant} is not supported")
    assertion_file = f"{_ASSERTION}.file"
    for key in (f"{_KEY}.file", f"{_KEY}.pem"):
        if assertion_file in properties and key in properties:
            raise UnsupportedSettingError(f"{assertion_file} excludes {key}")
    aliases = ((_ID, f"{_CREDENTIALS}.id"), (_SECRET, f"{_CREDENTIALS}.secret"))
    for name, alias in aliases:
        missing = not properties.get(name, properties.get(alias))
        if missing and machine == "none" and grant == _CLIENT_CREDENTIALS:
            raise UnsupportedSettingError(f"{_OAUTH}method oidc takes {name}")
    if machine == "none" and urlsplit(properties.get(_URL, "")).scheme not in ("http", "https"):
        raise UnsupportedSettingError(f"{_URL} is no address of the web")

    def token() -> OAuthToken:
        return fetch_token(properties, timeout)

    return token


def fetch_token(properties: Mapping[str, str], timeout: float) -> OAuthToken:
    """Return a token. Raise `LoginError`, without a secret in its text, where there is none."""
    request = _request(properties)
    # The authorities are loaded only for an address that has TLS.
    secured = [_trusted(properties)] if request.type == "https" else []
    answer = _asked(request, secured, timeout)
    try:
        value = answer.get("access_token") or answer["id_token"]
    except (KeyError, TypeError, AttributeError):
        host = urlsplit(properties.get(_URL, _AZURE_URL)).hostname
        raise LoginError(f"no token: the answer of {host} holds none") from None
    claims = _claims(str(value))
    subject = claims.get(properties.get(_SUBJECT, "sub"))
    extensions: dict[str, str] = {}
    for pair in properties.get(_EXTENSIONS, "").split(","):
        if pair:
            name, _, text = pair.partition("=")
            extensions[name.strip()] = text.strip()
    return OAuthToken(str(value), _expiry(claims, answer), str(subject or ""), extensions)


def _expiry(claims: Mapping[str, Any], answer: Mapping[str, Any]) -> float:
    """Return when a token expires: the token itself says it, or the answer that it came with."""
    now = time.time()
    in_token = _number(claims.get("exp"))
    if in_token > now:
        return in_token
    in_answer = now + _number(answer.get("expires_in"))
    if in_answer > now:
        return in_answer
    return now + _SHORT_LIFE


def _number(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        return 0.0


def _claims(token: str) -> Mapping[str, Any]:
    """Return the claims of a token. A token that only its provider can read has none for us."""
    _, _, rest = token.partition(".")
    payload = rest.partition(".")[0]
    padding = "=" * (-len(payload) % 4)
    try:
        claims = json.loads(base64.urlsafe_b64decode(payload + padding))
    except (ValueError, binascii.Error, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


# What a provider is asked, and how.


def _request(properties: Mapping[str, str]) -> urllib.request.Request:
    if properties.get(_MACHINE, "none").lower() == _AZURE:
        return _azure_request(properties)
    form = {"grant_type": properties.get(_GRANT, _CLIENT_CREDENTIALS).lower()}
    headers = {"Accept": "application/json"}
    if form["grant_type"] == _JWT_BEARER:
        form["assertion"] = _assertion(properties)
    else:
        user = properties.get(_ID, properties.get(f"{_CREDENTIALS}.id", ""))
        secret = properties.get(_SECRET, properties.get(f"{_CREDENTIALS}.secret", ""))
        basic = base64.b64encode(f"{user}:{secret}".encode()).decode()
        headers["Authorization"] = f"Basic {basic}"
    if scope := properties.get(_SCOPE):
        form["scope"] = scope
    data = urlencode(form).encode()
    return urllib.request.Request(properties[_URL], data=data, headers=headers)  # noqa: S310 (the scheme was checked)


def _azure_request(properties: Mapping[str, str]) -> urllib.request.Request:
    """Return the question to the metadata service of a machine; `query=` of the config goes into its address."""
    url = properties.get(_URL, _AZURE_URL)
    for pair in properties.get("sasl.oauthbearer.config", "").split(","):
        name, _, query = pair.strip().partition("=")
        if name == "query" and query:
            joint = "&" if "?" in url else "?"
            url = f"{url}{joint}{query}"
    return urllib.request.Request(url, headers={"Metadata": "true"})  # noqa: S310 (an address of the user's)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: the server redirected to would get the secret too."""

    def redirect_request(self, *request: object) -> None:
        return None


def _trusted(properties: Mapping[str, str]) -> urllib.request.HTTPSHandler:
    trusted = {}
    for name in ("ca.location", "ca.pem"):
        if f"https.{name}" in properties:
            trusted[f"ssl.{name}"] = properties[f"https.{name}"]
    try:
        return urllib.request.HTTPSHandler(context=tls_context(trusted))
    except UnsupportedSettingError as error:
        raise LoginError(f"no token: {error}") from error


def _asked(
    request: urllib.request.Request, handlers: Sequence[urllib.request.HTTPSHandler], timeout: float
) -> Mapping[str, Any]:
    """Return the answer of a provider, which is asked again where it is only busy."""
    opener = urllib.request.build_opener(*handlers, _NoRedirects)
    host = urlsplit(request.full_url).hostname
    pauses = iter(_PAUSES)
    while True:
        try:
            with opener.open(request, timeout=timeout) as answer:
                found: Mapping[str, Any] = json.loads(answer.read(_LARGEST_TOKEN))
                return found
        except HTTPError as error:
            code = error.code
            error.close()
        except (OSError, HTTPException) as error:
            raise LoginError(f"no token: {host} did not answer: {error}") from None
        except (ValueError, RecursionError):
            raise LoginError(f"no token: the answer of {host} holds none") from None
        pause = next(pauses, None)
        if code not in _TEMPORARY or pause is None:
            raise LoginError(f"no token: {host} answered {code}")
        time.sleep(pause)


# An assertion of our own: a token that we sign, by which the provider knows us.


def _assertion(properties: Mapping[str, str]) -> str:
    try:
        if file := properties.get(f"{_ASSERTION}.file"):
            return Path(file).read_text().strip()
        return _signed(properties)
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        # What was read is not shown: it may be a key.
        raise LoginError(f"no token: the assertion can't be made ({type(error).__name__})") from None


def _signed(properties: Mapping[str, str]) -> str:
    now = int(time.time())
    header: dict[str, object] = {}
    claims: dict[str, object] = {}
    if file := properties.get(f"{_ASSERTION}.jwt.template.file"):
        template = json.loads(Path(file).read_text())
        header.update(template["header"])
        claims.update(template["payload"])
    algorithm = properties.get(f"{_ASSERTION}.algorithm", "RS256")
    header |= {"alg": algorithm, "typ": "JWT"}
    claims |= {
        "iat": now,
        "exp": now + number_of(properties, f"{_CLAIM}.exp.seconds", 300),
        "nbf": now - number_of(properties, f"{_CLAIM}.nbf.seconds", 60),
    }
    for name in ("sub", "iss", "aud"):
        if value := properties.get(f"{_CLAIM}.{name}"):
            claims[name] = value
    if is_true(properties, f"{_CLAIM}.jti.include", default=False):
        claims["jti"] = str(uuid.uuid4())
    unsigned = f"{jose(header)}.{jose(claims)}"
    signature = _signature(properties, unsigned.encode())
    return f"{unsigned}.{jose_bytes(signature)}"


def _signature(properties: Mapping[str, str], text: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA256

    location = properties.get(f"{_KEY}.file")
    pem = Path(location).read_bytes() if location else properties[f"{_KEY}.pem"].encode()
    key = private_key(pem, properties.get(f"{_KEY}.passphrase", ""))
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(text, padding.PKCS1v15(), SHA256())
    if isinstance(key, ec.EllipticCurvePrivateKey):
        # Two numbers of 32 bytes (RFC 7518, 3.4), not the structure that OpenSSL makes of them.
        signature = key.sign(text, ec.ECDSA(SHA256()))
        first, second = decode_dss_signature(signature)
        return first.to_bytes(32, "big") + second.to_bytes(32, "big")
    raise ValueError("a key for RS256 or ES256 is needed")
