"""The file of users who may log in to `kbackup serve`: one line for each user and mechanism, without any password.

A line has the user's name, a space, and what SCRAM (RFC 5802) has a server keep, written as PostgreSQL does it:

    anna SCRAM-SHA-512$16384:<salt>$<stored key>:<server key>

The last three are in base64. Whoever reads a line can't log in by it, but can try passwords: so only the owner may read
the file.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kbackup.errors import UsageError
from kbackup.util.system import file_state

log = logging.getLogger(__name__)

SCRAM_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")

ITERATIONS = 16384
"""For new passwords: the most that Kafka allows, and some hundredths of a second of work."""

_FEWEST_ITERATIONS = 4096
_MOST_ITERATIONS = 1_000_000
_SALT_BYTES = 16
_OTHERS = 0o077
"""The rights of everybody but the owner."""
_WRITERS_AND_OTHERS = 0o037
"""The same, without the right of the group to read."""

_PROOF = "run: kbackup serve-user FILE NAME"


@dataclass(frozen=True, slots=True)
class ScramVerifier:
    """What proves that a client knows a password, without being the password."""

    mechanism: str
    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @property
    def digest(self) -> str:
        """The name of the hash in `hashlib`."""
        return digest_of(self.mechanism)

    def fits(self, password: str) -> bool:
        """Return whether this is the password. It takes as long whatever the password is."""
        made = make_verifier(self.mechanism, password, self.salt, self.iterations)
        return hmac.compare_digest(made.stored_key, self.stored_key)

    def text(self) -> str:
        salt, stored_key, server_key = map(_base64, (self.salt, self.stored_key, self.server_key))
        return f"{self.mechanism}${self.iterations}:{salt}${stored_key}:{server_key}"


Users = Mapping[tuple[str, str], ScramVerifier]
"""Verifiers by mechanism and user."""


def digest_of(mechanism: str) -> str:
    return mechanism.removeprefix("SCRAM-").replace("-", "").lower()


def make_verifier(mechanism: str, password: str, salt: bytes, iterations: int = ITERATIONS) -> ScramVerifier:
    """Return the verifier of a password."""
    digest = digest_of(mechanism)
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", digest)
    stored_key = hashlib.new(digest, client_key).digest()
    server_key = hmac.digest(salted, b"Server Key", digest)
    return ScramVerifier(mechanism, iterations, salt, stored_key, server_key)


def user_lines(name: str, password: str) -> list[str]:
    """Return the lines of a user, one for each mechanism. Raise `UsageError` for a name or password that can't be
    used."""
    if not name or name != name.strip() or name.startswith("#") or not name.isprintable():
        raise UsageError(f"user name {name!r} can't be used", "leave out spaces around it, and # at its beginning")
    if not password:
        raise UsageError(f"user {name}: the password is empty", "give a password")
    lines: list[str] = []
    for mechanism in SCRAM_MECHANISMS:
        verifier = make_verifier(mechanism, password, secrets.token_bytes(_SALT_BYTES))
        lines.append(f"{name} {verifier.text()}")
    return lines


def write_user(path: Path, name: str, password: str) -> None:
    """Add a user to a file, or give a user another password. The file is replaced as a whole; only its owner may read
    it."""
    lines = user_lines(name, password)
    try:
        kept = _text_of(path).splitlines() if path.exists() else []
        others = [line for line in kept if line.rstrip().rpartition(" ")[0].strip() != name]
        text = "".join(f"{line}\n" for line in [*others, *lines])
        written = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            handle = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                out.write(text)
            written.replace(path)
        except OSError:
            with suppress(OSError):
                written.unlink()
            raise
    except OSError as error:
        raise _unusable(path, error) from error


def read_users(path: Path) -> Users:
    """Return the users of a file. Raise `UsageError` if there are none, or if others may read the file."""
    try:
        text = _text_of(path)
    except OSError as error:
        raise _unusable(path, error) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"users file {path} is no text", _PROOF) from error
    users: dict[tuple[str, str], ScramVerifier] = {}
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.strip()
        if entry and not entry.startswith("#"):
            name, verifier = _parse_line(entry, f"{path}, line {number}")
            users[verifier.mechanism, name] = verifier
    if not users:
        raise UsageError(f"users file {path} has no users", _PROOF)
    return users


def _text_of(path: Path) -> str:
    with path.open(encoding="utf-8") as opened:
        # Of the opened file, so that it is the one that is read.
        found = os.fstat(opened.fileno())
        if is_exposed(found.st_mode, found.st_uid, os.geteuid()):
            raise UsageError(f"users file {path} can be read by others than its owner", f"run: chmod 600 {path}")
        return opened.read()


def is_exposed(mode: int, owner: int, user: int) -> bool:
    """Return whether others than `user` can read a file. The group may, if the file is root's and the user is not:
    a Secret of Kubernetes comes so, and PostgreSQL takes its keys so."""
    is_roots = owner == 0 and user != 0
    return bool(mode & (_WRITERS_AND_OTHERS if is_roots else _OTHERS))


def _unusable(path: Path, error: OSError) -> UsageError:
    reason = (error.strerror or str(error)).lower()
    return UsageError(f"users file {path}: {reason}", "check its path and its owner")


def _parse_line(line: str, place: str) -> tuple[str, ScramVerifier]:
    name, _, text = line.rpartition(" ")
    mechanism, _, rest = text.partition("$")
    parameters, _, keys = rest.partition("$")
    iterations, _, salt = parameters.partition(":")
    stored_key, _, server_key = keys.partition(":")
    try:
        verifier = ScramVerifier(
            mechanism, int(iterations), _bytes_of(salt), _bytes_of(stored_key), _bytes_of(server_key)
        )
    except (ValueError, binascii.Error) as error:
        raise _bad_line(place) from error
    # Neither the line nor its parts go into the message.
    if not name.strip() or mechanism not in SCRAM_MECHANISMS:
        raise _bad_line(place)
    if not _FEWEST_ITERATIONS <= verifier.iterations <= _MOST_ITERATIONS or not verifier.salt:
        raise _bad_line(place)
    size = hashlib.new(verifier.digest).digest_size
    if len(verifier.stored_key) != size or len(verifier.server_key) != size:
        raise _bad_line(place)
    return name.strip(), verifier


def _bad_line(place: str) -> UsageError:
    return UsageError(f"users file {place} is no line of a user", f"{_PROOF}, in place of the line")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes_of(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


class UsersFile:
    """A file of users that is read again when it changes."""

    def __init__(self, path: Path) -> None:
        """Raise `UsageError` if the file can't be used."""
        self.path = path
        self._state = file_state(path)
        self._users = read_users(path)

    def users(self) -> Users:
        """Return the users as they are now. While the file can't be used, those before stay."""
        state = file_state(self.path)
        if state != self._state:
            self._state = state
            try:
                self._users = read_users(self.path)
            except UsageError as error:
                log.warning("%s; the users before stay", error)
            else:
                log.info("users file %s was read again", self.path)
        return self._users
