"""Users of a file log in by PLAIN and SCRAM, and nobody else."""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from kbackup.kafka.control.login import Login, Mechanism, conversation
from kbackup.kafka.control.messages import (
    ApiVersionsRequest,
    MetadataRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from kbackup.metrics.registry import counted
from kbackup.serve.login import FAILURE_SECONDS, MECHANISMS, Logins
from kbackup.serve.protocol import ClientConnection, ClientRequest, HostileClientError
from kbackup.serve.users import UsersFile, write_user
from tests.unit.serve.asking import Asking, Clock, in_loop

PASSWORD = "correct horse, battery=staple"
SASL: list[Mechanism] = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> UsersFile:
    path = tmp_path_factory.mktemp("users") / "users"
    write_user(path, "anna", PASSWORD)
    write_user(path, "ben, the =other", PASSWORD)
    return UsersFile(path)


@pytest.fixture
def logins(users: UsersFile) -> Logins:
    return Logins(users)


async def log_in(
    logins: Logins, mechanism: Mechanism, user: str, password: str, version: int = 2, host: str = "127.0.0.1"
) -> tuple[ClientConnection, Any]:
    """Log in as kbackup's own client does. Return the connection, and the last answer."""
    ask = Asking(logins.apis())
    connection = ClientConnection(host)
    handshake = await ask(SaslHandshakeRequest(mechanism=mechanism), connection=connection)
    assert handshake.error_code == 0
    client = conversation(Login(mechanism=mechanism, user=user, password=password))
    message = next(client)
    while True:
        answer = await ask(SaslAuthenticateRequest(auth_bytes=message), version, connection)
        if answer.error_code:
            return connection, answer
        try:
            message = client.send(bytes(answer.auth_bytes))
        except StopIteration:
            return connection, answer


@pytest.mark.parametrize("mechanism", SASL)
@pytest.mark.parametrize("user", ["anna", "ben, the =other"])
def test_a_user_logs_in(logins: Logins, mechanism: Mechanism, user: str) -> None:
    async def scenario() -> None:
        for version in (0, 1, 2):
            connection, answer = await log_in(logins, mechanism, user, PASSWORD, version)
            assert answer.error_message is None
            assert connection.principal == user
            assert not connection.closing

    in_loop(scenario)


@pytest.mark.parametrize("mechanism", SASL)
@pytest.mark.parametrize(
    ("user", "password"), [("anna", "wrong"), ("anna", ""), ("nobody", PASSWORD), ("", PASSWORD)], ids=str
)
def test_everybody_else_hears_the_same_and_no_sooner(
    logins: Logins, caplog: pytest.LogCaptureFixture, mechanism: Mechanism, user: str, password: str
) -> None:
    caplog.set_level(logging.DEBUG, logger="kbackup")

    async def scenario() -> None:
        before = time.monotonic()
        connection, answer = await log_in(logins, mechanism, user, password)
        passed = time.monotonic() - before
        assert passed >= FAILURE_SECONDS
        assert answer.error_code == 58
        assert answer.error_message == (
            "Authentication failed during authentication due to invalid credentials with SASL mechanism " + mechanism
        )
        assert connection.principal is None
        assert connection.closing

    in_loop(scenario)
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("kbackup")]
    assert ours == [f"a login by {mechanism} from 127.0.0.1 failed"]


def test_failures_of_an_address_are_logged_once_in_a_while(
    logins: Logins, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbackup.serve.login.FAILURE_SECONDS", 0.0)
    clock = Clock()
    monkeypatch.setattr("kbackup.serve.seldom.time", clock)

    async def scenario() -> None:
        for _ in range(5):
            await log_in(logins, "PLAIN", "anna", "wrong")
        await log_in(logins, "PLAIN", "anna", "wrong", host="192.0.2.7")
        clock.now += 61
        await log_in(logins, "PLAIN", "anna", "wrong")

    in_loop(scenario)
    assert logins.failures == 7
    assert [record.getMessage() for record in caplog.records if record.name == "kbackup.serve.login"] == [
        "a login by PLAIN from 127.0.0.1 failed",
        "a login by PLAIN from 192.0.2.7 failed",
        "a login by PLAIN from 127.0.0.1 failed; 4 others from there were not logged",
    ]


def test_failed_logins_are_counted(logins: Logins) -> None:
    before = _failures()

    async def scenario() -> None:
        await asyncio.gather(*(log_in(logins, "PLAIN", "anna", str(number)) for number in range(3)))

    in_loop(scenario)
    assert logins.failures == 3
    assert _failures() == before + 3


def _failures() -> float:
    return counted.snapshot().values.get(("kbackup_serve_failed_logins_total", ()), 0)


def test_an_unknown_user_has_a_salt_like_everybody_else(logins: Logins) -> None:
    async def first_answer(user: str) -> dict[str, str]:
        ask = Asking(logins.apis())
        connection = ClientConnection("127.0.0.1")
        await ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), connection=connection)
        message = f"n,,n={user},r=nonce".encode()
        answer = await ask(SaslAuthenticateRequest(auth_bytes=message), connection=connection)
        return dict(field.split("=", 1) for field in bytes(answer.auth_bytes).decode().split(","))

    async def scenario() -> None:
        known = await first_answer("anna")
        unknown = await first_answer("nobody")
        again = await first_answer("nobody")
        assert unknown["s"] == again["s"], "a salt that changes would tell that the user is made up"
        assert unknown["i"] == known["i"]
        assert len(base64.b64decode(unknown["s"])) == len(base64.b64decode(known["s"]))

    in_loop(scenario)


@pytest.mark.parametrize(
    "message", [b"", b"\xff\xff", b"anna", b"\0anna", b"ben\0anna\0" + PASSWORD.encode(), b"\0\0\0\0"], ids=repr
)
def test_what_is_no_message_of_plain_fails(logins: Logins, message: bytes) -> None:
    _fails(logins, "PLAIN", message)


@pytest.mark.parametrize(
    "message",
    [b"", b"n,,", b"n,,n=anna", b"n,,r=nonce", b"p=tls-unique,,n=anna,r=nonce", b"n=anna,r=nonce", b"\xff"],
    ids=repr,
)
def test_what_is_no_first_message_of_scram_fails(logins: Logins, message: bytes) -> None:
    _fails(logins, "SCRAM-SHA-256", message)


def test_a_second_message_of_scram_that_is_not_of_this_login_fails(logins: Logins) -> None:
    async def scenario() -> None:
        for last in (b"", b"c=biws,r=other,p=AAAA", b"c=biws", b"p=####", b"c=####,r=x,p=AAAA"):
            ask = Asking(logins.apis())
            connection = ClientConnection("127.0.0.1")
            await ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), connection=connection)
            await ask(SaslAuthenticateRequest(auth_bytes=b"n,,n=anna,r=nonce"), connection=connection)
            answer = await ask(SaslAuthenticateRequest(auth_bytes=last), connection=connection)
            assert answer.error_code == 58

    in_loop(scenario)


def _fails(logins: Logins, mechanism: Mechanism, message: bytes) -> None:
    async def scenario() -> None:
        ask = Asking(logins.apis())
        connection = ClientConnection("127.0.0.1")
        await ask(SaslHandshakeRequest(mechanism=mechanism), connection=connection)
        answer = await ask(SaslAuthenticateRequest(auth_bytes=message), connection=connection)
        assert answer.error_code == 58
        assert connection.principal is None

    in_loop(scenario)


_SCRAM_TEXTS = st.lists(
    st.sampled_from(["n,,", "y,,", "n=anna", "r=nonce", "c=biws", "p=AAAA", ",p=AAAA", "=", ",", "p=", "r=", "é", "\0"])
).map("".join)


@settings(deadline=None)
@given(
    mechanism=st.sampled_from(SASL),
    messages=st.lists(st.binary(max_size=50) | _SCRAM_TEXTS.map(str.encode), min_size=1, max_size=3),
)
def test_whatever_else_a_client_sends_is_no_login(
    users: UsersFile, mechanism: Mechanism, messages: list[bytes]
) -> None:
    async def scenario() -> None:
        ask = Asking(Logins(users).apis())
        connection = ClientConnection("127.0.0.1")
        await ask(SaslHandshakeRequest(mechanism=mechanism), connection=connection)
        for message in messages:
            answer = await ask(SaslAuthenticateRequest(auth_bytes=message), connection=connection)
            assert connection.principal is None
            if answer.error_code:
                assert connection.closing
                return

    with mock.patch("kbackup.serve.login.FAILURE_SECONDS", 0.0):
        in_loop(scenario)


def test_an_unknown_mechanism_is_answered_with_the_known_ones(logins: Logins) -> None:
    async def scenario() -> None:
        answer = await Asking(logins.apis())(SaslHandshakeRequest(mechanism="GSSAPI"))
        assert answer.error_code == 33
        assert answer.mechanisms == list(MECHANISMS)

    in_loop(scenario)


def test_a_login_without_a_handshake_ends_the_connection(logins: Logins) -> None:
    async def scenario() -> None:
        connection = ClientConnection("127.0.0.1")
        answer = await Asking(logins.apis())(SaslAuthenticateRequest(auth_bytes=b"\0a\0b"), connection=connection)
        assert answer.error_code == 34
        assert connection.closing

    in_loop(scenario)


def test_who_has_logged_in_does_not_log_in_again(logins: Logins) -> None:
    async def scenario() -> None:
        connection, _ = await log_in(logins, "PLAIN", "anna", PASSWORD)
        answer = await Asking(logins.apis())(SaslHandshakeRequest(mechanism="PLAIN"), connection=connection)
        assert answer.error_code == 34
        assert connection.closing

    in_loop(scenario)


def test_before_a_login_only_what_leads_to_one_is_answered(logins: Logins) -> None:
    connection = ClientConnection("127.0.0.1")
    for message in (ApiVersionsRequest(), SaslHandshakeRequest(), SaslAuthenticateRequest()):
        logins.gate(ClientRequest(message, 0, connection))
    metadata = ClientRequest(MetadataRequest(), 0, connection)
    with pytest.raises(HostileClientError, match="MetadataRequest before a login"):
        logins.gate(metadata)
    connection.principal = "anna"
    logins.gate(metadata)


def test_a_new_user_may_log_in_at_once(tmp_path: Path) -> None:
    path = tmp_path / "users"
    write_user(path, "anna", PASSWORD)
    logins = Logins(UsersFile(path))

    async def scenario() -> None:
        write_user(path, "ben", "other")
        connection, _ = await log_in(logins, "SCRAM-SHA-512", "ben", "other")
        assert connection.principal == "ben"

    in_loop(scenario)


@pytest.mark.parametrize("mechanism", SASL)
def test_a_user_who_is_gone_or_has_another_password_is_locked_out(tmp_path: Path, mechanism: Mechanism) -> None:
    path = tmp_path / "users"
    for name in ("anna", "ben", "carl"):
        write_user(path, name, PASSWORD)
    logins = Logins(UsersFile(path))

    async def scenario() -> None:
        connections = [(await log_in(logins, mechanism, name, PASSWORD))[0] for name in ("anna", "ben", "carl")]
        connections.append(ClientConnection("127.0.0.1"))
        assert [logins.is_locked_out(each) for each in connections] == [False] * 4
        write_user(path, "ben", "another")
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if not line.startswith("anna ")))
        assert [logins.is_locked_out(each) for each in connections] == [True, True, False, False]

    in_loop(scenario)


def test_a_login_that_began_before_a_password_changed_fails(tmp_path: Path) -> None:
    path = tmp_path / "users"
    write_user(path, "anna", PASSWORD)
    logins = Logins(UsersFile(path))

    async def scenario() -> None:
        ask = Asking(logins.apis())
        connection = ClientConnection("127.0.0.1")
        await ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), connection=connection)
        client = conversation(Login(mechanism="SCRAM-SHA-256", user="anna", password=PASSWORD))
        first = await ask(SaslAuthenticateRequest(auth_bytes=next(client)), connection=connection)
        write_user(path, "anna", "another")
        last = await ask(
            SaslAuthenticateRequest(auth_bytes=client.send(bytes(first.auth_bytes))), connection=connection
        )
        assert last.error_code == 58
        assert connection.principal is None

    in_loop(scenario)
