"""Read requests from a connection, within bounds of size, time and memory.

The records of a producer are dropped as they come: what writes is refused, and its answer needs the names of topics and
partitions alone. Other large requests share a room: a client waits until there is some.
"""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass

from kbackup.serve.protocol import LARGEST_FRAME_BEFORE_LOGIN, MOST_ELEMENTS, HostileClientError, largest_frame

ROOM = 32 << 20
"""Bytes of all large requests together, from their first byte until they are answered. Decoded, a request may take a
hundred times its bytes."""

SMALL_FRAME = LARGEST_FRAME_BEFORE_LOGIN
"""Bytes of a request that takes no room: nearly every one is smaller, and who has yet to log in takes none from others.
"""

_FRAME_SECONDS = 60.0
"""How long a request may take to come, from its first byte to its last."""

_AT_ONCE = 64 << 10
"""Bytes that are dropped at once."""

_PRODUCE = 0
_MOST_NAMES = 1 << 20
"""Bytes of a producer's request without its records, at most."""
_OLDEST_PRODUCE, _NEWEST_PRODUCE = 3, 13
_FLEXIBLE_PRODUCE = 9
_PRODUCE_BY_ID = 13
_LONG_VARINT = 5
"""Bytes of the longest number of 32 bits."""


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """A request without its length, and the room that it takes until it is answered."""

    data: bytes
    room: int


class RequestRoom:
    """Memory that large requests share. Belongs to one event loop."""

    def __init__(self, total: int = ROOM) -> None:
        self._total = total
        self._taken = 0
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def taken(self) -> int:
        return self._taken

    async def take(self, size: int) -> None:
        """Take so many bytes as soon as they are free."""
        while self._taken and self._taken + size > self._total:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        self._taken += size

    def give_back(self, size: int) -> None:
        if not size:
            return
        self._taken -= size
        waiting, self._waiting = self._waiting, []
        for turn in waiting:
            if not turn.done():
                turn.set_result(None)


class RequestReader:
    """Reads the requests of one connection. `close` gives back the room of those that were never answered."""

    def __init__(self, stream: asyncio.StreamReader, room: RequestRoom) -> None:
        self._stream = stream
        self._room = room
        self._held = 0

    async def read(self, most: int, patience: float) -> Frame | None:
        """Read a request of up to `most` bytes, which begins within `patience` seconds; None at the end of the
        connection. Raises `HostileClientError`, `TimeoutError`, `asyncio.IncompleteReadError`."""
        try:
            # Not `wait_for`: in Python 3.11 it forgets that it was cancelled if what it waits for is ready just then,
            # and the connection outlives the server.
            async with asyncio.timeout(patience):
                head = await self._stream.readexactly(4)
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise
            return None
        size = int.from_bytes(head, "big", signed=True)
        if not 8 <= size <= most:
            raise HostileClientError(f"a request of {size} bytes")
        async with asyncio.timeout(_FRAME_SECONDS):
            return await self._rest(size)

    def answered(self, frame: Frame) -> None:
        """Give back the room of a request."""
        self._held -= frame.room
        self._room.give_back(frame.room)

    def close(self) -> None:
        """Give back what is still held."""
        self._room.give_back(self._held)
        self._held = 0

    async def _rest(self, size: int) -> Frame:
        key_bytes = await self._stream.readexactly(2)
        key = int.from_bytes(key_bytes, "big", signed=True)
        if size > largest_frame(key):
            raise HostileClientError(f"a request {key_bytes.hex()} of {size} bytes")
        if size <= SMALL_FRAME:
            return Frame(key_bytes + await self._stream.readexactly(size - 2), 0)
        if key != _PRODUCE:
            await self._hold(size)
            return Frame(key_bytes + await self._stream.readexactly(size - 2), size)
        most = min(size, _MOST_NAMES)
        await self._hold(most)
        data = await _without_records(_Body(self._stream, key_bytes, size))
        return Frame(data, most)

    async def _hold(self, size: int) -> None:
        await self._room.take(size)
        self._held += size


class _Body:
    """A request that is read field by field; `kept` is what is to be decoded of it."""

    def __init__(self, stream: asyncio.StreamReader, begun: bytes, size: int) -> None:
        self._stream = stream
        self.kept = bytearray(begun)
        self._left = size - len(begun)

    async def keep(self, size: int) -> bytes:
        """Read so many bytes, keep them, and return them."""
        if size < 0 or size > self._left or len(self.kept) + size > _MOST_NAMES:
            raise HostileClientError("a request of a producer that is not as long as it says")
        data = await self._stream.readexactly(size)
        self._left -= size
        self.kept += data
        return data

    async def drop(self, size: int) -> None:
        """Read so many bytes, and forget them."""
        if size > self._left:
            raise HostileClientError("records that are longer than their request")
        self._left -= size
        while size > 0:
            data = await self._stream.read(min(size, _AT_ONCE))
            if not data:
                raise asyncio.IncompleteReadError(b"", size)
            size -= len(data)

    async def varint(self) -> int:
        """Read and keep a number without a sign."""
        value = 0
        for place in range(_LONG_VARINT):
            (byte,) = await self.keep(1)
            value |= (byte & 0x7F) << (7 * place)
            if not byte & 0x80:
                return value
        raise HostileClientError("a number of more than 32 bits")

    async def int32(self) -> int:
        return int.from_bytes(await self.keep(4), "big", signed=True)

    async def tagged_fields(self) -> None:
        for _ in range(await self.varint()):
            await self.varint()
            await self.keep(await self.varint())

    async def text(self, *, flexible: bool) -> None:
        """Read and keep a text, or null."""
        if flexible:
            size = await self.varint() - 1
        else:
            (size,) = struct.unpack(">h", await self.keep(2))
        await self.keep(max(size, 0))

    async def count(self, *, flexible: bool) -> int:
        """Read and keep the length of a list."""
        count = await self.varint() - 1 if flexible else await self.int32()
        if count > MOST_ELEMENTS:
            raise HostileClientError(f"a list of {count} elements")
        return count

    async def records(self, *, flexible: bool) -> None:
        """Drop records, and keep a null in place of them."""
        before = len(self.kept)
        size = await self.varint() - 1 if flexible else await self.int32()
        self.kept[before:] = b"\0" if flexible else b"\xff\xff\xff\xff"
        await self.drop(max(size, 0))

    async def end(self) -> bytes:
        """Drop what follows; return what was kept."""
        await self.drop(self._left)
        return bytes(self.kept)


async def _without_records(body: _Body) -> bytes:
    """Return a request of a producer with null in place of all records."""
    (version,) = struct.unpack(">h", await body.keep(2))
    await body.keep(4)  # its number
    await body.text(flexible=False)  # the client's name
    if not _OLDEST_PRODUCE <= version <= _NEWEST_PRODUCE:
        # It is refused by its version.
        return await body.end()
    flexible = version >= _FLEXIBLE_PRODUCE
    if flexible:
        await body.tagged_fields()
    await body.text(flexible=flexible)  # of a transaction
    await body.keep(6)  # acks, and how long to wait for them
    for _ in range(await body.count(flexible=flexible)):
        if version >= _PRODUCE_BY_ID:
            await body.keep(16)
        else:
            await body.text(flexible=flexible)
        for _ in range(await body.count(flexible=flexible)):
            await body.keep(4)
            await body.records(flexible=flexible)
            if flexible:
                await body.tagged_fields()
        if flexible:
            await body.tagged_fields()
    if flexible:
        await body.tagged_fields()
    return await body.end()
