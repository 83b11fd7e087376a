"""Committed offsets of a partition's consumer groups: a JSON object, group id to the next offset to read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kbackup.errors import CorruptError, UsageError

_INT64_MAX = 2**63 - 1
_HINT = 'write a JSON object of consumer group ids and offsets, such as {"group":42}'


def encode_group_offsets(offsets: Mapping[str, int]) -> bytes:
    """Compact UTF-8 JSON in the mapping's order. A group without a commit (-1) is left out."""
    for group, offset in offsets.items():
        if not -1 <= offset <= _INT64_MAX:
            raise UsageError(f"group {group}: offset {offset}", "give an offset of 0 or more, or -1 for none")
    committed = {group: offset for group, offset in offsets.items() if offset != -1}
    return json.dumps(committed, ensure_ascii=False, separators=(",", ":")).encode()


def decode_group_offsets(data: bytes, name: str) -> dict[str, int]:
    """The offsets in the file `name`, in its order; `CorruptError` for anything but ids with offsets."""
    try:
        pairs = json.loads(data.decode(), object_pairs_hook=_Pairs, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{name}: not valid JSON in UTF-8 ({error})", _HINT) from None
    if not isinstance(pairs, _Pairs):
        raise CorruptError(f"{name}: not a JSON object", _HINT)
    offsets: dict[str, int] = {}
    for group, offset in pairs:
        if type(offset) is not int or not 0 <= offset <= _INT64_MAX:
            raise CorruptError(f"{name}: group {group!r} has no offset of 0 or more", _HINT)
        if group in offsets:
            raise CorruptError(f"{name}: group {group!r} stands there twice", _HINT)
        if any("\ud800" <= char <= "\udfff" for char in group):
            raise CorruptError(f"{name}: group {group!r} is not Unicode text", _HINT)
        offsets[group] = offset
    return offsets


class _Pairs(list[tuple[str, Any]]):
    """A JSON object before its duplicate keys are lost."""


def _refuse_constant(literal: str) -> None:
    raise ValueError(f"{literal} is not JSON")
