"""TLS by files that are read again when they change."""

from __future__ import annotations

import asyncio
import logging
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat

from kbackup.errors import UsageError
from kbackup.serve.tls import ServerTls
from tests.unit.serve.asking import in_loop


def write_certificate(folder: Path, name: str, password: bytes = b"") -> tuple[Path, Path]:
    """Write a certificate that vouches for itself, and its key, in place of those before."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    encryption = BestAvailableEncryption(password) if password else NoEncryption()
    certificate_file, key_file = folder / "server.crt", folder / "server.key"
    certificate_file.write_bytes(certificate.public_bytes(Encoding.PEM))
    key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    return certificate_file, key_file


async def name_of_server(tls: ServerTls, server_name: str | None = None) -> str:
    """Connect to a server with this context; return the name in the certificate that it shows."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls.context)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    port = server.sockets[0].getsockname()[1]
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=server_name or "")
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()
    return x509.load_der_x509_certificate(shown).subject.rfc4514_string().removeprefix("CN=")


@pytest.mark.parametrize("server_name", [None, "serve.example"])
def test_a_certificate_that_is_renewed_is_shown_to_the_next_client(tmp_path: Path, server_name: str | None) -> None:
    tls = ServerTls(*write_certificate(tmp_path, "first"))

    async def scenario() -> None:
        assert await name_of_server(tls, server_name) == "first"
        write_certificate(tmp_path, "second")
        assert await name_of_server(tls, server_name) == "second"

    in_loop(scenario)


def test_a_certificate_that_breaks_leaves_the_one_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    certificate, key = write_certificate(tmp_path, "first")
    tls = ServerTls(certificate, key)

    async def scenario() -> None:
        certificate.write_text("broken")
        assert await name_of_server(tls) == "first"
        assert await name_of_server(tls) == "first"
        key.unlink()
        assert await name_of_server(tls) == "first"

    in_loop(scenario)
    warnings = [record for record in caplog.records if record.name == "kbackup.serve.tls"]
    assert [record.levelno for record in warnings] == [logging.WARNING] * 2, "once for each change"


def test_files_that_can_not_be_used_are_refused(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path, "first", password=b"secret-word")
    with pytest.raises(UsageError, match=r"can't be used.*the key without a password"):
        ServerTls(certificate, key)
    with pytest.raises(UsageError, match=r"can't be used.*give PEM files"):
        ServerTls(tmp_path / "missing.crt", key)
