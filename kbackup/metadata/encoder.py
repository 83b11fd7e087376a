"""Sensitive configs as Kafka's PasswordEncoder writes them: `salt:…,iterations:…,encryptedPassword:…`.

ZooKeeper holds them in this form. So does a metadata log whose controllers migrated without the brokers' secret.
"""

from __future__ import annotations

import base64
import hashlib

_ENCRYPTED = "encryptedPassword"
_HASHES = {f"PBKDF2WithHmacSHA{bits}": f"sha{bits}" for bits in ("1", "256", "384", "512")}
_CIPHER = "AES/CBC/PKCS5Padding"


def is_encrypted(value: str) -> bool:
    """Return whether a config's value is encrypted."""
    return f"{_ENCRYPTED}:" in value


def can_decrypt(value: str, secret: str) -> bool | None:
    """Return whether `secret` decrypts a value; None if the value uses an algorithm that is not known here.

    Kafka's own check is the length of the password, which stands beside it."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes  # slow to load, rarely needed
    from cryptography.hazmat.primitives.padding import PKCS7

    fields = dict(field.partition(":")[::2] for field in value.split(","))
    digest = _HASHES.get(fields.get("keyFactoryAlgorithm", ""))
    if digest is None or fields.get("cipherAlgorithm") != _CIPHER:
        return None
    try:
        key = hashlib.pbkdf2_hmac(
            digest,
            secret.encode(),
            base64.b64decode(fields["salt"]),
            int(fields["iterations"]),
            int(fields["keyLength"]) // 8,
        )
        vector = base64.b64decode(fields["initializationVector"])
        decryptor = Cipher(algorithms.AES(key), modes.CBC(vector)).decryptor()
        padded = decryptor.update(base64.b64decode(fields[_ENCRYPTED])) + decryptor.finalize()
        unpadder = PKCS7(128).unpadder()
        password = unpadder.update(padded) + unpadder.finalize()
        return len(password.decode().encode("utf-16-le")) // 2 == int(fields["passwordLength"])
    except (KeyError, ValueError):
        return False
