"""Key-encryption keys: what wraps the data keys of an archive, from a file, a variable, or a command (a KMS)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import secrets
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from kbackup.errors import CorruptError, UsageError, WrongKeyError
from kbackup.store.crypt.frames import KEY_BYTES
from kbackup.util.text import SomeArchiveId, printable

_NONCE_BYTES = 12
_BOUND = b"kbackup-data-key-2"
_SECONDS = 300.0
ARCHIVE_ID = "KBACKUP_ARCHIVE_ID"
"""The variable that tells a key command which archive the keys belong to: for an encryption context."""
_MAX_NAME = 500
_FORMS = "write file:/path, env:NAME or command:program arguments"
_MAKE = "run `kbackup key generate` to make a key: base64 of 32 bytes"


class Kek(Protocol):
    """A key-encryption key. Key ids are 16 bytes, data keys 32; each is wrapped for the archive `archive_id`."""

    @property
    def name(self) -> str:
        """Return the name of the key, without secrets. Files of data keys have it beside the wrapped keys."""

    def wrap(self, keys: Mapping[bytes, bytes], archive_id: str) -> dict[bytes, bytes]:
        """Return the wrapped data key of each key id."""

    def unwrap(self, wrapped: Mapping[bytes, bytes], archive_id: str) -> dict[bytes, bytes]:
        """Return the data key of each key id. `CorruptError` or `WrongKeyError` if a wrapped key is not what `wrap`
        returned for that id and archive."""


def check_source(source: str) -> None:
    """Raise `UsageError` unless `source` names a key. The message does not show it: it may be the key itself."""
    kind, sign, rest = source.partition(":")
    if not sign or kind not in {"file", "env", "command"} or not rest.strip():
        raise UsageError("the key is not named by the place where it is", _FORMS)


def load_kek(source: str) -> Kek:
    """Load the key that `source` names; `WrongKeyError` if it can't be read."""
    check_source(source)
    kind, _, rest = source.partition(":")
    if kind == "command":
        return CommandKek(shlex.split(rest))
    if kind == "env":
        text = os.environ.get(rest)
        if text is None:
            raise WrongKeyError(f"the variable {rest}, which is to hold the key, is not set", _MAKE)
        return LocalKek(_decoded(text, f"the variable {rest}"))
    try:
        text = Path(rest).read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        why = (error.strerror or str(error)).lower() if isinstance(error, OSError) else "it is not text"
        raise WrongKeyError(f"can't read the key file {rest}: {why}", _MAKE) from None
    return LocalKek(_decoded(text, f"the file {rest}"))


def generate_key() -> str:
    """Return a new key, in the form of key files and environment variables."""
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def _decoded(text: str, where: str) -> bytes:
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise WrongKeyError(f"{where} holds no key", _MAKE)
    return key


class LocalKek:
    """32 bytes. A data key is wrapped by AES-256-GCM under a random nonce, bound to its id and its archive."""

    def __init__(self, key: bytes) -> None:
        self._aead = AESGCM(key)
        self.name = "aes256:" + hmac.new(key, b"kbackup-key-name-1", hashlib.sha256).hexdigest()[:16]

    def wrap(self, keys: Mapping[bytes, bytes], archive_id: str) -> dict[bytes, bytes]:
        wrapped = {}
        for key_id, key in keys.items():
            nonce = secrets.token_bytes(_NONCE_BYTES)
            wrapped[key_id] = nonce + self._aead.encrypt(nonce, key, _bound(key_id, archive_id))
        return wrapped

    def unwrap(self, wrapped: Mapping[bytes, bytes], archive_id: str) -> dict[bytes, bytes]:
        keys = {}
        for key_id, data in wrapped.items():
            try:
                keys[key_id] = self._aead.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], _bound(key_id, archive_id))
            except (InvalidTag, ValueError) as error:
                raise CorruptError(
                    f"data key {key_id.hex()} in keys/ is not what key {self.name} wrapped",
                    "restore its file from a bucket version or a copy",
                ) from error
        return keys


def _bound(key_id: bytes, archive_id: str) -> bytes:
    return _BOUND + key_id + archive_id.encode()


class CommandKek:
    """A command that wraps and unwraps: it gets `name`, `wrap` or `unwrap` as its last argument, the archive's id in
    the variable `ARCHIVE_ID`, and one key a line in base64 on stdin. It answers in the same order, one key a line. No
    key ever is an argument."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._name = ""

    @property
    def name(self) -> str:
        if not self._name:
            answer = self._ask("name", b"", "").decode("utf-8", "replace")
            name = answer.partition("\n")[0].strip()
            if not name or len(name) > _MAX_NAME or not name.isprintable():
                raise self._wrong("name", "its answer is no name")
            self._name = name
        return self._name

    def wrap(self, keys: Mapping[bytes, bytes], archive_id: str) -> dict[bytes, bytes]:
        return self._each("wrap", keys, archive_id)

    def unwrap(self, wrapped: Mapping[bytes, bytes], archive_id: str) -> dict[bytes, bytes]:
        keys = self._each("unwrap", wrapped, archive_id)
        if any(len(key) != KEY_BYTES for key in keys.values()):
            raise self._wrong("unwrap", f"it gave a key of another size than {KEY_BYTES} bytes")
        return keys

    def _each(self, verb: str, keys: Mapping[bytes, bytes], archive_id: str) -> dict[bytes, bytes]:
        if not keys:
            return {}
        try:
            msgspec.convert(archive_id, SomeArchiveId)
        except msgspec.ValidationError:
            # Whoever may write to the store chose this text, and the operator's script may not expect it.
            raise CorruptError(
                f"archive id {printable(archive_id)} is not 32 hex digits", "run 'kbackup repair' to write it anew"
            ) from None
        text = b"".join(base64.b64encode(key) + b"\n" for key in keys.values())
        answer = self._ask(verb, text, archive_id)
        lines = answer.split()
        try:
            values = [base64.b64decode(line, validate=True) for line in lines]
        except binascii.Error:
            raise self._wrong(verb, "its answer is not base64") from None
        if len(values) != len(keys) or not all(values):
            raise self._wrong(verb, f"it gave {len(values)} keys for {len(keys)}")
        return dict(zip(keys, values, strict=True))

    def _ask(self, verb: str, text: bytes, archive_id: str) -> bytes:
        try:
            done = subprocess.run(  # noqa: S603 (the operator's own command; no shell)
                [*self._command, verb],
                input=text,
                env={**os.environ, ARCHIVE_ID: archive_id},
                capture_output=True,
                timeout=_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            if isinstance(error, OSError):
                why = (error.strerror or "it can't be run").lower()
            else:
                why = f"it took longer than {_SECONDS:.0f} s"
            # Without its cause: that of a command which took too long has the output, and so keys.
            raise self._wrong(verb, why) from None
        if done.returncode != 0:
            why = f"it ended with {done.returncode}"
            printed = done.stderr.decode("utf-8", "replace").strip()
            last_line = printed.rpartition("\n")[2][:_MAX_NAME]
            if last_line:
                why += f": {last_line}"
            raise self._wrong(verb, why)
        return done.stdout

    def _wrong(self, verb: str, why: str) -> WrongKeyError:
        return WrongKeyError(
            f"the key command {self._command[0]} {verb}: {why}",
            "run it by hand with the input that formats/encryption.md describes",
        )
