"""Masks of fields of Protocol Buffers.

A message is parsed and serialized again, always with the same bytes for the same fields. So nothing of a masked field
is left: data may give a field several times, of which only the last one is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from google.protobuf.message import Message

from kbackup.errors import KbackupError
from kbackup.schemas.base import misfit
from kbackup.schemas.masks import Mask, Scalar, Tree, refuse_path

_TEXTS = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)


def masked_protobuf(message: Message, tree: Tree, mask: Mask, place: str) -> bytes:
    """Return the data of a message with the fields of a tree masked. The message itself is altered.

    `UndecodableError` for a value without fields where a path goes on; `UsageError` for a type that can't hold what the
    mask puts there, as a message for an empty tree."""
    if not tree:
        mask.refuse(place, message.DESCRIPTOR.full_name, is_nest=True)
    try:
        _mask_message(message, tree, mask, place)
        return message.SerializeToString(deterministic=True)
    except KbackupError:
        raise
    except Exception as error:
        raise misfit("PROTOBUF", error) from error


def _mask_message(message: Message, tree: Tree, mask: Mask, place: str) -> None:
    # Only fields that are set: of a text that is not there, a digest would say so.
    for field, value in message.ListFields():
        below = tree.get(field.name)
        if below is None:
            continue
        here = f"{field.name} in {place}"
        if _is_map(field):
            _mask_map(message, field, below, mask, here)
        elif not below:
            _replace(message, field, mask, here)
        elif field.message_type is None:
            refuse_path(here, _kind(field))
        elif field.is_repeated:
            for element in value:
                _mask_message(element, below, mask, here)
        else:
            _mask_message(value, below, mask, here)


def _replace(message: Message, field: FieldDescriptor, mask: Mask, place: str) -> None:
    """Replace a field that is set; of a list, each of its values."""
    if mask.is_null:
        if field.is_required:
            mask.refuse(place, f"required {_kind(field)}")
        message.ClearField(field.name)
        return
    if field.message_type is not None:
        mask.refuse(place, field.message_type.full_name, is_nest=True)
    value = getattr(message, field.name)
    if not field.is_repeated:

        def put(made: Any) -> None:
            setattr(message, field.name, made)

        _put(put, field, _made_of(field, value, mask, place), mask, place)
        return
    made = [_made_of(field, each, mask, place) for each in value]

    def put_all(values: Any) -> None:
        value[:] = values

    _put(put_all, field, made, mask, place)


def _mask_map(message: Message, field: FieldDescriptor, tree: Tree, mask: Mask, place: str) -> None:
    """Mask the values of a map whose keys are in a tree, or clear all of it."""
    if not tree:
        if not mask.is_null:
            mask.refuse(place, "map", is_nest=True)
        message.ClearField(field.name)
        return
    entries = getattr(message, field.name)
    entry: Any = field.message_type
    kind: FieldDescriptor = entry.fields_by_name["value"]
    for key in list(entries):
        # Keys may be numbers and booleans, as JSON writes them.
        name = str(key).lower() if isinstance(key, bool) else str(key)
        below = tree.get(name)
        if below is None:
            continue
        here = f"{name} in {place}"
        if not below and mask.is_null:
            del entries[key]
        elif kind.message_type is not None:
            if not below:
                mask.refuse(here, kind.message_type.full_name, is_nest=True)
            _mask_message(entries[key], below, mask, here)
        elif below:
            refuse_path(here, _kind(kind))
        else:
            _put_entry(entries, key, kind, mask, here)


def _put_entry(entries: Any, key: object, kind: FieldDescriptor, mask: Mask, place: str) -> None:
    def put(made: Any) -> None:
        entries[key] = made

    _put(put, kind, _made_of(kind, entries[key], mask, place), mask, place)


def _made_of(field: FieldDescriptor, value: Any, mask: Mask, place: str) -> Scalar:
    """Return what stands in the place of a value of a field, in the type of the field."""
    if mask.digest is None:
        return _of_type(field, mask.value, mask, place)
    if field.type not in _TEXTS:
        _refuse(field, mask, place)
    text = value.encode() if isinstance(value, str) else value
    return _of_type(field, mask.of(text), mask, place)


def _of_type(field: FieldDescriptor, value: Scalar, mask: Mask, place: str) -> Scalar:
    """Return a value as the library takes it for a field. The library checks the others."""
    if field.type == FieldDescriptor.TYPE_BYTES and isinstance(value, str):
        return value.encode()
    if field.type == FieldDescriptor.TYPE_STRING and not isinstance(value, str):
        _refuse(field, mask, place)
    if field.enum_type is not None and isinstance(value, str):
        symbol = field.enum_type.values_by_name.get(value)
        if symbol is None:
            _refuse(field, mask, place)
        return int(symbol.number)
    # The library takes a boolean for a number, and a number for a boolean.
    is_boolean = field.type == FieldDescriptor.TYPE_BOOL
    if is_boolean != isinstance(value, bool):
        _refuse(field, mask, place)
    return value


def _put(
    put: Callable[[Any], None], field: FieldDescriptor, value: Scalar | Sequence[Scalar], mask: Mask, place: str
) -> None:
    try:
        put(value)
    except (TypeError, ValueError):
        _refuse(field, mask, place)


def _refuse(field: FieldDescriptor, mask: Mask, place: str) -> NoReturn:
    mask.refuse(place, _kind(field))


def _kind(field: FieldDescriptor) -> str:
    """Return the type of a field, as .proto files have it."""
    name = FieldDescriptorProto.Type.Name(field.type)  # type: ignore[arg-type]
    return name.removeprefix("TYPE_").lower()


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry
