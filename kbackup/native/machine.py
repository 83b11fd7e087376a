"""Numba intrinsics: loads and stores at addresses, and calls of librdkafka's functions.

Addresses are intp. Nothing is checked: the caller must pass valid addresses.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import from_dtype, njit, types
from numba.extending import intrinsic

from kbackup.native.librdkafka import HEADER_NAME_LENGTH, address
from kbackup.native.structures import layout_of

# Fields of a `rd_kafka_message_t`: bytes from its start. Its error code comes first.
MESSAGE_TOPIC = 8
MESSAGE_PARTITION = 16
MESSAGE_VALUE = 24
MESSAGE_VALUE_LENGTH = 32
MESSAGE_KEY = 40
MESSAGE_KEY_LENGTH = 48
MESSAGE_OFFSET = 56
MESSAGE_OPAQUE = 64

_POINTER, _SIZE, _INT, _INT64, _VOID = types.intp, types.intp, types.int32, types.int64, types.void


def _function(name: str, result: Any, *arguments: Any) -> Any:
    llvm.add_symbol(name, address(name))
    return types.ExternalFunction(name, result(*arguments))


consume_batch = _function("rd_kafka_consume_batch_queue", _SIZE, _POINTER, _INT, _POINTER, _SIZE)
message_destroy = _function("rd_kafka_message_destroy", _VOID, _POINTER)
message_timestamp = _function("rd_kafka_message_timestamp", _INT64, _POINTER, _POINTER)
message_leader_epoch = _function("rd_kafka_message_leader_epoch", _INT, _POINTER)
message_headers = _function("rd_kafka_message_headers", _INT, _POINTER, _POINTER)
header_get = _function("rd_kafka_header_get_all", _INT, _POINTER, _SIZE, _POINTER, _POINTER, _POINTER)
headers_new = _function("rd_kafka_headers_new", _POINTER, _SIZE)
headers_destroy = _function("rd_kafka_headers_destroy", _VOID, _POINTER)
header_add = _function("rd_kafka_header_add", _INT, _POINTER, _POINTER, _SIZE, _POINTER, _SIZE)
produce = _function("rd_kafka_produceva", _POINTER, _POINTER, _POINTER, _SIZE)
error_code = _function("rd_kafka_error_code", _INT, _POINTER)
error_destroy = _function("rd_kafka_error_destroy", _VOID, _POINTER)
queue_poll = _function("rd_kafka_queue_poll", _POINTER, _POINTER, _INT)
event_type = _function("rd_kafka_event_type", _INT, _POINTER)
event_messages = _function("rd_kafka_event_message_array", _SIZE, _POINTER, _POINTER, _SIZE)
event_destroy = _function("rd_kafka_event_destroy", _VOID, _POINTER)
message_reason = _function("rd_kafka_message_produce_errstr", _POINTER, _POINTER)
copy: Any = types.ExternalFunction("memcpy", _POINTER(_POINTER, _POINTER, _SIZE))
copy_text: Any = types.ExternalFunction("strncpy", _POINTER(_POINTER, _POINTER, _SIZE))
compare_text: Any = types.ExternalFunction("strncmp", _INT(_POINTER, _POINTER, _SIZE))


def _load(kind: Any, bits: int, big: bool) -> Any:
    @intrinsic
    def load(typing: Any, where: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            value = builder.load(pointer, align=1)
            return builder.bswap(value) if big else value

        return kind(_POINTER), generate

    return load


def _store(kind: Any, bits: int, big: bool) -> Any:
    @intrinsic
    def store(typing: Any, where: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            builder.store(builder.bswap(args[1]) if big else args[1], pointer, align=1)
            return context.get_dummy_value()

        return _VOID(_POINTER, kind), generate

    return store


load64 = _load(_INT64, 64, big=False)
load32 = _load(_INT, 32, big=False)
load64_big = _load(_INT64, 64, big=True)
load32_big = _load(_INT, 32, big=True)
store64 = _store(_INT64, 64, big=False)
store64_big = _store(_INT64, 64, big=True)
store32_big = _store(_INT, 32, big=True)


def record_type(fields: type) -> Any:
    """Return numba's type of a structure."""
    return from_dtype(layout_of(fields))


def _address_of(_: Any, structure: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ptrtoint(arguments[0], context.get_value_type(_POINTER))

    return _POINTER(structure), generate


address_of: Any = intrinsic(_address_of)
"""The address of a structure, for librdkafka to write into its fields or to read them."""


@njit(inline="always")
def header_name_length(name: int) -> Any:
    """Return bytes of the header name at an address; it may hold NUL bytes, which is why it is not measured."""
    return load64(name - HEADER_NAME_LENGTH)
