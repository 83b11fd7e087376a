"""Tokens for OAUTHBEARER: from a function of the user's, or signed by nobody. Those of a provider are in `oidc`.

No error holds a secret.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable, Mapping

from kbackup.kafka.client import Connection
from kbackup.kafka.control.errors import LoginError, UnsupportedSettingError
from kbackup.kafka.oauth import OAuthToken

TokenSource = Callable[[], OAuthToken]
"""Makes a token. Raises `LoginError`, without a secret in its text, where it can't."""

_SPENT = 0.8
"""The part of a token's lifetime after which another one is asked for, as librdkafka does."""


class TokenCache:
    """Keeps a token while it is fresh: a cluster has many brokers, and a provider counts who asks it how often."""

    def __init__(self, source: TokenSource) -> None:
        self._source = source
        self._token: OAuthToken | None = None
        self._spent_at = 0.0

    def __call__(self) -> OAuthToken:
        now = time.time()
        if self._token is None or now >= self._spent_at:
            self._token = self._source()
            self._spent_at = now + _SPENT * (self._token.expires - now)
        return self._token

    def forget(self) -> None:
        """Ask for another token the next time: a broker has refused this one."""
        self._token = None


def user_tokens(connection: Connection) -> TokenSource | None:
    """Return the user's own function for tokens, None if there is none."""
    tokens = connection.tokens
    if tokens is None:
        return None

    def token() -> OAuthToken:
        try:
            return tokens(connection.properties.get("sasl.oauthbearer.config", ""))
        except Exception:  # noqa: BLE001 (it is the user's function, and what it raised may hold a secret)
            raise LoginError(f"no token: {tokens.failure}") from None

    return token


# Tokens that nobody signs, for tests: librdkafka's `enable.sasl.oauthbearer.unsecure.jwt`.

_CONFIG = "sasl.oauthbearer.config"
_NAMES = "principalClaimName|principal|scopeClaimName|scope|lifeSeconds|extension_[A-Za-z]+"
_ENTRY = re.compile(rf"(?P<name>{_NAMES})=(?P<value>.*)")
_LIFE_SECONDS = 3600


def unsigned_token(config: str) -> TokenSource:
    """Return what makes tokens by `sasl.oauthbearer.config`, which has entries such as `principal=admin scope=a,b`.
    Raise `UnsupportedSettingError` where librdkafka would refuse it."""
    entries: dict[str, str] = {}
    for word in config.split(" "):
        if not word:
            continue
        entry = _ENTRY.fullmatch(word)
        if entry is None:
            raise UnsupportedSettingError(f"{_CONFIG} has an entry that is not name=value with a name known")
        if entry["name"] in entries or not entry["value"]:
            raise UnsupportedSettingError(f"{_CONFIG} names {entry['name']} twice, or without a value")
        entries[entry["name"]] = entry["value"]
    life = entries.get("lifeSeconds", str(_LIFE_SECONDS))
    if "principal" not in entries or not life.isdecimal() or int(life) == 0:
        raise UnsupportedSettingError(f"{_CONFIG} takes principal=<value>, and for lifeSeconds a number")

    def token() -> OAuthToken:
        return _unsigned(entries, int(life))

    return token


def _unsigned(entries: Mapping[str, str], life: int) -> OAuthToken:
    # A broker refuses a token that is issued after its own clock. It counts whole milliseconds and rounds those of the
    # token up: a fraction of a second could be ahead of it on one machine.
    now = int(time.time())
    claims: dict[str, object] = {
        entries.get("principalClaimName", "sub"): entries["principal"],
        "iat": now,
        "exp": now + life,
    }
    scope = [each for each in entries.get("scope", "").split(",") if each]
    if scope:
        claims[entries.get("scopeClaimName", "scope")] = [*dict.fromkeys(scope)]
    extensions: dict[str, str] = {}
    for name, value in entries.items():
        if name.startswith("extension_"):
            extensions[name.removeprefix("extension_")] = value
    # A signature would follow the second dot.
    value = f"{jose({'alg': 'none'})}.{jose(claims)}."
    return OAuthToken(value, now + life, entries["principal"], extensions)


def jose(part: Mapping[str, object]) -> str:
    """Return a part of a token as tokens hold it: JSON in base64 without padding (RFC 7515)."""
    return jose_bytes(json.dumps(part, separators=(",", ":")).encode())


def jose_bytes(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
