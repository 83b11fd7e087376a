"""Decode single znodes: JSON documents and encoded names. `CorruptError` names the znode."""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar
from urllib.parse import unquote_plus

from kbackup.errors import CorruptError

T = TypeVar("T")
_HINT = "repair it with ZooKeeper's own shell; if it isn't Kafka's, check the chroot in zookeeper.connect"
_DEFAULT = "<default>"


def strange(path: str, why: str) -> CorruptError:
    return CorruptError(f"znode {path} {why}", _HINT)


def content(data: bytes) -> str:
    """Return a znode as text, to show or to archive; bytes that are not UTF-8 become escapes such as \\xff."""
    return data.decode("utf-8", "backslashreplace")


def document(path: str, data: bytes | str) -> dict[str, Any]:
    """Return the JSON object in a znode."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise strange(path, "holds no JSON object")
    return value


def member(path: str, values: dict[str, Any], name: str, kind: type[T]) -> T:
    """Return a member of a JSON object in a znode. Kafka writes some numbers as text."""
    value = values.get(name)
    if kind is int and isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value):
        value = int(value)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise strange(path, f"has no {name}, or one of an unknown form")
    return value


def texts(path: str, values: Any, name: str) -> dict[str, str]:
    """Return an object whose members are texts."""
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise strange(path, f"has a {name} that isn't text by name")
    return dict(sorted(values.items()))


def configs(path: str, data: bytes) -> dict[str, str]:
    """Return what a znode below /config sets; nothing for an empty one, which only has children."""
    return texts(path, document(path, data).get("config", {}), "config") if data else {}


def name_of(path: str, encoded: str) -> str:
    """Return a name that Kafka's `Sanitizer` has %-encoded."""
    try:
        if not re.search(r"%(?![0-9A-Fa-f]{2})", encoded):
            return unquote_plus(encoded, errors="strict")
    except UnicodeDecodeError:
        pass
    raise strange(path, f"has a name that is not %-encoded UTF-8: {encoded}")


def entity_name(path: str, encoded: str) -> str | None:
    """Return the decoded name of a quota's owner; None for the default."""
    return None if encoded == _DEFAULT else name_of(path, encoded)
