"""Encrypt and decrypt objects by `formats/encryption.md` alone, without code of kbackup."""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import b64decode
from collections.abc import Callable

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import GCM

FRAME, TAG = 65_536, 16


def _sha(key: bytes, data: bytes) -> bytes:
    return hmac.new(key, data, hashlib.sha256).digest()


def hkdf(secret: bytes, salt: bytes, info: bytes) -> bytes:
    """Derive a key by RFC 5869, one block of SHA-256."""
    return _sha(_sha(salt, secret), info + b"\x01")


def gcm_open(key: bytes, nonce: bytes, sealed: bytes, bound: bytes) -> bytes:
    """Decrypt and check a frame; raises `cryptography.exceptions.InvalidTag` for a wrong key or a changed frame."""
    opener = Cipher(AES(key), GCM(nonce, sealed[-TAG:])).decryptor()
    opener.authenticate_additional_data(bound)
    return opener.update(sealed[:-TAG]) + opener.finalize()


def gcm_seal(key: bytes, nonce: bytes, plain: bytes, bound: bytes) -> bytes:
    sealer = Cipher(AES(key), GCM(nonce)).encryptor()
    sealer.authenticate_additional_data(bound)
    return sealer.update(plain) + sealer.finalize() + sealer.tag


def kek_name(kek: bytes) -> str:
    return "aes256:" + _sha(kek, b"kbackup-key-name-1").hex()[:16]


def data_keys(text: bytes, kek: bytes) -> dict[bytes, bytes]:
    """Return the data keys of a file of keys/, by their ids."""
    file = json.loads(text)
    assert (file["format"], file["version"], file["kek"]) == ("kbackup-keys", 2, kek_name(kek))
    bound, archive = b"kbackup-data-key-2", file["archive_id"].encode()
    wrapped = {bytes.fromhex(name): b64decode(value) for name, value in file["keys"].items()}
    return {name: gcm_open(kek, value[:12], value[12:], bound + name + archive) for name, value in wrapped.items()}


def _nonce(number: int, last: bool) -> bytes:
    return number.to_bytes(8, "big") + bytes([0, 0, 0, last])


def unseal(archive: str, name: str, stored: bytes, find: Callable[[bytes], bytes]) -> bytes:
    """Return the plain bytes of object `name`; `find` gives the data key of an id."""
    assert stored[:8] == b"KBCRYPT\x02"
    key = hkdf(find(stored[8:24]), stored[24:56], b"kbackup-object-2")
    bound = archive.encode() + b"\0" + name.encode()
    frames = [stored[at : at + FRAME + TAG] for at in range(56, len(stored), FRAME + TAG)]
    return b"".join(
        gcm_open(key, _nonce(number, number == len(frames) - 1), frame, bound) for number, frame in enumerate(frames)
    )


def seal(archive: str, name: str, plain: bytes, key_id: bytes, data_key: bytes, salt: bytes) -> bytes:
    key = hkdf(data_key, salt, b"kbackup-object-2")
    bound = archive.encode() + b"\0" + name.encode()
    frames = [plain[at : at + FRAME] for at in range(0, max(1, len(plain)), FRAME)]
    sealed = [
        gcm_seal(key, _nonce(number, number == len(frames) - 1), frame, bound) for number, frame in enumerate(frames)
    ]
    return b"KBCRYPT\x02" + key_id + salt + b"".join(sealed)
