"""Options, logins and errors of Google Cloud Storage become kbackup's errors with hints."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any, cast

import pytest
import requests
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from google.auth.exceptions import DefaultCredentialsError, RefreshError, TransportError

from kbackup.errors import (
    CorruptError,
    DeniedError,
    KbackupError,
    NotFoundError,
    PreconditionError,
    StoreError,
    UnreachableError,
    UsageError,
)
from kbackup.store import open_store
from kbackup.store.base import write_once
from kbackup.store.gcs import GcsOptions
from kbackup.store.gcs.client import GcsBucket, from_answer, from_failure


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"part_size": 100 << 10}, "part size"),
        ({"part_size": (1 << 20) + 1}, "part size"),
        ({"part_size": 1 << 30}, "part size"),
        ({"max_attempts": 0}, "attempts"),
        ({"retention_mode": "Locked"}, "retention"),
        ({"retention_days": 3}, "retention"),
        ({"endpoint_url": "https://me:word@host"}, "credentials"),
        ({"endpoint_url": "host:4443"}, "endpoint"),
    ],
)
def test_options_that_can_not_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        GcsOptions(**options)
    assert caught.value.hint
    assert "word" not in str(caught.value)


@pytest.mark.parametrize("url", ["gs://", "gs:///prefix", "gs://me:secret@bucket/prefix"])
def test_addresses_that_can_not_be(url: str) -> None:
    with pytest.raises(UsageError, match="names no bucket"):
        open_store(url)


def test_addresses_of_one_place_are_equal() -> None:
    google, emulator = open_store("gs://b/p/"), open_store("gs://b/p", {"gcs": GcsOptions(endpoint_url="http://x:1")})
    assert google.address == open_store("gs://b/p").address == pickle.loads(pickle.dumps(google)).address
    assert google.address != emulator.address
    assert open_store("gs://b").address.holds(google.address)


@pytest.mark.parametrize(
    ("endpoint", "host", "file", "address", "anonymous"),
    [
        ("", "", "", "https://storage.googleapis.com", False),
        ("", "localhost:4443", "", "http://localhost:4443", True),
        ("", "https://localhost:4443/", "", "https://localhost:4443", True),
        ("", "http://localhost:4443", "me.json", "http://localhost:4443", False),
        ("https://storage.mine.example", "http://localhost:4443", "", "https://storage.mine.example", False),
        ("http://127.0.0.1:1", "", "", "http://127.0.0.1:1", True),
    ],
)
def test_an_emulator_needs_no_login(
    endpoint: str, host: str, file: str, address: str, anonymous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", host)
    bucket = GcsBucket("b", "", GcsOptions(endpoint_url=endpoint, credentials_file=file), write_once)
    assert (bucket._endpoint, bucket._anonymous) == (address, anonymous)


DEFAULT, REFRESH, TRANSPORT = (cast(Any, kind) for kind in (DefaultCredentialsError, RefreshError, TransportError))
SKEWED = (
    "invalid_grant: Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe. Check "
    "your iat and exp values in the JWT claim."
)


@pytest.mark.parametrize(
    ("failed", "kind", "hint"),
    [
        (DEFAULT("Your default credentials were not found."), DeniedError, "gcloud auth"),
        (REFRESH("invalid_grant: Invalid JWT Signature.", {}), DeniedError, "make a new key"),
        (REFRESH(SKEWED, {}), DeniedError, "clock"),
        (REFRESH("invalid_grant: Token has been expired or revoked.", {}), DeniedError, "login again"),
        (TRANSPORT("no route"), UnreachableError, "network"),
        (requests.exceptions.SSLError("CERTIFICATE_VERIFY_FAILED"), UnreachableError, "gcs.ca_bundle"),
        (requests.ConnectionError("dropped"), UnreachableError, "network"),
        (OSError("Could not find a suitable TLS CA certificate bundle"), UsageError, "gcs.ca_bundle"),
    ],
)
def test_requests_without_an_answer(failed: Exception, kind: type[KbackupError], hint: str) -> None:
    error = from_failure("gs://b/key", failed)
    assert type(error) is kind
    assert error.message.startswith("gs://b/key: ")
    assert hint in error.hint


@pytest.mark.parametrize(
    ("status", "text", "kind", "hint"),
    [
        (401, "Invalid Credentials", DeniedError, "gcloud auth"),
        (403, "me@x does not have storage.objects.get access", DeniedError, "permission that the message names"),
        (403, "Object 'b/o' is subject to object retention and cannot be deleted", DeniedError, "retention"),
        (403, "Object 'b/o' is under active Temporary hold", DeniedError, "release the hold"),
        (403, "The billing account for the owning project is disabled", DeniedError, "billing"),
        (404, "The specified bucket does not exist.", UnreachableError, "create it"),
        (404, "No such object: b/key", NotFoundError, "address"),
        (412, "At least one of the pre-conditions you specified did not hold.", PreconditionError, "another writer"),
        (412, "Object Retention is not enabled for bucket b.", UsageError, "with object retention"),
        (400, "Bucket is a requester pays bucket but no user project provided.", DeniedError, "gcs.project"),
        (400, "Provided CRC32C x doesn't match calculated CRC32C y.", StoreError, "damaged"),
        (416, "<?xml?>", CorruptError, "shorter"),
        (429, "The object exceeded the rate limit for object mutation operations", UnreachableError, "fewer tasks"),
        (503, "", UnreachableError, "fewer tasks"),
        (500, "Backend Error", UnreachableError, "later"),
        (418, "I'm a teapot", StoreError, "log of the store"),
    ],
)
def test_an_answer_of_gcs_becomes_an_error_with_a_hint(
    status: int, text: str, kind: type[KbackupError], hint: str
) -> None:
    for body in (text, json.dumps({"error": {"code": status, "message": text}})):
        error = from_answer("gs://b/key", status, body)
        assert type(error) is kind
        assert error.message.startswith("gs://b/key")
        assert hint in error.hint


def test_a_missing_file_of_credentials_is_named(tmp_path: Path) -> None:
    store = open_store("gs://b/p", {"gcs": GcsOptions(credentials_file=str(tmp_path / "none.json"), max_attempts=1)})
    with pytest.raises(DeniedError, match=r"gs://b/p/key: .*none\.json"):
        store.get("key")


def test_a_login_that_does_not_answer_is_unreachable(tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 2048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    account = {
        "type": "service_account", "client_email": "me@x", "private_key": key.decode(), "private_key_id": "1",
        "token_uri": "http://127.0.0.1:1/token",
    }  # fmt: skip
    (tmp_path / "me.json").write_text(json.dumps(account))
    store = open_store("gs://b/p", {"gcs": GcsOptions(credentials_file=str(tmp_path / "me.json"), max_attempts=1)})
    with pytest.raises(UnreachableError, match="login does not answer") as caught:
        store.put("key", b"")
    assert "PRIVATE" not in str(caught.value)
