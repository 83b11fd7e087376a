"""The server's half of a SASL login: PLAIN (RFC 4616) and SCRAM (RFC 5802), for the users of a file.

A login that fails says the same, and takes as long, whether the user is unknown or the password is wrong. Nothing that
a client sends here is logged, not even its user: people type passwords there.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import secrets
from dataclasses import dataclass
from typing import Any

from kbackup.kafka.control.messages import (
    ApiVersionsRequest,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from kbackup.metrics.registry import counted
from kbackup.serve.protocol import Api, ClientConnection, ClientRequest, ErrorCode, HostileClientError
from kbackup.serve.seldom import Seldom
from kbackup.serve.users import SCRAM_MECHANISMS, ScramVerifier, Users, UsersFile, digest_of
from kbackup.util.text import name_values

log = logging.getLogger(__name__)

PLAIN = "PLAIN"
MECHANISMS = (*SCRAM_MECHANISMS, PLAIN)

FAILURE_SECONDS = 0.3
"""How long the answer to a login that fails takes: longer than any check, so that time tells nothing, and guessing is
slow."""

_CHECKS_AT_ONCE = 2
"""How many passwords are checked at a time: each takes some hundredths of a second of a core."""

_FAILURE_LOG_SECONDS = 60.0
"""How long further failures of an address are counted and not logged."""

_BEFORE_LOGIN = {ApiVersionsRequest.API_KEY, SaslHandshakeRequest.API_KEY, SaslAuthenticateRequest.API_KEY}

_SERVER_NONCE_BYTES = 18


class LoginFailedError(Exception):
    """A login that is refused. The client hears nothing of the reason."""


@dataclass(slots=True)
class LoginState:
    """What a login keeps between its messages. `exchange` is there between the two messages of SCRAM."""

    mechanism: str
    exchange: ScramExchange | None = None


@dataclass(frozen=True, slots=True)
class Admission:
    """What a user has logged in by."""

    user: str
    verifier: ScramVerifier


@dataclass(frozen=True, slots=True)
class ScramExchange:
    """The first half of a SCRAM login, and what its second half is checked by."""

    user: str
    verifier: ScramVerifier
    client_header: bytes
    client_first: str
    server_first: str
    nonce: str


class Logins:
    """Lets users of a file log in, and nobody else ask for anything."""

    def __init__(self, users: UsersFile) -> None:
        self._users = users
        self._secret = secrets.token_bytes(32)
        """Makes the salts of users that don't exist, the same one each time."""
        self._checks = asyncio.Semaphore(_CHECKS_AT_ONCE)
        self._logged = Seldom(_FAILURE_LOG_SECONDS)
        self.failures = 0

    def apis(self) -> list[Api]:
        """Return the requests that are answered here.

        Before version 1 of the handshake, messages of a login come without Kafka's frames: clients since Kafka 1.0
        need no such thing."""
        return [
            Api(SaslHandshakeRequest, SaslHandshakeResponse, 1, 1, self.handshake),
            Api(SaslAuthenticateRequest, SaslAuthenticateResponse, 0, 2, self.authenticate),
        ]

    def gate(self, request: ClientRequest) -> None:
        """Let a request pass. Raise `HostileClientError` if its client has yet to log in, as a broker does it."""
        if request.connection.principal is None and request.message.API_KEY not in _BEFORE_LOGIN:
            raise HostileClientError(f"{request.message.name} before a login")

    def is_locked_out(self, connection: ClientConnection) -> bool:
        """Return whether the user of a connection is no longer in the file, or has been given another password."""
        return isinstance(connection.login, Admission) and not self._is_current(connection.login)

    def _is_current(self, admission: Admission) -> bool:
        verifier = admission.verifier
        return self._users.users().get((verifier.mechanism, admission.user)) == verifier

    async def handshake(self, request: ClientRequest) -> Any:
        connection = request.connection
        mechanism = request.message.mechanism
        known = list(MECHANISMS)
        if connection.principal is not None or connection.login is not None:
            connection.closing = True
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=known)
        if mechanism not in MECHANISMS:
            return SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=known)
        connection.login = LoginState(mechanism)
        return SaslHandshakeResponse(mechanisms=known)

    async def authenticate(self, request: ClientRequest) -> Any:
        connection = request.connection
        state = connection.login
        if not isinstance(state, LoginState):
            connection.closing = True
            words = "SaslAuthenticate without a handshake before it"
            return SaslAuthenticateResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=words, auth_bytes=b""
            )
        begun = asyncio.get_running_loop().time()
        try:
            answer = await self._answer(connection, state, bytes(request.message.auth_bytes))
        except LoginFailedError:
            return await self._failure(connection, state.mechanism, begun)
        return SaslAuthenticateResponse(error_message=None, auth_bytes=answer, session_lifetime_ms=0)

    async def _answer(self, connection: ClientConnection, state: LoginState, message: bytes) -> bytes:
        """Return the server's next message. Raise `LoginFailedError` to end the login."""
        users = self._users.users()
        try:
            text = message.decode()
        except UnicodeDecodeError as error:
            raise LoginFailedError from error
        if state.mechanism == PLAIN:
            self._admit(connection, await self._check_plain(users, text))
            return b""
        if state.exchange is None:
            state.exchange = self._begin_scram(users, state.mechanism, text)
            return state.exchange.server_first.encode()
        answer = _finish_scram(state.exchange, text)
        self._admit(connection, Admission(state.exchange.user, state.exchange.verifier))
        return answer

    def _admit(self, connection: ClientConnection, admission: Admission) -> None:
        # The file may have changed since the login began.
        if not self._is_current(admission):
            raise LoginFailedError
        connection.principal = admission.user
        connection.login = admission

    async def _failure(self, connection: ClientConnection, mechanism: str, begun: float) -> Any:
        self.failures += 1
        counted.add("kbackup_serve_failed_logins_total")
        unlogged = self._logged.due(connection.host)
        if unlogged is not None:
            others = f"; {unlogged} others from there were not logged" if unlogged else ""
            log.warning("a login by %s from %s failed%s", mechanism, connection.host, others)
        passed = asyncio.get_running_loop().time() - begun
        await asyncio.sleep(max(0.0, FAILURE_SECONDS - passed))
        connection.closing = True
        # As a broker says it: clients and their users know these words.
        words = "Authentication failed during authentication due to invalid credentials with SASL mechanism"
        return SaslAuthenticateResponse(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=f"{words} {mechanism}", auth_bytes=b""
        )

    # PLAIN.

    async def _check_plain(self, users: Users, text: str) -> Admission:
        """Return the user whose password the message has."""
        authorized, _, rest = text.partition("\0")
        user, zero, password = rest.partition("\0")
        # Nobody may log in to be somebody else.
        is_whole = bool(zero) and authorized in ("", user)
        verifier: ScramVerifier | None = None
        for mechanism in SCRAM_MECHANISMS:
            verifier = users.get((mechanism, user), verifier)
        known = verifier is not None
        if verifier is None:
            # As much work as for a user that exists.
            verifier = self._made_up(users, SCRAM_MECHANISMS[-1], user)
        async with self._checks:
            fits = await asyncio.to_thread(verifier.fits, password)
        if not (fits and known and is_whole):
            raise LoginFailedError
        return Admission(user, verifier)

    # SCRAM.

    def _begin_scram(self, users: Users, mechanism: str, text: str) -> ScramExchange:
        header, first = _split_header(text)
        fields = name_values(first)
        client_nonce = fields.get("r", "")
        if not client_nonce or "n" not in fields:
            raise LoginFailedError
        user = fields["n"].replace("=2C", ",").replace("=3D", "=")
        # An unknown user gets an answer like everybody else, and fails at the end like a wrong password.
        verifier = users.get((mechanism, user)) or self._made_up(users, mechanism, user)
        nonce = client_nonce + secrets.token_urlsafe(_SERVER_NONCE_BYTES)
        salt = base64.b64encode(verifier.salt).decode()
        server_first = f"r={nonce},s={salt},i={verifier.iterations}"
        return ScramExchange(user, verifier, header.encode(), first, server_first, nonce)

    def _made_up(self, users: Users, mechanism: str, user: str) -> ScramVerifier:
        """Return a verifier that nothing fits, as a user of the file would have it."""
        like = next((each for (name, _), each in users.items() if name == mechanism), None)
        salt_bytes = 16 if like is None else len(like.salt)
        iterations = 4096 if like is None else like.iterations
        salt = hmac.digest(self._secret, f"{mechanism} {user}".encode(), "sha512")[:salt_bytes]
        size = hashlib.new(digest_of(mechanism)).digest_size
        return ScramVerifier(mechanism, iterations, salt, secrets.token_bytes(size), secrets.token_bytes(size))


def _split_header(text: str) -> tuple[str, str]:
    """Split a client's first message into its header and the rest. No channel of TLS is bound to a login here."""
    binding, _, rest = text.partition(",")
    _, comma, first = rest.partition(",")
    if binding not in ("n", "y") or not comma:
        raise LoginFailedError
    return text[: len(text) - len(first)], first


def _finish_scram(exchange: ScramExchange, text: str) -> bytes:
    """Check the client's proof; return the server's own."""
    unproven, comma, proof_text = text.rpartition(",p=")
    fields = name_values(unproven)
    try:
        proof = base64.b64decode(proof_text, validate=True)
        header = base64.b64decode(fields.get("c", ""), validate=True)
    except (ValueError, binascii.Error) as error:
        raise LoginFailedError from error
    verifier = exchange.verifier
    digest = verifier.digest
    signed = f"{exchange.client_first},{exchange.server_first},{unproven}".encode()
    signature = hmac.digest(verifier.stored_key, signed, digest)
    if len(proof) != len(signature):
        raise LoginFailedError
    client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
    fits = hmac.compare_digest(hashlib.new(digest, client_key).digest(), verifier.stored_key)
    if not comma or header != exchange.client_header or fields.get("r") != exchange.nonce or not fits:
        raise LoginFailedError
    proof_of_server = hmac.digest(verifier.server_key, signed, digest)
    return b"v=" + base64.b64encode(proof_of_server)
