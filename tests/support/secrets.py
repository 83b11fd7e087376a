"""The secrets that tests use, so that one look at all that a test run leaves behind finds those that got out.

A test takes its passwords and keys from `make`, or tells of those that others made by `know`. `watching.py` says what
is looked through, and when.
"""

from __future__ import annotations

import base64
import os
import re
import secrets
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import TypeVar

Secret = TypeVar("Secret", str, bytes)

_SHORTEST = 12

INPUTS = ("kbackup.toml", "kbackup*.env", "*.properties", "*.pem", "*.secret")
"""Names of files that give kbackup its secrets. Nothing else may hold one."""


class Watch:
    """Knows secrets and looks for them; `hits` says where, and which: never the secret itself."""

    def __init__(self) -> None:
        self.hits: list[str] = []
        self._names: dict[bytes, str] = {}
        self._pattern: re.Pattern[bytes] | None = None

    def know(self, label: str, secret: Secret) -> Secret:
        """Look for `secret` from now on; returns it."""
        if len(secret) < _SHORTEST:
            raise ValueError(f"{label} is so short that it would be found everywhere")
        data = secret.encode() if isinstance(secret, str) else secret
        self._names |= dict.fromkeys(_forms(data), label)
        self._pattern = re.compile(b"|".join(map(re.escape, self._names)))
        return secret

    def make(self, label: str) -> str:
        """Return a new secret, and look for it from now on."""
        return self.know(label, f"hush-{secrets.token_hex(12)}")

    def look_at(self, where: str, text: str | bytes | None) -> None:
        if not text or self._pattern is None:
            return
        data = text.encode(errors="surrogateescape") if isinstance(text, str) else text
        found = {self._names[needle] for needle in self._pattern.findall(data)}
        self.hits += [f"{where} holds {what}" for what in sorted(found)]

    def look_into(self, folder: Path) -> None:
        """Every file below `folder` that is not one of `INPUTS`."""
        if self._pattern is None:  # the controller of pytest-xdist, whose workers have looked
            return
        for path in _files(folder):
            known = any(fnmatch(path.name, pattern) for pattern in INPUTS)
            if not known and path.is_file() and not path.is_symlink():
                self.look_at(str(path), path.read_bytes())


def _files(folder: Path) -> list[Path]:
    """Return every file below `folder` in order. Folders may go meanwhile: what a test started may end after it."""

    def end_unless_it_is_gone(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    found: list[Path] = []
    for parent, _, names in os.walk(folder, onerror=end_unless_it_is_gone):
        found += [Path(parent, name) for name in names]
    return sorted(found)


def _forms(secret: bytes) -> Iterator[bytes]:
    """As it is, and in base64 wherever in a text it stands (`user:password`, a JSON document)."""
    yield secret
    for before in range(3):
        coded = base64.b64encode(b"\0" * before + secret)
        # what a neighbour's bits are part of goes: the first sign after `before` bytes, and the last ones
        whole = (before + len(secret)) // 3 * 4
        yield coded[4 if before else 0 : whole].rstrip(b"=")


watch = Watch()
make, know = watch.make, watch.know
