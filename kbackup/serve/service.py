"""The parts of a server of an archive, put together: what is served, who answers, and following the archive."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from kbackup.archive.query.java import open_archive_or_folder
from kbackup.archive.reader import Archive
from kbackup.config.models import Serve
from kbackup.errors import KbackupError, UsageError
from kbackup.kafka.batches import load_batch_kernel
from kbackup.metrics.server import parse_address
from kbackup.serve.blocks import SegmentReader
from kbackup.serve.cluster import ClusterView
from kbackup.serve.current import Current
from kbackup.serve.fetch import Fetching
from kbackup.serve.groups.answers import GroupAnswers
from kbackup.serve.login import Logins
from kbackup.serve.logs import Choosing, ServedArchive, served_archive
from kbackup.serve.offsets import Offsets
from kbackup.serve.protocol import Api
from kbackup.serve.refused import refused_apis
from kbackup.serve.server import KafkaServer
from kbackup.serve.settings import ArchivedSettings
from kbackup.serve.tls import ServerTls
from kbackup.serve.users import UsersFile
from kbackup.store.base import Store
from kbackup.util.plain_http import is_loopback_address
from kbackup.util.text import address_text

log = logging.getLogger(__name__)

USERS_SECONDS = 2.0
"""How often a server looks whether the users of open connections may still log in."""

FOLLOW_SECONDS = 10.0
"""How often a server that follows looks for a new restore point: one LIST each time."""

_STOP_SECONDS = 60.0
"""How long a program waits for a server in a thread to stop, which takes some hundredths of a second."""

MEMORY = 512 << 20
_OWN_MEMORY = 2
"""The part of the memory that batches take in which nobody is interested at the moment: one half."""
_ANSWERS_MEMORY = 4
"""The part that answers on their way take: a quarter. The rest is for what is being read."""


class Answerer(Protocol):
    """Somebody who answers some requests."""

    def apis(self) -> Sequence[Api]:
        """Return the requests that are answered."""


@dataclass(frozen=True)
class Listening:
    """Where a server listens, and the address that clients are told: None for the one that it listens on. Without
    `logins` nobody has to log in."""

    host: str = "127.0.0.1"
    port: int = 9092
    advertise: tuple[str, int] | None = None
    tls: ssl.SSLContext | None = None
    logins: Logins | None = None

    @classmethod
    def of(cls, options: Serve) -> Listening:
        """Return where to listen by the configuration. Raises `UsageError` for an address or a file that can't be used,
        and for an address that would show the archive to others unasked."""
        tls = _open_tls(options.tls_certificate, options.tls_key)
        logins = Logins(UsersFile(Path(options.users))) if options.users else None
        host, port = parse_address(options.listen)
        advertise: tuple[str, int] | None = None
        if options.advertise:
            advertise = parse_address(options.advertise)
        elif is_every_address(host):
            # Nobody can connect to 0.0.0.0, which stands for all addresses of this machine.
            advertise = socket.gethostname(), port
        if not options.allow_plain:
            _check_exposure(host, tls, logins)
        return cls(host, port, advertise, tls, logins)


def _open_tls(certificate: str, key: str) -> ssl.SSLContext | None:
    """Return what to encrypt connections with; None if nothing is configured."""
    if not certificate and not key:
        return None
    if not certificate or not key:
        given = "serve.tls_certificate" if certificate else "serve.tls_key"
        raise UsageError(f"{given} is set alone", "give serve.tls_certificate and serve.tls_key, or none of them")
    return ServerTls(Path(certificate), Path(key)).context


def _check_exposure(host: str, tls: ssl.SSLContext | None, logins: Logins | None) -> None:
    """Raise `UsageError` if an address beyond this machine has no TLS, or no users."""
    if is_loopback(host):
        return
    if tls is None and logins is None:
        lacks = "without TLS and users, whoever reaches it reads every record"
    elif tls is None:
        lacks = "without TLS, others on the network read the records and passwords of its users"
    elif logins is None:
        lacks = "without users, whoever reaches it reads every record"
    else:
        return
    raise UsageError(
        f"{host} is reached from other machines: {lacks}",
        "listen on 127.0.0.1, or give serve.users, serve.tls_certificate and serve.tls_key; --allow-plain accepts "
        "the risk",
    )


def is_loopback(host: str) -> bool:
    """Return whether an address is of this machine alone."""
    # Not every name below .localhost: what it means is the resolver's to say.
    return host == "localhost" or is_loopback_address(host)


def is_every_address(host: str) -> bool:
    """Return whether an address stands for all addresses of this machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


@dataclass(frozen=True)
class Serving:
    """A server that runs: its address, what it serves, and its counts."""

    server: KafkaServer
    current: Current
    fetching: Fetching
    address: tuple[str, int] = field(default=("", 0))

    @property
    def bootstrap(self) -> str:
        """The address for `bootstrap.servers`."""
        return address_text(*self.current.address())


def choose_contents(store: Store, choosing: Choosing) -> tuple[Archive | None, ServedArchive]:
    """Open an archive, or a folder of the Java tool, and choose what to serve of it."""
    archive = open_archive_or_folder(store)
    if choosing.follow:
        if archive is None:
            raise UsageError("a folder of the Java tool gets no restore points", "leave --follow out")
        if choosing.to_time is not None or choosing.restore_point != "latest":
            raise UsageError(
                "--follow serves the newest restore point, and the next ones",
                "leave out --restore-point and --to-time, or --follow",
            )
    return archive, served_archive(store, archive, choosing)


@dataclass(frozen=True)
class ArchiveServer:
    """An archive as a cluster of Kafka. `run` serves until it is cancelled."""

    store: Store
    choosing: Choosing
    listening: Listening = field(default_factory=Listening)
    memory: int = MEMORY
    refuses_commits: bool = False
    started: Callable[[Serving], None] | None = None
    moved: Callable[[ServedArchive], None] | None = None

    async def run(self, archive: Archive | None, served: ServedArchive) -> None:
        """Serve `served`, which is of the opened `archive`, until cancelled. Raises `UsageError` if the address can't
        be listened on."""
        # Now, and not when the first reader waits for it.
        load_batch_kernel()
        reader = SegmentReader(served.source, self.memory // _OWN_MEMORY)
        current = Current(served, reader, ("", 0))
        answers_memory = self.memory // _ANSWERS_MEMORY
        fetching = Fetching(current, answers_memory)
        answerers: list[Answerer] = [ClusterView(current), ArchivedSettings(current), fetching, Offsets(current)]
        answerers.append(GroupAnswers(current, refuses_commits=self.refuses_commits))
        logins = self.listening.logins
        gate = None
        if logins is not None:
            answerers.append(logins)
            gate = logins.gate
        apis: list[Api] = []
        for each in answerers:
            apis += each.apis()
        known = {api.key for api in apis}
        apis += [api for api in refused_apis() if api.key not in known]

        def changed(connections: int) -> None:
            fetching.clients = connections

        server = KafkaServer(apis, gate=gate, tls=self.listening.tls, changed=changed, unsent=answers_memory)
        host, port = self.listening.host, self.listening.port
        try:
            address = await server.start(host, port)
        except OSError as error:
            # asyncio writes a sentence of its own around the reason.
            why = (os.strerror(error.errno) if error.errno else str(error)).lower()
            raise UsageError(f"can't listen on {address_text(host, port)}: {why}", "choose another --listen") from error
        advertised_host, advertised_port = self.listening.advertise or address
        # Port 0 stands for a free one, which is known by now.
        current.set_address((advertised_host, advertised_port or address[1]))
        serving = Serving(server, current, fetching, address)
        watching: asyncio.Task[None] | None = None
        try:
            if self.started is not None:
                self.started(serving)
            if logins is not None:
                watching = asyncio.ensure_future(_watch_users(logins, server))
            if self.choosing.follow and archive is not None:
                await self._follow(archive, current)
            else:
                await asyncio.Event().wait()
        finally:
            if watching is not None:
                watching.cancel()
            await server.stop()
            reader.close()

    async def _follow(self, archive: Archive, current: Current) -> None:
        """Look for new restore points, and serve each."""
        while True:
            await asyncio.sleep(FOLLOW_SECONDS)
            try:
                later = await current.reader.threads.run(partial(self._later, archive))
            except KbackupError as error:
                log.warning("can't look for a new restore point: %s", error.message)
                continue
            if later is not None:
                current.move_to(later)
                log.info("serving %s", later.as_of)
                if self.moved is not None:
                    self.moved(later)

    def _later(self, archive: Archive) -> ServedArchive | None:
        """Return what to serve of a newer catalog; None if there is none."""
        before = archive.committed
        archive.reopen()
        # Not only a new restore point: records that have expired are no longer there to serve.
        if archive.committed is before:
            return None
        return served_archive(self.store, archive, self.choosing)


async def _watch_users(logins: Logins, server: KafkaServer) -> None:
    """Close the connections of users who have been locked out."""
    while True:
        await asyncio.sleep(USERS_SECONDS)
        for connection in server.close_clients(logins.is_locked_out):
            log.info("closed a connection of %s: its user is gone, or has another password", connection.host)


@contextmanager
def serving_in_thread(server: ArchiveServer) -> Iterator[Serving]:
    """Serve in a thread of this process, for the time of the `with` block."""
    archive, served = choose_contents(server.store, server.choosing)
    begun = threading.Event()
    found: list[Serving] = []
    errors: list[BaseException] = []
    loop = asyncio.new_event_loop()

    def started(serving: Serving) -> None:
        found.append(serving)
        begun.set()

    running = replace(server, started=started)
    task: asyncio.Task[None] = loop.create_task(running.run(archive, served))

    def run() -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(task)
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # noqa: BLE001 (raised in the thread that waits for the start)
            errors.append(error)
        finally:
            begun.set()
            _cancel_rest(loop)
            loop.close()

    thread = threading.Thread(target=run, name="kbackup-serve", daemon=True)
    thread.start()
    begun.wait()
    try:
        if errors:
            raise errors[0]
        yield found[0]
    finally:
        if not loop.is_closed():
            loop.call_soon_threadsafe(task.cancel)
        thread.join(_STOP_SECONDS)
        if thread.is_alive():
            words = f"the server of {server.store.url} has not stopped within {_STOP_SECONDS:.0f} s"
            raise KbackupError(words, "end the process, which ends the server too")


def _cancel_rest(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what still waits for records that nobody wants any more."""
    rest = asyncio.all_tasks(loop)
    for task in rest:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
