"""Other machines reach an archive only with TLS and users, or by a flag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kbackup.config.models import Serve
from kbackup.errors import UsageError
from kbackup.serve.service import Listening
from kbackup.serve.users import write_user
from tests.unit.serve.test_tls import write_certificate


def secured(tmp_path: Path, *, tls: bool, users: bool) -> dict[str, Any]:
    """Return the keys of [serve] for TLS and for users, as far as asked for."""
    keys: dict[str, Any] = {}
    if tls:
        certificate, key = write_certificate(tmp_path, "serve")
        keys |= {"tls_certificate": str(certificate), "tls_key": str(key)}
    if users:
        write_user(tmp_path / "users", "anna", "secret-word")
        keys["users"] = str(tmp_path / "users")
    return keys


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.0.2.1", "serve.example"])
@pytest.mark.parametrize(
    ("tls", "users", "reason"),
    [
        (False, False, "without TLS and users, whoever reaches it reads every record"),
        (True, False, "without users, whoever reaches it reads every record"),
        (False, True, "without TLS, others on the network read the records and passwords of its users"),
    ],
)
def test_an_address_of_other_machines_needs_both(
    tmp_path: Path, host: str, tls: bool, users: bool, reason: str
) -> None:
    keys = secured(tmp_path, tls=tls, users=users)
    with pytest.raises(UsageError, match=reason):
        Listening.of(Serve(listen=f"{host}:9092", **keys))
    listening = Listening.of(Serve(listen=f"{host}:9092", allow_plain=True, **keys))
    assert (listening.tls is not None, listening.logins is not None) == (tls, users)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1"])
def test_with_both_every_address_is_served(tmp_path: Path, host: str) -> None:
    listening = Listening.of(Serve(listen=f"{host}:9092", **secured(tmp_path, tls=True, users=True)))
    assert listening.tls is not None
    assert listening.logins is not None


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_this_machine_needs_neither(host: str) -> None:
    listening = Listening.of(Serve(listen=f"{host}:9092"))
    assert listening.tls is None
    assert listening.logins is None


@pytest.mark.parametrize("key", ["tls_certificate", "tls_key"])
def test_a_certificate_needs_its_key(tmp_path: Path, key: str) -> None:
    keys = secured(tmp_path, tls=True, users=False)
    with pytest.raises(UsageError, match=f"serve.{key} is set alone; give serve.tls_certificate and serve.tls_key"):
        Listening.of(Serve(**{key: keys[key]}))
