"""What is secret, and hiding it: by a key's name alone, so that it holds before a value was understood."""

from __future__ import annotations

import re
from collections.abc import Mapping

HIDDEN = "********"

_SECRET = re.compile(
    r"^encryption\.key$|passw|passphrase|secret|token|jaas|private.?key|ssl[._]key(store)?[._](pem|key)$|oauthbearer[._]config|assertion[._]private",
    re.IGNORECASE,
)
_LOCATES = re.compile(r"(location|url|uri|file|path|_id|\.id)$", re.IGNORECASE)
_NAMES_ARE_DATA = ("restore.map.", "restore.map_group.")
_USERINFO = re.compile(r"(?<=://)([^/@:\s]*):[^/@\s]*(?=@)")


def is_secret(path: str) -> bool:
    """Whether the value at a key path ("source.sasl.password") must never be shown.

    What only says where a secret is (`*.location`, `*.url`) is not one; nor are entries whose key is a topic
    or a group.
    """
    if path.startswith(_NAMES_ARE_DATA) or _LOCATES.search(path):
        return False
    return _SECRET.search(path) is not None


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
    return _USERINFO.sub(rf"\1:{HIDDEN}", value) if isinstance(value, str) else value


def redact(mapping: Mapping[str, object], path: str = "") -> dict[str, object]:
    """A copy of `mapping`, nested ones too, with every secret replaced by `HIDDEN`; `path` is where it is."""
    return {name: shown(f"{path}.{name}" if path else name, value) for name, value in mapping.items()}
