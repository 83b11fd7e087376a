"""Hide secrets by the names of their keys alone, so that a value is hidden before it is parsed."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kbackup.errors import HIDDEN, without_credentials

_NAMES = (
    "passw",
    "passphrase",
    "secret(?!s$)",
    "token",
    "jaas",
    "credential(?!s?[._]provider)",
    "private.?key",
    "account[._-]?key",
    "connection[._-]?string",
    "(^|[._-])sas([._-]|$)",
    "encryption[._]key$",
    "ssl[._]key(store)?[._](pem|key)$",
    "oauthbearer[._](config|extensions)",
    "assertion[._]private",
    # Variables of executors can hold any secret under a name of the user's own: ARCHIVE_KEY, GIT_AUTH, DB_PWD.
    r"(executor|appmaster|driver)env[.]\w*(key|auth|pwd|pass|sig|dsn|kbackup_notify_)",
)
NAMES_OF_SECRETS = "|".join(_NAMES)
"""Names of secrets, as a regular expression of Python and of Java, whatever their case."""

_SECRET = re.compile(NAMES_OF_SECRETS, re.IGNORECASE)
_WEBHOOK = ("notify.url", "notify.headers", "notify.body")
"""The URL of a webhook is its password; some take a key in the body."""
_WEBHOOK_VARIABLE = re.compile(r"env[.]kbackup_notify_(url|headers|body)", re.IGNORECASE)
_LOCATES = re.compile(r"(location|url|uri|file|path|_id|\.id)$", re.IGNORECASE)
_NAMES_ARE_DATA = ("restore.map.", "restore.map_group.")


def is_secret(path: str) -> bool:
    """Return True if the value at a key path ("source.sasl.password") must never be shown.

    The location of a secret (`*.location`, `*.url`) is no secret, except the URL of a webhook; entries whose key is a
    topic or a group are none either.
    """
    if path.startswith(_WEBHOOK) or _WEBHOOK_VARIABLE.search(path):
        return True
    if path.startswith(_NAMES_ARE_DATA) or _LOCATES.search(path):
        return False
    return _SECRET.search(path) is not None


def exposes_secret(path: str, value: object) -> bool:
    """Return True if a value on the command line shows a secret; a reference to a file or a variable does not."""
    text = str(value or "")
    if not text or not is_secret(path) or "${" in text:
        return False
    # The key of an archive has references of its own.
    return not (path == "encryption.key" and text.startswith(("file:", "env:")))


def shown(path: str, value: object) -> object:
    """Return a value as it may be shown: without secrets, and without credentials in addresses. None and "" stay:
    nothing is set."""
    if isinstance(value, Mapping):
        return redact(value, path)
    if value in (None, ""):
        return value
    if is_secret(path):
        return HIDDEN
    if isinstance(value, list | tuple):
        return [shown(path, item) for item in value]
    return without_credentials(value) if isinstance(value, str) else value


def redact(mapping: Mapping[str, object], path: str = "") -> dict[str, object]:
    """Return a copy of the mapping at `path`, with `HIDDEN` in the place of every secret, also in nested mappings."""
    copied = {}
    for name, value in mapping.items():
        inner_path = f"{path}.{name}" if path else str(name)
        copied[name] = shown(inner_path, value)
    return copied
