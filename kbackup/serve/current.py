"""What is served at the moment, and waiting until that changes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from kbackup.serve.blocks import SegmentReader
from kbackup.serve.logs import ServedArchive
from kbackup.serve.protocol import ServedTopic
from kbackup.types import CommittedOffset


class Current:
    """The served archive, its reader, and the address that clients are told.

    A reader goes on over `move`: the batches that it holds stay right."""

    def __init__(self, archive: ServedArchive, reader: SegmentReader, address: tuple[str, int]) -> None:
        self.archive = archive
        self.reader = reader
        self._address = address
        self._changed = asyncio.Event()

    def topics(self) -> Mapping[str, ServedTopic]:
        return self.archive.topics

    def groups(self) -> Mapping[str, Sequence[CommittedOffset]]:
        return self.archive.groups

    def address(self) -> tuple[str, int]:
        return self._address

    def set_address(self, address: tuple[str, int]) -> None:
        """Tell clients this address from now on."""
        self._address = address

    def move_to(self, archive: ServedArchive) -> None:
        """Serve another restore point from now on, and wake those who wait for longer logs."""
        self.archive = archive
        changed = self._changed
        self._changed = asyncio.Event()
        changed.set()

    async def wait_for_change(self, seconds: float) -> None:
        """Return when something else is served, or after so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return
