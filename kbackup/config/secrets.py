"""Hide secrets by the names of their keys alone, so that a value is hidden before it is parsed."""

from __future__ import annotations

import re
from collections.abc import Mapping

HIDDEN = "********"

_SECRET = re.compile(
    r"passw|passphrase|secret(?!s$)|token|jaas|private.?key|ssl[._]key(store)?[._](pem|key)$|oauthbearer[._](config|extensions)"
    r"|assertion[._]private|encryption[._]key$|azure[.](account[.]key|sas)[.]|azure[.](account_key|connection_string)$",
    re.IGNORECASE,
)
_WEBHOOK = ("notify.url", "notify.headers", "notify.body")
"""The URL of a webhook is its password; some take a key in the body."""
_LOCATES = re.compile(r"(location|url|uri|file|path|_id|\.id)$", re.IGNORECASE)
_NAMES_ARE_DATA = ("restore.map.", "restore.map_group.")
_USERINFO = re.compile(r"([a-z0-9+.-]*)://([^/?#\s]*)(?=@)", re.IGNORECASE)
_CONTAINERS = {"abfs", "abfss", "wasb", "wasbs"}
"""Schemes that name a container where others have a user."""


def is_secret(path: str) -> bool:
    """Return True if the value at a key path ("source.sasl.password") must never be shown.

    The location of a secret (`*.location`, `*.url`) is no secret, but for a webhook's; nor are entries whose key is a
    topic or a group.
    """
    if path.startswith(_WEBHOOK):
        return True
    if path.startswith(_NAMES_ARE_DATA) or _LOCATES.search(path):
        return False
    return _SECRET.search(path) is not None


def exposes_secret(path: str, value: object) -> bool:
    """Return True if a value on the command line shows a secret; a reference to a file or a variable does not."""
    text = str(value or "")
    is_reference = "${" in text or (path == "encryption.key" and text.startswith(("file:", "env:")))
    return is_secret(path) and bool(text) and not is_reference


def without_userinfo(text: str) -> str:
    """Return the text without the passwords and tokens in its URLs; a user's name beside a password stays."""

    def hidden(match: re.Match[str]) -> str:
        scheme, info = match.groups()
        user, colon, _ = info.partition(":")
        if not colon and scheme.lower() in _CONTAINERS:
            return match[0]
        return f"{scheme}://{user + colon if colon else ''}{HIDDEN}"

    return _USERINFO.sub(hidden, text)


def shown(path: str, value: object) -> object:
    """`value` as it may be shown: secrets hidden, passwords in URLs too. None and "" stay: nothing is set."""
    if isinstance(value, Mapping):
        return {name: shown(f"{path}.{name}" if path else str(name), item) for name, item in value.items()}
    if value in (None, ""):
        return value
    if is_secret(path):
        return HIDDEN
    if isinstance(value, list | tuple):
        return [shown(path, item) for item in value]
    return without_userinfo(value) if isinstance(value, str) else value


def redact(mapping: Mapping[str, object], path: str = "") -> dict[str, object]:
    """Return a copy of `mapping`, nested ones too, with every secret replaced by `HIDDEN`; `path` is where it is."""
    return {name: shown(f"{path}.{name}" if path else name, value) for name, value in mapping.items()}
