"""Functions for `kbackup.oauth.callback`: tokens that nobody signed. `sasl.oauthbearer.config` is who it is for, and a
secret that goes into the token."""

from __future__ import annotations

import base64
import json
import time

LIFE = 600.0  # s


def good(config: str) -> tuple[str, float]:
    return _token(config, time.time() + LIFE), time.time() + LIFE


def out_of_date(config: str) -> tuple[str, float]:
    """Return an expired token, as of a function that caches its token for too long."""
    return _token(config, time.time() - 60), time.time() - 60


def lying(config: str) -> tuple[str, float]:
    """A token that the broker finds to be out of date."""
    return _token(config, time.time() - 60), time.time() + LIFE


def failing(config: str) -> tuple[str, float]:
    raise PermissionError(f"the identity provider says no to {config}")


def strange(config: str) -> str:
    return config


def _token(config: str, expires: float) -> str:
    user, secret = config.split()
    # Whole seconds: the broker rounds a fraction up, and refuses a token that comes before its time.
    claims = {"sub": user, "iat": int(expires - LIFE), "exp": int(expires), "note": secret}
    return f"{_part({'alg': 'none'})}.{_part(claims)}."


def _part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")
