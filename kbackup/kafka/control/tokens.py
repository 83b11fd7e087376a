"""Tokens for OAUTHBEARER: from a function of the user's, from an OIDC provider, or unsigned.

A provider is asked by client credentials (RFC 6749, 4.4), as librdkafka's `sasl.oauthbearer.method=oidc` asks. No error
holds a secret.
"""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit

from kbackup.kafka.client import Connection
from kbackup.kafka.control.errors import LoginError, UnsupportedSettingError
from kbackup.kafka.control.tls import tls_context

TokenSource = Callable[[], tuple[str, Mapping[str, str]]]
"""Makes a token, and its SASL extensions. Raises `LoginError`, without a secret in its text, where it can't."""


def user_tokens(connection: Connection) -> TokenSource | None:
    """Return the user's own function for tokens, None if there is none."""
    tokens = connection.tokens
    if tokens is None:
        return None

    def token() -> tuple[str, Mapping[str, str]]:
        try:
            made = tokens(connection.properties.get("sasl.oauthbearer.config", ""))
        except Exception:  # noqa: BLE001 (it is the user's function, and what it raised may hold a secret)
            raise LoginError(f"no token: {tokens.failure}") from None
        return made.value, made.extensions

    return token


_ID = ("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.credentials.client.id")
_SECRET = ("sasl.oauthbearer.client.secret", "sasl.oauthbearer.client.credentials.client.secret")
_URL = "sasl.oauthbearer.token.endpoint.url"
_SCOPE, _EXTENSIONS = "sasl.oauthbearer.scope", "sasl.oauthbearer.extensions"
_METHOD, _GRANT = "sasl.oauthbearer.method", "sasl.oauthbearer.grant.type"
_KNOWN = {*_ID, *_SECRET, _URL, _SCOPE, _EXTENSIONS, _METHOD, _GRANT}
_LARGEST_TOKEN = 1 << 20  # bytes of an answer


def token_source(properties: Mapping[str, str], timeout: float) -> TokenSource:
    if properties.get(_METHOD, "").lower() != "oidc":
        raise UnsupportedSettingError("tokens that nobody signs are made by librdkafka alone")
    unknown = [name for name in properties if name.startswith("sasl.oauthbearer.") and name not in _KNOWN]
    if properties.get(_GRANT, "client_credentials").lower() != "client_credentials":
        unknown = [_GRANT]
    if unknown:
        raise UnsupportedSettingError(f"{unknown[0]} works in librdkafka alone")
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
