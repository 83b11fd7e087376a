"""Masks of members of JSON. Members beside a path keep their text, digit by digit."""

from __future__ import annotations

import msgspec

from kbackup.errors import UndecodableError, UsageError
from kbackup.schemas.masks import HINT, Mask, Tree

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])


def masked_json(data: bytes, tree: Tree, mask: Mask, place: str) -> bytes:
    """Return JSON with the members of a tree masked, all of it for an empty one. `UndecodableError` for what is no
    JSON, and for a value without members where a path goes on."""
    try:
        masked = _masked_member(msgspec.Raw(data), tree, mask, place)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise UndecodableError(f"{place} is no JSON", HINT) from None
    return bytes(masked)


def _with_masks(raw: msgspec.Raw, tree: Tree, mask: Mask, place: str) -> msgspec.Raw:
    """Return the text of a value of JSON with its members masked. All others keep their text."""
    text = bytes(raw).lstrip()
    match text[:1]:
        case b"{":
            members = _OBJECT.decode(text)
            for name, below in tree.items():
                if name in members:
                    members[name] = _masked_member(members[name], below, mask, f"{name} in {place}")
            return msgspec.Raw(msgspec.json.encode(members))
        case b"[":
            elements = [_with_masks(element, tree, mask, place) for element in _LIST.decode(text)]
            return msgspec.Raw(msgspec.json.encode(elements))
        case b"n":
            msgspec.json.decode(text, type=None)
            return raw
        case _:
            msgspec.json.decode(text)
            raise UndecodableError(f"{place} is no object, though a path goes on in it", HINT)


def _masked_member(raw: msgspec.Raw, below: Tree, mask: Mask, place: str) -> msgspec.Raw:
    if below:
        return _with_masks(raw, below, mask, place)
    text = bytes(raw).lstrip()
    if text[:1] == b"[":
        elements = [_masked_member(element, below, mask, place) for element in _LIST.decode(text)]
        return msgspec.Raw(msgspec.json.encode(elements))
    return msgspec.Raw(msgspec.json.encode(_replacement(text, mask)))


def _replacement(text: bytes, mask: Mask) -> object:
    """Return what stands in the place of a value with this text, which is no list."""
    if mask.digest is None:
        if isinstance(mask.value, bytes):
            raise UsageError(f"{mask.name}: JSON has no bytes", "give a text or a number for a member of JSON")
        return mask.value
    text = text.strip()
    match text[:1]:
        case b"n":
            return None
        case b'"':
            return mask.digest(msgspec.json.decode(text, type=str).encode())
        case b"{":
            return mask.digest(msgspec.json.encode(msgspec.json.decode(text), order="sorted"))
        case _:
            return mask.digest(text)
