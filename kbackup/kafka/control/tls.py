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

from kbackup.kafka.control.errors import UnsupportedSettingError
from kbackup.kafka.control.values import is_true
from kbackup.util.scratch import ScratchFolder

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

TLS_PROPERTIES = {
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.crl.location",
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
    """Return the context for librdkafka's properties. Raise `UnsupportedSettingError` for files and keys that can't be
    used."""
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if properties.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
            context.check_hostname = False
        if not is_true(properties, "enable.ssl.certificate.verification", default=True):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if ciphers := properties.get("ssl.cipher.suites"):
            context.set_ciphers(ciphers)
        _trust(context, properties)
        _present_certificate(context, properties)
    except (OSError, ValueError, TypeError) as error:  # `ssl.SSLError` is an OSError
        raise UnsupportedSettingError(f"certificates or keys can't be used: {error}") from error
    return context


def name_in_certificate(host: str) -> str:
    """Return the name that the certificate of a host must have: an address without its zone, a name without the dot at
    its end."""
    return host.partition("%")[0].rstrip(".")


def _trust(context: ssl.SSLContext, properties: Mapping[str, str]) -> None:
    """Trust the authorities that the properties name; if they name none, the authorities of the system."""
    location = properties.get("ssl.ca.location", "")
    text = properties.get("ssl.ca.pem", "")
    if text:
        context.load_verify_locations(cadata=text)
    if location and location != "probe":
        if Path(location).is_dir():
            context.load_verify_locations(capath=location)
        else:
            context.load_verify_locations(cafile=location)
    elif not text:
        context.load_default_certs()
    if revoked := properties.get("ssl.crl.location"):
        context.load_verify_locations(cafile=revoked)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _present_certificate(context: ssl.SSLContext, properties: Mapping[str, str]) -> None:
    """Present a certificate of our own to brokers, if the properties have one."""
    chain, key = _own_certificate(properties)
    if not chain or key is None:
        return
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

    # Python's OpenSSL reads them from a file alone: the key is encrypted in it by a password that nobody else has.
    password = secrets.token_hex(32)
    encryption = BestAvailableEncryption(password.encode())
    sealed = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
    with ScratchFolder("tls") as scratch:
        file = scratch.path / "client.pem"
        file.write_bytes(chain + b"\n" + sealed)
        context.load_cert_chain(file, password=password)


def _own_certificate(properties: Mapping[str, str]) -> tuple[bytes, PrivateKeyTypes | None]:
    """Return the client's own certificates in PEM, and its key."""
    if store := properties.get("ssl.keystore.location"):
        return _from_store(Path(store), properties.get("ssl.keystore.password", ""))
    chain = _content(properties, "ssl.certificate")
    text = _content(properties, "ssl.key")
    if not text:
        return chain, None
    return chain, private_key(text, properties.get("ssl.key.password", ""))


def _content(properties: Mapping[str, str], name: str) -> bytes:
    """Return what the file of a property holds, or the property itself."""
    if location := properties.get(f"{name}.location"):
        return Path(location).read_bytes()
    return properties.get(f"{name}.pem", "").encode()


def _from_store(path: Path, password: str) -> tuple[bytes, PrivateKeyTypes | None]:
    """Return certificates and key of a PKCS12 file."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, pkcs12

    try:
        key, own, others = pkcs12.load_key_and_certificates(path.read_bytes(), password.encode() or None)
    except UnsupportedAlgorithm as error:
        raise ValueError(f"{path} is encrypted in a way that is not supported") from error
    # Our own one comes first, then those that vouch for it: brokers expect them in this order.
    certificates = [own, *others] if own is not None else others
    chain = b"".join(each.public_bytes(Encoding.PEM) for each in certificates)
    return chain, key


def private_key(text: bytes, password: str) -> PrivateKeyTypes:
    """Return the private key of a PEM text. Raise `ValueError` where there is none, or another password is needed."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    # OpenSSL asks for the password of an encrypted key only; cryptography minds one that is not needed.
    encrypted = b"ENCRYPTED" in text
    if encrypted and not password:
        raise ValueError("the private key is encrypted, and no password is given")
    try:
        return load_pem_private_key(text, password.encode() if encrypted else None)
    except UnsupportedAlgorithm as error:
        raise ValueError("the private key is of a kind that is not supported") from error
