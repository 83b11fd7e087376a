"""OAUTHBEARER tokens from a function of the user's, which a property names."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from kbackup.errors import UsageError
from kbackup.native.property_check import CALLBACK

_SHAPE = "(token, expiry in seconds since the epoch[, principal[, extensions]])"


class OAuthToken(NamedTuple):
    """`expires` in seconds since the epoch; `extensions` are SASL extensions (RFC 7628)."""

    value: str
    expires: float
    principal: str = ""
    extensions: Mapping[str, str] = {}


class Tokens:
    """Calls the user's function with `sasl.oauthbearer.config`, as confluent-kafka calls an `oauth_cb`.

    `failure` is why the last call gave no usable token, '' if it gave one. Tokens are never shown.
    """

    def __init__(self, name: str, role: str) -> None:
        self.name = name
        self.failure = ""
        module, _, function = name.partition(":")
        hint = f"name an importable module:function that returns {_SHAPE}"
        try:
            self._function = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError, ValueError) as error:
            raise UsageError(f"[{role}] {CALLBACK} = {name!r} can't be found: {error}", hint) from error
        if not callable(self._function):
            raise UsageError(f"[{role}] {CALLBACK} = {name!r} is no function", hint)

    def __call__(self, config: str) -> OAuthToken:
        """Return a token. Raises what the function raises, and `ValueError` for an answer that is no token."""
        try:
            token = _token_of(self._function(config))
        except Exception as error:
            words = str(error)
            if config:
                # The config may hold the client's secret, and an error may repeat it.
                words = words.replace(config, "…")
            self.failure = f"{self.name} raised {type(error).__name__}: {words}"
            raise
        self.failure = ""
        return token


def _token_of(answer: Any) -> OAuthToken:
    try:
        token = OAuthToken(*answer)
        is_token = bool(token.value) and isinstance(token.value, str) and isinstance(token.principal, str)
        remaining = float(token.expires) - time.time()
    except (TypeError, ValueError):
        is_token = False
    if not is_token:
        raise ValueError(f"its answer is not {_SHAPE}")
    if remaining <= 0:
        raise ValueError(f"its token expired {-remaining:.0f} s ago")
    return token
