"""An encrypted object's bytes: a header, then AES-256-GCM frames (`formats/encryption.md`).

Each object has a key of its own, derived from a data key and the header's random salt, so that a frame's number
and whether it is the last can be its nonce. The archive's id and the object's name are authenticated with every
frame: frames can't be changed, cut off, put in another order or moved to another object or archive.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from kbackup.errors import CorruptError

MAGIC = b"KBCRYPT\x02"
KEY_ID_BYTES = 16
KEY_BYTES = 32
_SALT_BYTES = 32
HEADER = len(MAGIC) + KEY_ID_BYTES + _SALT_BYTES
FRAME = 1 << 16
"""Plain bytes of every frame but the last, which has 1 to this many (0 in an empty object)."""
TAG = 16
ENCRYPTED_FRAME = FRAME + TAG
_INFO = b"kbackup-object-2"
_HINT = "restore it from a bucket version or a copy: it was changed, cut or moved after it was written"


class Header(NamedTuple):
    key_id: bytes
    salt: bytes

    def encode(self) -> bytes:
        return MAGIC + self.key_id + self.salt


def new_header(key_id: bytes) -> Header:
    return Header(key_id, secrets.token_bytes(_SALT_BYTES))


def decode_header(data: bytes | memoryview, name: str) -> Header:
    """Return the header that `data` begins with; `name` stands in errors."""
    head = bytes(data[:HEADER])
    if head[: len(MAGIC) - 1] != MAGIC[:-1]:
        raise CorruptError(
            f"file {name} at byte 0: this is no encrypted object",
            "restore it from a bucket version or a copy, or unset encryption.key if it was never encrypted",
        )
    version = head[len(MAGIC) - 1 : len(MAGIC)]
    if version and version != MAGIC[-1:]:
        raise CorruptError(
            f"file {name} at byte {len(MAGIC) - 1}: encrypted in version {version[0]}, known is {MAGIC[-1]}",
            "use the kbackup that wrote it, or a newer one",
        )
    if len(head) < HEADER:
        raise CorruptError(f"file {name} at byte {len(head)}: ends within its header", _HINT)
    at = len(MAGIC)
    return Header(head[at : at + KEY_ID_BYTES], head[at + KEY_ID_BYTES :])


def stored_size(plain: int) -> int:
    """Return the size of the encrypted object that holds `plain` bytes."""
    return HEADER + plain + TAG * max(1, -(-plain // FRAME))


def plain_size(stored: int) -> int:
    """Return the number of plain bytes in an object of `stored` bytes; an estimate if the object is cut."""
    body = max(0, stored - HEADER)
    return max(0, body - TAG * -(-body // ENCRYPTED_FRAME))


class Cipher:
    """Encrypts and decrypts the frames of one object. Thread-safe.

    `others` returns further data keys of the same id. They are tried where `data_key` opens no frame: files of data
    keys may be in conflict, and only the object shows which one is genuine.
    """

    def __init__(
        self, data_key: bytes, header: Header, archive_id: str, name: str, others: Callable[[], Iterable[bytes]] = tuple
    ) -> None:
        self._salt = header.salt
        self._aead = self._derive(data_key)
        self._name = name
        self._bound = f"{archive_id}\0{name}".encode()
        self._others = others

    def _derive(self, data_key: bytes) -> AESGCM:
        return AESGCM(HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=self._salt, info=_INFO).derive(data_key))

    def encrypt(self, number: int, last: bool, plain: memoryview, into: memoryview) -> None:
        """Encrypt `plain` as frame `number` (from 0) into `into`, which is `TAG` bytes longer."""
        self._aead.encrypt_into(_nonce(number, last), plain, self._bound, into)

    def decrypt(self, number: int, last: bool, encrypted: memoryview, into: memoryview) -> None:
        """Decrypt frame `number`; `CorruptError` if it is not this frame of this object of this archive."""
        nonce = _nonce(number, last)
        try:
            self._aead.decrypt_into(nonce, encrypted, self._bound, into)
        except InvalidTag as error:
            for other_key in self._others():
                aead = self._derive(other_key)
                with suppress(InvalidTag):
                    aead.decrypt_into(nonce, encrypted, self._bound, into)
                    self._aead = aead
                    return
            at = HEADER + number * ENCRYPTED_FRAME
            raise CorruptError(f"file {self._name} at byte {at}: frame {number} is not genuine", _HINT) from error


def _nonce(number: int, last: bool) -> bytes:
    # Each object has a key of its own, so no nonce is used twice under one key. Whether a frame is the last one is part
    # of its nonce: an object can't be cut between two frames.
    return number.to_bytes(8, "big") + (b"\0\0\0\1" if last else b"\0\0\0\0")


def encrypt_frames(cipher: Cipher, plain: memoryview, first: int) -> bytearray:
    """Encrypt `plain` as the frames of an object from number `first` on, to its last; all but the last are full."""
    count = max(1, -(-len(plain) // FRAME))
    encrypted = bytearray(len(plain) + TAG * count)
    view = memoryview(encrypted)
    for n in range(count):
        frame = plain[n * FRAME : (n + 1) * FRAME]
        into = view[n * ENCRYPTED_FRAME : n * ENCRYPTED_FRAME + len(frame) + TAG]
        cipher.encrypt(first + n, n == count - 1, frame, into)
    return encrypted


def decrypt_frames(cipher: Cipher, encrypted: memoryview, name: str) -> bytearray:
    """Return the plain bytes of all frames of an object."""
    count = max(1, -(-len(encrypted) // ENCRYPTED_FRAME))
    if len(encrypted) < (count - 1) * ENCRYPTED_FRAME + TAG:
        raise CorruptError(f"file {name} at byte {HEADER + len(encrypted)}: ends within a frame", _HINT)
    plain = bytearray(len(encrypted) - TAG * count)
    view = memoryview(plain)
    for n in range(count):
        frame = encrypted[n * ENCRYPTED_FRAME : (n + 1) * ENCRYPTED_FRAME]
        cipher.decrypt(n, n == count - 1, frame, view[n * FRAME : n * FRAME + len(frame) - TAG])
    return plain


def split_frames(chunks: Iterable[bytes]) -> Iterator[memoryview]:
    """Yield the bytes of `chunks` as encrypted frames; the last may be shorter."""
    partial = bytearray()
    for chunk in chunks:
        view = memoryview(chunk)
        if partial:
            missing = ENCRYPTED_FRAME - len(partial)
            partial += view[:missing]
            view = view[missing:]
            if len(partial) < ENCRYPTED_FRAME:
                continue
            yield memoryview(partial)
            partial = bytearray()
        whole = len(view) - len(view) % ENCRYPTED_FRAME
        for at in range(0, whole, ENCRYPTED_FRAME):
            yield view[at : at + ENCRYPTED_FRAME]
        partial += view[whole:]
    if partial:
        yield memoryview(partial)
