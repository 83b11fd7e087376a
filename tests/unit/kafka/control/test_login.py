"""Logins against a broker's half written down here."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from kbackup.kafka.control.errors import LoginError
from kbackup.kafka.control.login import Login, conversation
from kbackup.kafka.control.tokens import TokenCache
from kbackup.kafka.oauth import OAuthToken

SALT, ROUNDS = b"a salt", 4096


def test_plain_sends_user_and_password_and_is_done() -> None:
    talk = conversation(Login(mechanism="PLAIN", user="größe", password="pässword"))
    assert next(talk) == "\0größe\0pässword".encode()
    with pytest.raises(StopIteration):
        talk.send(b"")


def test_a_bearer_token_is_sent_with_its_extensions() -> None:
    def token() -> OAuthToken:
        return OAuthToken("a.b.c", 2e9, extensions={"logicalCluster": "x"})

    login = Login(mechanism="OAUTHBEARER", token=TokenCache(token))
    talk = conversation(login)
    assert next(talk) == b"n,,\x01auth=Bearer a.b.c\x01logicalCluster=x\x01\x01"
    assert talk.send(b'{"status":"invalid_token"}') == b"\x01"


def server_final(digest: str, password: str, first: str, challenge: str, last: str) -> tuple[bytes, bytes]:
    """The proof that a client must give (RFC 5802), and the server's signature."""
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), SALT, ROUNDS)
    signed = f"{first},{challenge},{last}".encode()
    client = hmac.new(salted, b"Client Key", digest).digest()
    signature = hmac.new(hashlib.new(digest, client).digest(), signed, digest).digest()
    server = hmac.new(hmac.new(salted, b"Server Key", digest).digest(), signed, digest).digest()
    return bytes(a ^ b for a, b in zip(client, signature, strict=True)), server


@pytest.mark.parametrize(("mechanism", "digest"), [("SCRAM-SHA-256", "sha256"), ("SCRAM-SHA-512", "sha512")])
def test_scram_proves_the_password_and_checks_the_server(mechanism: str, digest: str) -> None:
    talk = conversation(Login(mechanism=mechanism, user="a=b,c", password="secret"))  # type: ignore[arg-type]
    first = next(talk).decode().removeprefix("n,,")
    assert first.startswith("n=a=3Db=2Cc,r=")
    nonce = first.rpartition("r=")[2] + "server"
    challenge = f"r={nonce},s={base64.b64encode(SALT).decode()},i={ROUNDS}"
    last, _, proof = talk.send(challenge.encode()).decode().rpartition(",p=")
    assert last == f"c=biws,r={nonce}"
    expected, server = server_final(digest, "secret", first, challenge, last)
    assert base64.b64decode(proof) == expected
    with pytest.raises(StopIteration):
        talk.send(b"v=" + base64.b64encode(server))


@pytest.mark.parametrize(
    "challenge", ["r=other,s=YQ==,i=4096", "nonsense", "r={nonce},s=YQ==,i=0", "r={nonce},s=YQ==,i=9999999"]
)
def test_a_broker_that_answers_to_another_login(challenge: str) -> None:
    talk = conversation(Login(mechanism="SCRAM-SHA-256", user="a", password="secret"))
    nonce = next(talk).decode().rpartition("r=")[2]
    with pytest.raises(LoginError):
        talk.send(challenge.format(nonce=nonce).encode())


def test_a_broker_that_does_not_know_the_user() -> None:
    talk = conversation(Login(mechanism="SCRAM-SHA-256", user="a", password="secret"))
    nonce = next(talk).decode().rpartition("r=")[2]
    talk.send(f"r={nonce}x,s=YQ==,i=4096".encode())
    with pytest.raises(LoginError, match="can't prove"):
        talk.send(b"v=" + base64.b64encode(b"x" * 32))
