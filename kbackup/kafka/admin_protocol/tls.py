"""A TLS context by librdkafka's properties. Files are PEM; a key store is PKCS12."""

from __future__ import annotations

import secrets
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

# cryptography is imported where there is a key: most connections have none


def tls_context(properties: Mapping[str, str]) -> ssl.SSLContext:
    """Raise `ssl.SSLError`, `OSError` or `ValueError` for files and keys that can't be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if properties.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
        context.check_hostname = False
    if properties.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if ciphers := properties.get("ssl.cipher.suites"):
        context.set_ciphers(ciphers)
    _load_authorities(context, properties)
    _load_own(context, properties)
    return context


def _load_authorities(context: ssl.SSLContext, properties: Mapping[str, str]) -> None:
    location, text = properties.get("ssl.ca.location", ""), properties.get("ssl.ca.pem", "")
    if text:
        context.load_verify_locations(cadata=text)
    if location and location != "probe":
        folder = Path(location).is_dir()
        context.load_verify_locations(**({"capath": location} if folder else {"cafile": location}))
    elif not text:
        context.load_default_certs()


def _load_own(context: ssl.SSLContext, properties: Mapping[str, str]) -> None:
    """The client's certificate and key."""
    chain, key = _own(properties)
    if not chain or not key:
        return
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

    # OpenSSL reads them from a file alone: the key is encrypted in it by a password that nobody else has.
    password = secrets.token_hex(32)
    sealed = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password.encode()))
    with tempfile.TemporaryDirectory(prefix="kbackup-tls-") as folder:
        file = Path(folder, "client.pem")
        file.write_bytes(chain + b"\n" + sealed)
        context.load_cert_chain(file, password=password)


def _own(properties: Mapping[str, str]) -> tuple[bytes, PrivateKeyTypes | None]:
    if store := properties.get("ssl.keystore.location"):
        return _from_key_store(Path(store), properties.get("ssl.keystore.password", ""))
    chain, key = (_text(properties, f"ssl.{part}") for part in ("certificate", "key"))
    if not key:
        return chain, None
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    password = properties.get("ssl.key.password", "").encode() or None
    return chain, load_pem_private_key(key, password)


def _text(properties: Mapping[str, str], name: str) -> bytes:
    if location := properties.get(f"{name}.location"):
        return Path(location).read_bytes()
    return properties.get(f"{name}.pem", "").encode()


def _from_key_store(path: Path, password: str) -> tuple[bytes, PrivateKeyTypes | None]:
    from cryptography.hazmat.primitives.serialization import Encoding, pkcs12

    key, own, others = pkcs12.load_key_and_certificates(path.read_bytes(), password.encode() or None)
    chain = [own, *others] if own is not None else others
    return b"".join(each.public_bytes(Encoding.PEM) for each in chain), key
