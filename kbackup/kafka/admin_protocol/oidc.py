"""Tokens of an OIDC provider by client credentials (RFC 6749, 4.4), as librdkafka's `sasl.oauthbearer.method=oidc` asks
for them."""

from __future__ import annotations

import base64
import json
import ssl
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit

from kbackup.kafka.admin_protocol.errors import LoginError
from kbackup.kafka.admin_protocol.tls import tls_context

_ID = ("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.credentials.client.id")
_SECRET = ("sasl.oauthbearer.client.secret", "sasl.oauthbearer.client.credentials.client.secret")
_URL = "sasl.oauthbearer.token.endpoint.url"
_SCOPE, _EXTENSIONS = "sasl.oauthbearer.scope", "sasl.oauthbearer.extensions"
_METHOD, _GRANT = "sasl.oauthbearer.method", "sasl.oauthbearer.grant.type"
_KNOWN = {*_ID, *_SECRET, _URL, _SCOPE, _EXTENSIONS, _METHOD, _GRANT}
_LARGEST = 1 << 20  # bytes of an answer


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
            token = json.loads(answer.read(_LARGEST))["access_token"]
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
