"""TLS contexts by librdkafka's properties: both sides of a handshake, in memory."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12

from kbackup.kafka.control.errors import UnsupportedSettingError
from kbackup.kafka.control.tls import tls_context
from scripts.dev.secured import Authority

PASSWORD = "not-to-be-seen"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def shown(authority: Authority, properties: dict[str, str], folder: Path, host: str = "127.0.0.1") -> str:
    """The name in the certificate that a client with these properties shows to a server that asks for one."""
    own = authority.issue("server")
    file = folder / "server.pem"
    file.write_text(own.certificate + own.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    context.load_verify_locations(cadata=authority.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    wires = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(*wires, server_side=True)
    client = tls_context(properties).wrap_bio(wires[1], wires[0], server_hostname=host)
    for side in (client, server, client, server):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    found = server.getpeercert(binary_form=True)
    assert found is not None
    return x509.load_der_x509_certificate(found).subject.rfc4514_string()


def ways(authority: Authority, folder: Path) -> dict[str, dict[str, str]]:
    """A certificate of one's own, inline, in files, and in a key store."""
    issued = authority.issue("client")
    key = load_pem_private_key(issued.key.encode(), None)
    certificate = x509.load_pem_x509_certificate(issued.certificate.encode())
    (folder / "certificate.pem").write_text(issued.certificate)
    (folder / "key.pem").write_text(issued.key)
    (folder / "ca.pem").write_text(authority.certificate)
    (folder / "store.p12").write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"client",
            key,  # type: ignore[arg-type]  # an RSA or EC key
            certificate,
            None,
            BestAvailableEncryption(PASSWORD.encode()),
        )
    )
    inline = {"ssl.ca.pem": authority.certificate}
    return {
        "inline": inline | {"ssl.certificate.pem": issued.certificate, "ssl.key.pem": issued.key},
        "files": {
            "ssl.ca.location": str(folder / "ca.pem"),
            "ssl.certificate.location": str(folder / "certificate.pem"),
            "ssl.key.location": str(folder / "key.pem"),
        },
        "key store": inline | {"ssl.keystore.location": str(folder / "store.p12"), "ssl.keystore.password": PASSWORD},
    }


@pytest.mark.parametrize("way", ["inline", "files", "key store"])
def test_a_client_shows_its_certificate_in_each_form(way: str, authority: Authority, tmp_path: Path) -> None:
    assert shown(authority, ways(authority, tmp_path)[way], tmp_path) == "CN=client"


def test_a_server_of_another_name_or_authority(authority: Authority, tmp_path: Path) -> None:
    own = ways(authority, tmp_path)["inline"]
    with pytest.raises(ssl.SSLCertVerificationError):
        shown(authority, own, tmp_path, host="elsewhere.example.com")
    unnamed = own | {"ssl.endpoint.identification.algorithm": "none"}
    assert shown(authority, unnamed, tmp_path, host="elsewhere.example.com") == "CN=client"
    other = own | {"ssl.ca.pem": Authority().certificate}
    with pytest.raises(ssl.SSLCertVerificationError):
        shown(authority, other, tmp_path)
    unchecked = other | {"enable.ssl.certificate.verification": "false"}
    assert shown(authority, unchecked, tmp_path) == "CN=client"


def test_a_wrong_password_is_named_without_it(authority: Authority, tmp_path: Path) -> None:
    store = ways(authority, tmp_path)["key store"] | {"ssl.keystore.password": "hush"}
    with pytest.raises(UnsupportedSettingError, match="password") as raised:
        tls_context(store)
    assert "hush" not in str(raised.value)
