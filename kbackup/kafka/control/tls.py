"""TLS by librdkafka's properties: whom we trust, and with which certificate we come.

Files are PEM; a key store is PKCS12.

cryptography is imported where there is a key: most connections have none.
"""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kbackup.util.scratch import ScratchFolder

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

TLS_PROPERTIES = {
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.key.location",
    "ssl.key.pem",
    "ssl.key.password",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.endpoint.identification.algorithm",
    "enable.ssl.certificate.verification",
    "ssl.cipher.suites",
}
"""The properties that `tls_context` follows."""


def tls_context(properties: Mapping[str, str]) -> ssl.SSLContext:
    """Return the context for librdkafka's properties. `ssl.SSLError`, `OSError` or `ValueError` for files and keys that
    can't be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if properties.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
        context.check_hostname = False
    if properties.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if ciphers := properties.get("ssl.cipher.suites"):
        context.set_ciphers(ciphers)
    location, text = properties.get("ssl.ca.location", ""), properties.get("ssl.ca.pem", "")
    if text:
        context.load_verify_locations(cadata=text)
    if location and location != "probe":
        folder = Path(location).is_dir()
        context.load_verify_locations(**({"capath": location} if folder else {"cafile": location}))
    elif not text:
        context.load_default_certs()
    chain, key = _own(properties)
    if chain and key:
        from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

        # OpenSSL reads them from a file alone: the key is encrypted in it by a password that nobody else has.
        password = secrets.token_hex(32)
        sealed = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password.encode()))
        with ScratchFolder("tls") as scratch:
            file = scratch.path / "client.pem"
            file.write_bytes(chain + b"\n" + sealed)
            context.load_cert_chain(file, password=password)
    return context


def _own(properties: Mapping[str, str]) -> tuple[bytes, PrivateKeyTypes | None]:
    """Return the client's own certificates in PEM, and its key."""
    if store := properties.get("ssl.keystore.location"):
        from cryptography.hazmat.primitives.serialization import Encoding, pkcs12

        password = properties.get("ssl.keystore.password", "").encode() or None
        key, own, others = pkcs12.load_key_and_certificates(Path(store).read_bytes(), password)
        certificates = [own, *others] if own is not None else others
        return b"".join(each.public_bytes(Encoding.PEM) for each in certificates), key
    chain, text = (
        Path(location).read_bytes()
        if (location := properties.get(f"ssl.{part}.location"))
        else properties.get(f"ssl.{part}.pem", "").encode()
        for part in ("certificate", "key")
    )
    if not text:
        return chain, None
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    return chain, load_pem_private_key(text, properties.get("ssl.key.password", "").encode() or None)
