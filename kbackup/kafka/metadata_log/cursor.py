"""Reading and writing of the values that Kafka's records are made of. All integers are big-endian."""

from __future__ import annotations

import base64
import struct
from typing import NoReturn

from kbackup.errors import CorruptError

HINT = "copy the file again from the controller; if it stays, take the one of another controller"

_NUMBERS = {
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "uint16": struct.Struct(">H"),
    "int32": struct.Struct(">i"),
    "uint32": struct.Struct(">I"),
    "int64": struct.Struct(">q"),
    "float64": struct.Struct(">d"),
}
_UUID_BYTES = 16
_LOW = 0x7F
_MORE = 0x80


class Cursor:
    """Takes values off the front of `data[at:end]`. `base` is the position of `data` in the file `name`.

    Every method raises `CorruptError` where the bytes end too early or are none of its kind.
    """

    def __init__(self, data: bytes, name: str, base: int = 0, at: int = 0, end: int | None = None) -> None:
        self.data = data
        self.name = name
        self.base = base
        self.at = at
        self.end = len(data) if end is None else end

    @property
    def remaining(self) -> int:
        return self.end - self.at

    def fail(self, problem: str) -> NoReturn:
        raise corrupt(self.name, self.base + self.at, problem)

    def take(self, size: int) -> bytes:
        start = self.at
        end = start + size
        if not start <= end <= self.end:
            self.fail(f"{size} bytes are expected, {self.remaining} follow")
        self.at = end
        return self.data[start:end]

    def sub_cursor(self, size: int) -> Cursor:
        """Take `size` bytes as a cursor of their own."""
        start = self.at
        self.take(size)
        return Cursor(self.data, self.name, self.base, start, self.at)

    def number(self, kind: str) -> int:
        form = _NUMBERS[kind]
        (value,) = form.unpack(self.take(form.size))
        return int(value)

    def float64(self) -> float:
        (value,) = _NUMBERS["float64"].unpack(self.take(8))
        return float(value)

    def uuid(self) -> str:
        return base64.urlsafe_b64encode(self.take(_UUID_BYTES)).decode().rstrip("=")

    def unsigned(self, bits: int = 32) -> int:
        """Take a number of 7 bits a byte, the lowest first."""
        if self.at < self.end and (byte := self.data[self.at]) <= _LOW:  # nearly all are that small
            self.at += 1
            return byte
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & _LOW) << shift
            shift += 7
            if not byte & _MORE:
                break
            if shift >= bits:
                self.fail(f"a number of variable length has more than {bits} bits")
        if value >> bits:
            self.fail(f"a number of variable length has more than {bits} bits")
        return value

    def signed(self, bits: int = 32) -> int:
        """Take such a number in zigzag form: 0, -1, 1, -2, …"""
        value = self.unsigned(bits)
        return (value >> 1) ^ -(value & 1)


class Output(bytearray):
    """The opposite of `Cursor`."""

    def number(self, kind: str, value: float) -> None:
        self += _NUMBERS[kind].pack(value)

    def uuid(self, text: str) -> None:
        data = base64.urlsafe_b64decode(text + "==")
        if len(data) != _UUID_BYTES:
            raise ValueError(f"{text!r} is no id of Kafka's: 22 characters of URL-safe base64")
        self += data

    def unsigned(self, value: int) -> None:
        while value > _LOW:
            self.append(value & _LOW | _MORE)
            value >>= 7
        self.append(value)

    def signed(self, value: int) -> None:
        self.unsigned(value << 1 if value >= 0 else (-value << 1) - 1)


def corrupt(name: str, position: int, problem: str) -> CorruptError:
    return CorruptError(f"{name}: byte {position}: {problem}", HINT)
