"""An encrypted object's bytes: a header, then AES-256-GCM frames (`formats/encryption.md`).

Each object has a key of its own, derived from a data key and the header's random salt, so that a frame's number
and whether it is the last can be its nonce. The archive's id and the object's name are authenticated with every
frame: frames can't be changed, cut off, put in another order or moved to another object or archive.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
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
SEALED = FRAME + TAG
_INFO = b"kbackup-object-2"
_HINT = "it was changed, cut or moved after it was written: restore it from a bucket version or a copy"


class Header(NamedTuple):
    key_id: bytes
    salt: bytes

    def encode(self) -> bytes:
        return MAGIC + self.key_id + self.salt


def new_header(key_id: bytes) -> Header:
    return Header(key_id, secrets.token_bytes(_SALT_BYTES))


def decode_header(data: bytes | memoryview, name: str) -> Header:
    """The header that `data` begins with; `name` stands in errors."""
    head = bytes(data[:HEADER])
    if head[: len(MAGIC) - 1] != MAGIC[:-1]:
        raise CorruptError(
            f"file {name} at byte 0: this is no encrypted object",
            "it was replaced or damaged; a folder that was written without encryption is read without encryption.key",
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
    """Bytes of the object that holds `plain` bytes."""
    return HEADER + plain + TAG * max(1, -(-plain // FRAME))


def plain_size(stored: int) -> int:
    """Plain bytes in an object of `stored` bytes; of one that can't be whole, about what is left of them."""
    body = max(0, stored - HEADER)
    return max(0, body - TAG * -(-body // SEALED))


class Cipher:
    """Seals and opens the frames of one object. Thread-safe."""

    def __init__(self, data_key: bytes, header: Header, archive_id: str, name: str) -> None:
        derived = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=header.salt, info=_INFO).derive(data_key)
        self._aead = AESGCM(derived)
        self._name = name
        self._bound = f"{archive_id}\0{name}".encode()

    def seal(self, number: int, last: bool, plain: memoryview, into: memoryview) -> None:
        """Frame `number` (from 0) of `plain` into `into`, which is `TAG` bytes longer."""
        self._aead.encrypt_into(_nonce(number, last), plain, self._bound, into)

    def open(self, number: int, last: bool, sealed: memoryview, into: memoryview) -> None:
        """The reverse; `CorruptError` where it is not that very frame of that very object of that archive."""
        try:
            self._aead.decrypt_into(_nonce(number, last), sealed, self._bound, into)
        except InvalidTag as error:
            at = HEADER + number * SEALED
            raise CorruptError(
                f"file {self._name} at byte {at}: frame {number} is not genuine", _HINT
            ) from error


def _nonce(number: int, last: bool) -> bytes:
    return number.to_bytes(8, "big") + (b"\0\0\0\1" if last else b"\0\0\0\0")


def seal_frames(cipher: Cipher, plain: memoryview, first: int, last: bool) -> bytearray:
    """The frames of `plain`, the first one's number being `first`; all but the last one of an object are full."""
    count = max(1, -(-len(plain) // FRAME))
    sealed = bytearray(len(plain) + TAG * count)
    view = memoryview(sealed)
    for n in range(count):
        piece = plain[n * FRAME : (n + 1) * FRAME]
        into = view[n * SEALED : n * SEALED + len(piece) + TAG]
        cipher.seal(first + n, last and n == count - 1, piece, into)
    return sealed


def open_frames(cipher: Cipher, sealed: memoryview, name: str) -> bytearray:
    """The plain bytes of all frames of an object."""
    count = max(1, -(-len(sealed) // SEALED))
    if len(sealed) < (count - 1) * SEALED + TAG:
        raise CorruptError(f"file {name} at byte {HEADER + len(sealed)}: ends within a frame", _HINT)
    plain = bytearray(len(sealed) - TAG * count)
    view = memoryview(plain)
    for n in range(count):
        piece = sealed[n * SEALED : (n + 1) * SEALED]
        cipher.open(n, n == count - 1, piece, view[n * FRAME : n * FRAME + len(piece) - TAG])
    return plain


def cut(chunks: Iterable[bytes]) -> Iterator[memoryview]:
    """The bytes of `chunks` as sealed frames; the last may be shorter."""
    left = bytearray()
    for chunk in chunks:
        view = memoryview(chunk)
        if left:
            take = SEALED - len(left)
            left += view[:take]
            view = view[take:]
            if len(left) < SEALED:
                continue
            yield memoryview(left)
            left = bytearray()
        whole = len(view) - len(view) % SEALED
        for at in range(0, whole, SEALED):
            yield view[at : at + SEALED]
        left += view[whole:]
    if left:
        yield memoryview(left)
