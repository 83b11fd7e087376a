"""The server: connections, requests in order, deadlines and bounds.

Each connection has a task that reads a request, has it answered, writes the answer, and reads the next. Meanwhile one
more request is read ahead, which also shows a client that has gone away: what is being answered for it is cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from kbackup.metrics.registry import counted
from kbackup.serve.frames import Frame, RequestReader, RequestRoom
from kbackup.serve.protocol import (
    LARGEST_FRAME,
    LARGEST_FRAME_BEFORE_LOGIN,
    Api,
    ClientConnection,
    ClientRequest,
    ErrorCode,
    Gate,
    HostileClientError,
    RequestHeader,
    RequestRefusedError,
    decode_request,
    read_header,
)
from kbackup.serve.refused import refusal
from kbackup.serve.responses import Piece, encode_response
from kbackup.serve.seldom import Seldom
from kbackup.serve.unsent import UnsentAnswers
from kbackup.serve.versions import versions_api, versions_response

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 2000
"""Connections that are open at a time; a client has one or two for each of its threads."""

_IDLE_SECONDS = 600.0
"""How long a connection may be silent, as brokers have it."""
_STALL_SECONDS = 60.0
"""How long a client may take none of the bytes that wait for it."""
_LOGIN_SECONDS = 60.0
"""How long a client may take to log in."""

_STOP_SECONDS = 1.0
"""How long the server waits for its connections to end before it cancels them once more."""

_LOG_SECONDS = 60.0
"""How long further clients that are turned away are counted and not logged."""

MOST_UNSENT = 128 << 20
"""Bytes of answers that wait for their clients, all connections together."""

_COPIED_AT_ONCE = 256 << 10
"""Bytes of an answer that are copied and sent: few enough to stay in the processor's cache on the way."""

_READ_AT_ONCE = 64 << 10
"""Bytes of a client that wait to be read: some times that are in memory for each connection."""


@dataclass(slots=True)
class ServerCounts:
    """What the server has seen since its start."""

    connections: int = 0
    requests: int = 0
    refused: int = 0
    hostile: int = 0
    failed: int = 0


class KafkaServer:
    """Answers the requests of `apis` on a socket. With `gate`, every request passes it before it is answered; with
    `tls`, connections are encrypted. Answers that wait for their clients take up to `unsent` bytes.

    `changed` is called with the number of connections whenever it changes."""

    def __init__(
        self,
        apis: Sequence[Api],
        *,
        gate: Gate | None = None,
        tls: ssl.SSLContext | None = None,
        changed: Any = None,
        unsent: int = MOST_UNSENT,
    ) -> None:
        self._apis = {api.key: api for api in [*apis, versions_api(apis)]}
        self._gate = gate
        self._tls = tls
        self._changed = changed
        self._connections: dict[asyncio.Task[None], ClientConnection] = {}
        self._room = RequestRoom()
        self._unsent = UnsentAnswers(unsent)
        self._turned_away = Seldom(_LOG_SECONDS)
        self._server: asyncio.Server | None = None
        self.counts = ServerCounts()

    @property
    def apis(self) -> list[Api]:
        """The requests that are answered."""
        return list(self._apis.values())

    @property
    def clients(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that wait for their clients."""
        return self._unsent.bytes

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Begin to listen; return the address, which has a free port in place of port 0. Raises `OSError`."""
        self._server = await asyncio.start_server(
            self._accept, host, port, limit=_READ_AT_ONCE, backlog=512, ssl=self._tls
        )
        address = self._server.sockets[0].getsockname()
        return str(address[0]), int(address[1])

    async def stop(self) -> None:
        """Close every connection at once, and stop to listen."""
        if self._server is not None:
            self._server.close()
        while self._connections:
            going = list(self._connections)
            for task in going:
                task.cancel()
            # Again for a connection that was accepted meanwhile, or that something kept from hearing it.
            await asyncio.wait(going, timeout=_STOP_SECONDS)
            # Of a task that is done, the callback may have yet to run.
            await asyncio.sleep(0)

    def close_clients(self, is_unwanted: Callable[[ClientConnection], bool]) -> list[ClientConnection]:
        """Close the connections that are no longer wanted, and return them."""
        unwanted = {task: each for task, each in self._connections.items() if is_unwanted(each)}
        for task, connection in unwanted.items():
            connection.closing = True
            task.cancel()
        return list(unwanted.values())

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= MOST_CONNECTIONS:
            unlogged = self._turned_away.due("")
            if unlogged is not None:
                others = f"; {unlogged} others since the last line" if unlogged else ""
                log.warning("a client was turned away: %d connections are open%s", len(self._connections), others)
            writer.transport.abort()
            return
        peer = writer.get_extra_info("peername")
        connection = ClientConnection(str(peer[0]) if peer else "?", encrypted=self._tls is not None)
        task = asyncio.ensure_future(self._serve(connection, reader, writer))
        # By a callback, because a task that is cancelled before it begins does nothing of its own.
        task.add_done_callback(partial(self._end, connection, writer))
        self._connections[task] = connection
        self.counts.connections += 1
        self._tell()

    def _end(self, connection: ClientConnection, writer: asyncio.StreamWriter, task: asyncio.Task[None]) -> None:
        connection.closing = True
        writer.transport.abort()
        self._unsent.forget(writer.transport)
        del self._connections[task]
        self._tell()

    async def _serve(
        self, connection: ClientConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            await self._converse(connection, reader, writer)
        except HostileClientError as error:
            self.counts.hostile += 1
            log.info("closed the connection of %s: %s", connection.host, error)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            log.debug("the connection of %s ended: %r", connection.host, error)
        except Exception:
            self.counts.failed += 1
            log.exception("internal error in the connection of %s", connection.host)

    def _tell(self) -> None:
        counted.put("kbackup_serve_connections", len(self._connections))
        if self._changed is not None:
            self._changed(len(self._connections))

    async def _converse(
        self, connection: ClientConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer the requests of a connection one after the other, until it ends."""
        requests = RequestReader(reader, self._room)
        coming = asyncio.ensure_future(self._frame(connection, requests))
        try:
            while True:
                frame = await coming
                if frame is None:
                    return
                # A login decides how large the next request may be, so it is not read ahead.
                ahead = connection.principal is not None or self._gate is None
                if ahead:
                    coming = asyncio.ensure_future(self._frame(connection, requests))
                await self._respond(connection, writer, frame, coming if ahead else None)
                requests.answered(frame)
                del frame
                if connection.closing:
                    return
                if not ahead:
                    coming = asyncio.ensure_future(self._frame(connection, requests))
        finally:
            coming.cancel()
            with suppress(BaseException):
                await coming
            requests.close()

    async def _respond(
        self,
        connection: ClientConnection,
        writer: asyncio.StreamWriter,
        frame: Frame,
        coming: asyncio.Future[Frame | None] | None,
    ) -> None:
        """Answer one request, and wait until the client has taken the answer."""
        answering = asyncio.ensure_future(self._answer(connection, frame.data))
        frame_pieces = await _answered(answering, coming, connection)
        if frame_pieces is not None:
            _write(writer, frame_pieces)
            # What is not sent yet was copied: some megabytes less for each client that waits.
            del frame_pieces, answering
            self._unsent.note(writer.transport)
            await _written(writer)
            self._unsent.note(writer.transport)

    async def _frame(self, connection: ClientConnection, requests: RequestReader) -> Frame | None:
        """Read a request; None at the end of the connection."""
        if connection.principal is not None or self._gate is None:
            return await requests.read(LARGEST_FRAME, _IDLE_SECONDS)
        return await requests.read(LARGEST_FRAME_BEFORE_LOGIN, _LOGIN_SECONDS)

    async def _answer(self, connection: ClientConnection, frame: bytes) -> list[Piece] | None:
        """Answer one request; None if it has no answer."""
        header = read_header(frame)
        connection.client_id = header.client_id[:_LONGEST_NAME]
        api = self._apis.get(header.key)
        self.counts.requests += 1
        if api is None:
            raise HostileClientError(f"request {header.key}, which was never offered")
        if not api.oldest <= header.version <= api.newest:
            return self._other_version(api, header)
        name = api.request.name
        counted.add("kbackup_serve_requests_total", 1, name.removesuffix("Request"))
        request = ClientRequest(decode_request(api, header), header.version, connection)
        try:
            if self._gate is not None:
                self._gate(request)
            response = await api.answer(request)
        except RequestRefusedError as error:
            self.counts.refused += 1
            counted.add("kbackup_serve_refused_total")
            log.info("%s of %s was refused: %s", name, connection.host, error)
            response = refusal(api, request, error)
        except HostileClientError:
            raise
        except Exception:
            self.counts.failed += 1
            log.exception("internal error in %s of %s", name, connection.host)
            response = refusal(api, request, RequestRefusedError(ErrorCode.UNKNOWN_SERVER_ERROR))
        if response is None:
            return None
        return encode_response(api, header, response)

    def _other_version(self, api: Api, header: RequestHeader) -> list[Piece]:
        """Answer a request of a version that is not answered."""
        if api.key != _API_VERSIONS:
            raise HostileClientError(f"{api.request.name} of version {header.version}, which was never offered")
        # By KIP-511: in version 0, which every client reads, with the versions of this request.
        own = versions_response([api], ErrorCode.UNSUPPORTED_VERSION)
        oldest = RequestHeader(header.key, 0, header.correlation, header.client_id, header.body)
        return encode_response(api, oldest, own)


_API_VERSIONS = 18
_LONGEST_NAME = 200


async def _answered(
    answering: asyncio.Task[list[Piece] | None],
    coming: asyncio.Future[Frame | None] | None,
    connection: ClientConnection,
) -> list[Piece] | None:
    """Wait for an answer, and cancel it if the client goes away meanwhile."""
    try:
        if coming is not None:
            either: list[asyncio.Future[Any]] = [answering, coming]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and _has_ended(coming):
                connection.closing = True
                answering.cancel()
        return await answering
    except asyncio.CancelledError:
        if not answering.done():
            answering.cancel()
        if connection.closing:
            return None
        raise


def _has_ended(coming: asyncio.Future[Frame | None]) -> bool:
    return coming.exception() is not None or coming.result() is None


def _write(writer: asyncio.StreamWriter, pieces: list[Piece]) -> None:
    """Send as much as the client takes at once, and let the rest wait for it. All of it are copies.

    From Python 3.12 on, a transport keeps what it was given. A slow client would keep records in memory that nobody
    else wants: those that it is sent, and all that were read with them."""
    for piece in pieces:
        whole = memoryview(piece)
        for begin in range(0, len(whole), _COPIED_AT_ONCE):
            if writer.transport.is_closing():
                # The client has gone: asyncio would log each further write.
                return
            writer.write(bytes(whole[begin : begin + _COPIED_AT_ONCE]))


async def _written(writer: asyncio.StreamWriter) -> None:
    """Wait until the client has taken nearly all of the answer. Raises `TimeoutError` if it takes nothing for long."""
    transport = writer.transport
    waiting = transport.get_write_buffer_size()
    while True:
        try:
            async with asyncio.timeout(_STALL_SECONDS):
                await writer.drain()
        except TimeoutError:
            remaining = transport.get_write_buffer_size()
            if remaining >= waiting:
                raise
            waiting = remaining
            continue
        return
