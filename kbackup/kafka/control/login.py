"""The client's half of a SASL login: PLAIN (RFC 4616), SCRAM (RFC 5802) and OAUTHBEARER (RFC 7628).

kafka-python's logins are not used: they log passwords and tokens, and its SCRAM fails for users with a comma or an
equals sign in the name.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Literal

from kbackup.kafka.control.errors import LoginError
from kbackup.kafka.control.tokens import TokenCache
from kbackup.util.text import name_values

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]


@dataclass(frozen=True, kw_only=True)
class Login:
    """The credentials that a client logs in with."""

    mechanism: Mechanism
    user: str = ""
    password: str = field(default="", repr=False)
    token: TokenCache | None = field(default=None, repr=False)


Conversation = Generator[bytes, bytes, None]
"""Yields the client's messages, and takes the broker's answers."""

_MOST_ITERATIONS = 1_000_000  # half a second; Kafka's own users have 4,096 to 16,384


def conversation(login: Login) -> Conversation:
    """Return the client's half of a login. It raises `LoginError` if the broker's half is not what it must be."""
    if login.mechanism == "PLAIN":
        yield b"\0" + login.user.encode() + b"\0" + login.password.encode()
    elif login.mechanism == "OAUTHBEARER":
        if login.token is None:
            raise LoginError("no function gives a token")
        token = login.token()
        pairs = "".join(f"\x01{name}={value}" for name, value in token.extensions.items())
        refusal = yield f"n,,\x01auth=Bearer {token.value}{pairs}\x01\x01".encode()
        if refusal:
            # The broker says why only when the refusal is acknowledged (RFC 7628, 3.2.3).
            yield b"\x01"
    else:
        yield from _scram(login, login.mechanism.removeprefix("SCRAM-").replace("-", "").lower())


def _scram(login: Login, digest: str) -> Conversation:
    """`digest` is the name of a hash in `hashlib`."""
    # In this order: the second puts in an equals sign of its own.
    user = login.user.replace("=", "=3D").replace(",", "=2C")
    nonce = secrets.token_hex(16)
    first = f"n={user},r={nonce}"
    answer = (yield f"n,,{first}".encode()).decode()
    challenge = name_values(answer)
    if not challenge.get("r", "").startswith(nonce) or not {"s", "i"} <= challenge.keys():
        raise LoginError("the broker's answer to a SCRAM login is not one to this login")
    iterations = int(challenge["i"])
    # Before any are made: a hostile broker could keep us at work for hours.
    if not 0 < iterations <= _MOST_ITERATIONS:
        raise LoginError(f"the broker asks for {iterations} iterations")
    salt = base64.b64decode(challenge["s"])
    salted = hashlib.pbkdf2_hmac(digest, login.password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", digest)
    stored_key = hashlib.new(digest, client_key).digest()
    # "biws" is "n,," in base64, as the first message begins: the login is not bound to a channel of TLS.
    last = f"c=biws,r={challenge['r']}"
    signed = f"{first},{answer},{last}".encode()
    signature = hmac.digest(stored_key, signed, digest)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    proof_text = base64.b64encode(proof).decode()
    final = yield f"{last},p={proof_text}".encode()
    verdict = name_values(final.decode())
    # The broker has to prove that it knows the user, too: else anybody could take our requests.
    server_key = hmac.digest(salted, b"Server Key", digest)
    expected = hmac.digest(server_key, signed, digest)
    proven = base64.b64decode(verdict.get("v", ""))
    if not hmac.compare_digest(proven, expected):
        raise LoginError("the broker can't prove that it knows the SCRAM user")
