"""Find how large the bytes of a Protobuf message may become, before they are parsed.

A message has memory for all its fields, and JSON has those without presence even where no byte tells of them: of a
message of 10,000 fields, two bytes are one more message. So the messages in the bytes are counted before the library
makes them, by the wire format alone (protobuf.dev, "Encoding").
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool

from kbackup.schemas.base import TextBudget

_FIELD = 16
"""Characters that a field takes beside its name: its value, or its memory."""
_DIGITS = 24
"""Characters that a byte can become: a number, as the element of a list."""
_ANY = "google.protobuf.Any"
_VARINT, _FIXED64, _DELIMITED, _GROUP, _END_GROUP, _FIXED32 = range(6)
_MOST_LEVELS = 100  # the library's own limit


class MessageGrowth(NamedTuple):
    """The size that messages of a kind, with those within them, become at most: characters for each message, and for
    each byte.

    `is_open`: it can hold messages of any kind (`google.protobuf.Any`).
    """

    per_message: int
    per_byte: int
    is_open: bool


def growth_of(kind: Descriptor) -> MessageGrowth:
    """Return the growth of a kind of message, with all kinds that it can hold."""
    per_message = per_byte = 0
    is_open = False
    for within in _kinds_within(kind):
        per_message = max(per_message, _text_of_fields(within))
        per_byte = max(per_byte, _text_of_byte(within))
        is_open = is_open or within.full_name == _ANY
    return MessageGrowth(per_message, per_byte, is_open)


def _kinds_within(kind: Descriptor) -> Iterator[Descriptor]:
    """Yield a kind of message, and all kinds that it can hold."""
    known = {kind.full_name}
    waiting = [kind]
    while waiting:
        outer = waiting.pop()
        yield outer
        for field in outer.fields:
            inner = field.message_type
            if inner is not None and inner.full_name not in known:
                known.add(inner.full_name)
                waiting.append(inner)


def _text_of_fields(kind: Descriptor) -> int:
    return _FIELD + sum(len(field.name) + _FIELD for field in kind.fields)


def _text_of_byte(kind: Descriptor) -> int:
    """Return what a byte of a field can become: the longest name of an enum's value, or a number."""
    longest = _DIGITS
    for field in kind.fields:
        if field.enum_type is not None:
            longest = max(longest, *(len(name) for name in field.enum_type.values_by_name))
    return longest


def check_growth(data: bytes, kind: Descriptor, pool: DescriptorPool, growth: MessageGrowth) -> None:
    """Raise `UndecodableError` if `data`, a message of `kind`, could become more than `TextBudget` has."""
    budget = TextBudget(len(data))
    most_messages = len(data) // 2 + 1  # a message within another one takes a tag and a length
    most_text = most_messages * growth.per_message + len(data) * growth.per_byte
    # Messages are counted only if the bytes could be too many of them: those of usual schemas could not.
    if growth.is_open or most_text > budget.most:
        _Walk(pool, budget).message(data, 0, len(data), kind, 0)


class _Walk:
    """Goes through the messages in some bytes, and spends what they become."""

    def __init__(self, pool: DescriptorPool, budget: TextBudget) -> None:
        self._pool, self._budget = pool, budget
        self._costs: dict[str, int] = {}

    def message(self, data: bytes, at: int, end: int, kind: Descriptor | None, level: int) -> int:
        """Go through a message and return where it ends: at `end`, or behind the end of a group. `kind` None: no field
        of it is known.

        Bytes that are no message end the walk: the library says what is wrong with them.
        """
        self._budget.spend(self._cost_of(kind))
        fields = kind.fields_by_number if kind is not None else {}
        found: dict[str, tuple[int, int]] = {}
        while at < end and level < _MOST_LEVELS:
            tag, at = _varint(data, at, end)
            wire, field = tag & 7, fields.get(tag >> 3)
            inner = field.message_type if field is not None else None
            if wire == _END_GROUP:
                break
            if wire == _GROUP:
                at = self.message(data, at, end, inner, level + 1)
                continue
            start, at = _content(data, at, end, wire)
            if at > end:
                return end
            if field is None:
                self._budget.spend(_FIELD)  # of unknown fields the library keeps the bytes
            elif inner is not None:
                self.message(data, start, at, inner, level + 1)
            else:
                found[field.name] = start, at
                self._budget.spend(_text_of_value(field, at - start))
        if kind is not None and kind.full_name == _ANY and "value" in found:
            # Only now: the type may stand behind the value, and of several the last one counts.
            start, stop = found.get("type_url", (0, 0))
            self._packed(data, *found["value"], data[start:stop], level)
        return at

    def _cost_of(self, kind: Descriptor | None) -> int:
        if kind is None:
            return _FIELD
        if kind.full_name not in self._costs:
            self._costs[kind.full_name] = _text_of_fields(kind)
        return self._costs[kind.full_name]

    def _packed(self, data: bytes, at: int, end: int, url: bytes, level: int) -> None:
        """Go through a message whose type is named by `url`."""
        try:
            kind = self._pool.FindMessageTypeByName(url.decode(errors="replace").rpartition("/")[2])
        except KeyError:
            return  # then the library refuses it
        self.message(data, at, end, kind, level + 1)


def _content(data: bytes, at: int, end: int, wire: int) -> tuple[int, int]:
    """Return where the content of a field begins and ends: beyond `end` if it is cut, or is none."""
    if wire == _VARINT:
        return at, _varint(data, at, end)[1]
    if wire == _DELIMITED:
        size, start = _varint(data, at, end)
        return start, start + size
    if wire == _FIXED64:
        return at, at + 8
    return at, at + 4 if wire == _FIXED32 else end + 1


def _text_of_value(field: FieldDescriptor, size: int) -> int:
    """Return what a value of `size` bytes becomes, or the values of a packed list."""
    if field.type in (field.TYPE_STRING, field.TYPE_BYTES):
        return _FIELD + 2 * size
    if field.enum_type is not None:
        return size * max(len(name) for name in field.enum_type.values_by_name)
    return size * _DIGITS


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return a number, and where it ends: beyond `end` if it is cut."""
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
    return value, end + 1
