"""Binary values of Kafka's formats: fixed widths, varints, zigzag. `Cursor` reads them, `Output` writes them."""

from __future__ import annotations

import struct
from typing import Any, NoReturn

from kbackup.errors import CorruptError

HINT = "copy the file again from the controller; if it stays, take the one of another controller"

_LOW = 0x7F
_MORE = 0x80


class Cursor:
    """Takes values off the front of `data[at:end]`. `base` is the position of `data` in the file `name`.

    Every method raises `CorruptError` if the bytes end too early or are none of its kind."""

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

    def finish(self, last: str) -> None:
        """Check that nothing follows `last`."""
        if self.at != self.end:
            self.fail(f"{self.remaining} bytes follow {last}")

    def take(self, size: int) -> bytes:
        start = self.at
        end = start + size
        # A size comes from the file, and may be negative.
        if not start <= end <= self.end:
            self.fail(f"{size} bytes are expected, {self.remaining} follow")
        self.at = end
        return self.data[start:end]

    def unpack(self, form: struct.Struct) -> tuple[Any, ...]:
        return form.unpack(self.take(form.size))

    def sub_cursor(self, size: int) -> Cursor:
        """Take `size` bytes as a cursor of their own."""
        start = self.at
        self.take(size)
        return Cursor(self.data, self.name, self.base, start, self.at)

    def unsigned(self, bits: int = 32) -> int:
        """Take a number of 7 bits a byte, the lowest first."""
        # Nearly all numbers take one byte, and need no loop.
        if self.at < self.end:
            byte = self.data[self.at]
            if byte <= _LOW:
                self.at += 1
                return byte
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & _LOW) << shift
            shift += 7
            if value >> bits or (byte & _MORE and shift >= bits):
                self.fail(f"a number of variable length has more than {bits} bits")
            if not byte & _MORE:
                return value

    def signed(self, bits: int = 32) -> int:
        """Take a number of 7 bits a byte in zigzag form: 0, 1, 2, 3, … are 0, -1, 1, -2, …"""
        value = self.unsigned(bits)
        return (value >> 1) ^ -(value & 1)


class Output(bytearray):
    """The opposite of `Cursor`."""

    def unsigned(self, value: int) -> None:
        while value > _LOW:
            self.append(value & _LOW | _MORE)
            value >>= 7
        self.append(value)

    def signed(self, value: int) -> None:
        self.unsigned(value << 1 if value >= 0 else (-value << 1) - 1)

    def sized(self, data: bytes) -> None:
        """Add bytes after their size in zigzag form."""
        self.signed(len(data))
        self += data


def corrupt(name: str, position: int, problem: str) -> CorruptError:
    return CorruptError(f"{name}: byte {position}: {problem}", HINT)
